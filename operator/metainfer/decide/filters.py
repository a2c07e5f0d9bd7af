"""Which candidates are impossible, or not wanted, and why. Pure.

A rule looks at one candidate and returns a reason with a sentence, or nothing; rules form an ordered tuple and the first hit
wins, so the reason that a user reads is the most basic one. The present configuration is tested only against what makes it
impossible to measure: it runs, so an estimate or a preference is no reason to leave it out of the comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.model_adaptation import Accuracy, Slo
from metainfer.api.v1alpha1.node_portrait import PortraitFigures
from metainfer.decide.candidates import joins_requests
from metainfer.decide.facts import Candidate, Rejection
from metainfer.decide.families import Exclusion, FamilyOption
from metainfer.decide.footprint import needed_bytes, smallest_card_bytes
from metainfer.decide.measurable import why_nowhere
from metainfer_probe.contract import Failure, ProfileReport, ProviderProfile

COVERAGE_FLOOR_PERMILLE = 800
"""Below 80 % of the time on the provider, what is measured is the fallback, not the card."""
HOT_SHARE_PERMILLE = 50
"""An operator with less of the time than the dead band of 5 % decides nothing wherever it runs."""
UNIVERSAL_PROVIDER: Final = "CPUExecutionProvider"
"""ONNX Runtime's fallback: it runs every operator there is, so nothing can fall back from it."""
PROVIDER_MISSING: Final = "ProviderMissing"
PRECISION_UNSUPPORTED: Final = "PrecisionUnsupported"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Context:
    """What the rules know besides the candidate."""

    profile: ProfileReport
    families: Mapping[tuple[str, str], FamilyOption]
    """By (pool, family)."""
    accuracy: Accuracy
    slo: Slo | None
    goal: Literal["Latency", "Throughput", "Cost"]
    load_clients: int
    has_calibration: bool
    current: Candidate | None
    memory_limit_bytes: int = 0
    """Of the target's container; 0 = none."""
    rolled_back: Mapping[Candidate, str] = field(default_factory=dict)
    """What was taken back before under the same inputs, and why."""

    def option(self, candidate: Candidate) -> FamilyOption | None:
        """The candidate's family as the target sees it."""
        return self.families.get((candidate.pool, candidate.family))

    def provider(self, candidate: Candidate) -> ProviderProfile | None:
        """The model on the candidate's provider; None = not profiled there, or not on a card that has it: nothing is known."""
        for profile in self.profile.providers:
            if profile.provider == candidate.config.execution_provider:
                absent = profile.failure is not None and profile.failure.reason == PROVIDER_MISSING
                return None if absent else profile
        return None

    def figures(self, candidate: Candidate) -> tuple[PortraitFigures, ...]:
        """What the family's typical portrait says of the candidate's provider."""
        option = self.option(candidate)
        if option is None or option.typical is None:
            return ()
        return tuple(item for item in option.typical.status.figures if item.execution_provider == candidate.config.execution_provider)


@dataclass(frozen=True, slots=True)
class Feasible:
    """What is left, and why the others are not."""

    kept: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]


Rule = Callable[[Candidate, Context], Exclusion | None]


def family_unusable(candidate: Candidate, context: Context) -> Exclusion | None:
    """No node of the family may run the target."""
    option = context.option(candidate)
    if option is None:
        return Exclusion("FamilyUnknown", f"family {candidate.family} of pool {candidate.pool} is not open to the target")
    if option.nodes:
        return None
    if not option.excluded:
        return Exclusion("NoNodes", f"family {candidate.family} has no node")
    return _summarize_exclusions(candidate.family, option.excluded)


def portrait_missing(candidate: Candidate, context: Context) -> Exclusion | None:
    """No node of the family was ever probed."""
    option = context.option(candidate)
    if option is not None and option.portraits:
        return None
    return Exclusion("NoPortrait", f"no node of family {candidate.family} has a portrait yet: see the conditions of pool {candidate.pool}")


def room_missing(candidate: Candidate, context: Context) -> Exclusion | None:
    """The target's replicas do not fit."""
    option = context.option(candidate)
    return option.no_room if option is not None else None


def measuring_impossible(candidate: Candidate, context: Context) -> Exclusion | None:
    """No node of the family takes a measuring Job: the model's volume is elsewhere, the cards are not handed out, the image does not fit."""
    option = context.option(candidate)
    nowhere = why_nowhere([option], [node.name for node in option.nodes]) if option is not None else None
    return None if nowhere is None else Exclusion(nowhere.reason, f"nothing can be measured on family {candidate.family}: {nowhere.message}")


def provider_missing(candidate: Candidate, context: Context) -> Exclusion | None:
    """The family's cards do not run the provider: the pool says so, or the probe did not find it there."""
    option, provider = context.option(candidate), candidate.config.execution_provider
    if candidate == context.current and provider == UNIVERSAL_PROVIDER:
        return None  # it runs beside the cards, on the host's processor, and so it can be measured there
    if option is not None and provider not in option.family.execution_providers:
        offered = ", ".join(option.family.execution_providers)
        return Exclusion(PROVIDER_MISSING, f"family {candidate.family} offers {offered}, the target would use {provider}")
    if option is not None and option.typical is not None and not context.figures(candidate):
        return Exclusion(PROVIDER_MISSING, f"the probe did not find {provider} on the cards of family {candidate.family}")
    return None


def model_unreadable(candidate: Candidate, context: Context) -> Exclusion | None:
    """The runtime refused the model, or took it and ran nothing; its own reason is passed on."""
    profile = context.provider(candidate)
    if profile is None or profile.failure is None:
        return None
    return _passed_on(profile.failure, profile.provider)


def already_quantised(candidate: Candidate, context: Context) -> Exclusion | None:
    """A file that is int8 has no other precision; fp32 means: served as it is."""
    if context.profile.stored_precision != "int8" or candidate.config.precision == "fp32":
        return None
    return Exclusion("AlreadyQuantised", f"the file is int8 already: it can only be served as it is (fp32), not in {candidate.config.precision}")


def precision_failed(candidate: Candidate, context: Context) -> Exclusion | None:
    """The runtime could not make or run this precision of the model.

    ``PrecisionUnsupported`` is about the card that profiled; where the candidate's own card has the precision, it is no reason.
    """
    profile, wanted = context.provider(candidate), candidate.config.precision
    failure = next((item.failure for item in profile.precisions if item.precision == wanted), None) if profile is not None else None
    if failure is None or (failure.reason == PRECISION_UNSUPPORTED and _is_native(candidate, context)):
        return None
    return _passed_on(failure, candidate.config.execution_provider)


def precision_emulated(candidate: Candidate, context: Context) -> Exclusion | None:
    """The family's cards compute fp16 or bf16 in another precision: slower than fp32, with the errors of both."""
    wanted = candidate.config.precision
    if wanted not in ("fp16", "bf16") or not context.figures(candidate) or _is_native(candidate, context):
        return None
    return Exclusion(PRECISION_UNSUPPORTED, f"the cards of family {candidate.family} do not compute in {wanted} with {candidate.config.execution_provider}")


def coverage_low(candidate: Candidate, context: Context) -> Exclusion | None:
    """Less than 80 % of the time was on the provider."""
    profile = context.provider(candidate)
    if profile is None or profile.coverage_permille >= COVERAGE_FLOOR_PERMILLE:
        return None
    if profile.coverage_permille == 0 and profile.assigned_nodes == 0:
        return Exclusion("ProviderRanNothing", f"{profile.provider} took the model but ran no node of it")
    share = profile.coverage_permille / 10
    return Exclusion("LowCoverage", f"only {share:.0f} % of the model's time is on {profile.provider}, at least {COVERAGE_FLOOR_PERMILLE / 10:.0f} % is needed")


def hot_operator_unsupported(candidate: Candidate, context: Context) -> Exclusion | None:
    """An operator that takes much of the time has no kernel there: it ran on another provider in the provider's own session."""
    provider, hot = candidate.config.execution_provider, context.profile.hot
    if provider == UNIVERSAL_PROVIDER or not any(item.provider == provider for item in hot):
        return None
    for item in hot:
        if item.provider != provider and item.time_permille >= HOT_SHARE_PERMILLE:
            message = f"{item.op_type} ({item.time_permille / 10:.0f} % of the time) has no kernel in {provider} and ran on {item.provider}"
            return Exclusion("HotOperatorUnsupported", message)
    return None


def memory_insufficient(candidate: Candidate, context: Context) -> Exclusion | None:
    """Weights and activations do not fit: on the smallest card of the family, or under the container's memory limit."""
    needed, option = needed_bytes(candidate.config, context.profile), context.option(candidate)
    card = smallest_card_bytes(option) if option is not None else 0
    for have, whose in ((card, f"the card of family {candidate.family} has"), (context.memory_limit_bytes, "the container's memory limit is")):
        if 0 < have < needed:
            return Exclusion("InsufficientMemory", f"needs about {needed / _GIB:.1f} GiB, {whose} {have / _GIB:.1f} GiB")
    return None


def batch_unsupported(candidate: Candidate, context: Context) -> Exclusion | None:
    """Requests cannot be joined, or joined ones are answered differently."""
    profile = context.provider(candidate)
    if not joins_requests(candidate.config) or profile is None or profile.batch_failure is None:
        return None
    return Exclusion("BatchUnsupported", f"{profile.batch_failure.reason}: {profile.batch_failure.message}")


def inputs_ragged(candidate: Candidate, context: Context) -> Exclusion | None:
    """Requests of different sizes would need padding to be joined, which no server here does."""
    if not joins_requests(candidate.config) or not context.profile.ragged_inputs:
        return None
    return Exclusion("RaggedInputs", "the calibration inputs differ in more than the batch: they cannot be joined without padding")


def lossy_unverifiable(candidate: Candidate, context: Context) -> Exclusion | None:
    """Without real inputs nobody can say whether a lossy precision still answers right."""
    if candidate.config.precision == "fp32" or context.has_calibration or context.accuracy.allow_unverified:
        return None
    return Exclusion(
        "LossyUnverifiable", f"{candidate.config.precision} cannot be verified without calibration inputs: set accuracy.calibration or accuracy.allowUnverified"
    )


def rolled_back_before(candidate: Candidate, context: Context) -> Exclusion | None:
    """It was written before, for the same inputs, and turned out worse than what was there."""
    why = context.rolled_back.get(candidate)
    return Exclusion("RolledBackBefore", f"it was chosen before for the same inputs and taken back: {why}") if why is not None else None


def cost_unknown(candidate: Candidate, context: Context) -> Exclusion | None:
    """Goal Cost, and nobody said what the family costs."""
    option = context.option(candidate)
    if context.goal != "Cost" or option is None or option.family.hourly_cost_micros is not None:
        return None
    return Exclusion(reasons.COST_UNKNOWN, f"goal Cost needs hourlyCostMicros on family {candidate.family} of pool {candidate.pool}")


RULES: tuple[Rule, ...] = (
    family_unusable, portrait_missing, measuring_impossible, room_missing, provider_missing, model_unreadable, already_quantised, precision_failed,
    precision_emulated, coverage_low, hot_operator_unsupported, memory_insufficient, batch_unsupported, inputs_ragged, lossy_unverifiable, rolled_back_before,
    cost_unknown,
)  # fmt: skip
RULES_FOR_CURRENT: tuple[Rule, ...] = (family_unusable, measuring_impossible, provider_missing, model_unreadable, already_quantised, precision_failed)


def filter_candidates(candidates: Sequence[Candidate], context: Context) -> Feasible:
    """Each candidate is kept or rejected with the first rule that hits; order is kept."""
    kept: list[Candidate] = []
    rejections: list[Rejection] = []
    for candidate in candidates:
        found = find_obstacle(candidate, context)
        if found is None:
            kept.append(candidate)
        else:
            rejections.append(Rejection(candidate, found.reason, found.message))
    return Feasible(tuple(kept), tuple(rejections))


def find_obstacle(candidate: Candidate, context: Context) -> Exclusion | None:
    """The first rule that hits."""
    rules = RULES_FOR_CURRENT if candidate == context.current else RULES
    return next((found for rule in rules if (found := rule(candidate, context)) is not None), None)


def _summarize_exclusions(family: str, excluded: Mapping[str, Exclusion]) -> Exclusion:
    """The most frequent reason stands for the family; each reason is counted, with one node as example."""
    counts = Counter(item.reason for item in excluded.values())
    ordered = sorted(counts, key=lambda reason: (-counts[reason], reason))
    first = {excluded[node].reason: f"{node}: {excluded[node].message}" for node in sorted(excluded, reverse=True)}
    parts = "; ".join(f"{counts[reason]} x {reason} ({first[reason]})" for reason in ordered)
    return Exclusion(ordered[0], f"no node of family {family} can run the target: {parts}")


def _passed_on(failure: Failure, provider: str) -> Exclusion:
    return Exclusion(failure.reason, f"{provider}: {failure.message}")


def _is_native(candidate: Candidate, context: Context) -> bool:
    wanted = candidate.config.precision
    return any(item.precision == wanted and item.effective_precision == wanted for item in context.figures(candidate))
