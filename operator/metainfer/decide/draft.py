"""The status and actions of one pass over an adaptation, as they are being worked out. Pure, lives for one pass.

Every condition is written from the first pass on, ``Unknown`` where nothing is known yet: absence would read the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.checks import SuspicionStatus
from metainfer.api.v1alpha1.model_adaptation import ConfigStatus, ModelAdaptationStatus
from metainfer.decide.conditions import Finding, find_condition, find_store_outage, merge_conditions
from metainfer.decide.facts import AdaptationSnapshot, ProfileResult
from metainfer.decide.plan import Action, AdaptationPlan, EmitEvent

if TYPE_CHECKING:
    from metainfer.decide.known_families import FamilyNow

ORDER = (
    reasons.READY, reasons.PROFILED, reasons.VALIDATED, reasons.PLACEMENT_DECIDED, reasons.APPLIED, reasons.SETTINGS_EFFECTIVE, reasons.ANSWER_TRUE,
    reasons.LATENCY_OBSERVED, reasons.LOW_CONFIDENCE, reasons.FIELD_CONTESTED, reasons.ROLLED_BACK, reasons.TARGET_CONFLICT,
    reasons.RECONCILING, reasons.STALLED, reasons.STORE_DEGRADED,
)  # fmt: skip
NEGATIVE = frozenset({reasons.LOW_CONFIDENCE, reasons.FIELD_CONTESTED, reasons.ROLLED_BACK, reasons.TARGET_CONFLICT})
LIST_SECONDS = 3600.0
"""Every adaptation gets a pass after each complete list, which is never further away than this."""
Status = Literal["True", "False", "Unknown"]
Step = Literal["Probing", "Profiling", "Validating", "Applying", "RollingOut", "Done"]


@dataclass(slots=True)
class Draft:
    """Collects what a pass finds."""

    snapshot: AdaptationSnapshot
    now: datetime
    status: ModelAdaptationStatus
    findings: dict[str, Finding] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    wishes: list[float] = field(default_factory=list)
    """Seconds after which parts of the pass want to be asked again; the smallest counts."""
    looks: dict[str, FamilyNow] = field(default_factory=dict)
    """Families that ``known_families`` looked at in this pass: a fleet's portraits are gone through once, however many rules ask."""
    takes_turn: bool = False
    """Something that is counted over all adaptations is claimed."""

    @property
    def recommended(self) -> ConfigStatus | None:
        """Configuration of the newest decision."""
        return self.status.recommendation.config if self.status.recommendation is not None else None

    @property
    def suspicion(self) -> SuspicionStatus | None:
        """What is suspected of the decision, by this pass or the one before."""
        return self.status.check.suspicion if self.status.check is not None else None

    def find(self, condition_type: str, status: Status, reason: str, message: str = "") -> None:
        """State one condition; the last word of a pass counts."""
        self.findings[condition_type] = Finding(condition_type, status, reason, message)

    def put(self, **fields: object) -> None:
        """Replace fields of the status."""
        self.status = self.status.model_copy(update=fields)

    def forget_runs(self, *, profile: ProfileResult | None) -> None:
        """A new run starts from nothing but the portrait it may use."""
        self.snapshot = replace(self.snapshot, profile=profile, runs=())

    def step(self, step: Step, progress: str) -> None:
        """Say how far the run is, in the status and in ``Reconciling``."""
        if self.status.run is not None:
            self.put(run=self.status.run.model_copy(update={"step": step, "progress": progress}))
        if step != "Done":
            self.find(reasons.RECONCILING, "True", step, progress)

    def act(self, *actions: Action) -> None:
        """Add actions, in the order in which they are to be carried out."""
        self.actions.extend(actions)

    def look_again(self, seconds: float) -> None:
        """Ask for another pass after so long, if none comes before. One that is hours away comes by itself, with the regular lists."""
        if seconds <= LIST_SECONDS:
            self.wishes.append(max(1.0, seconds))

    def announce(self, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """An Event, once: not again while the ready condition already says so."""
        ready = find_condition(self.snapshot.adaptation.status.conditions, reasons.READY)
        if ready is None or (ready.reason, ready.message) != (reason, message[:2048]):
            self.act(EmitEvent(kind, reason, message[:1024]))

    def done(self, reason: str, message: str, *, seconds: float | None = None) -> AdaptationPlan:
        """The run has come to its end; a limit that nothing keeps is still said."""
        self.step("Done", "")
        decided = find_condition(self.snapshot.adaptation.status.conditions, reasons.PLACEMENT_DECIDED)
        if decided is not None and decided.reason == "SloInfeasible":
            message = f"{message}; but {decided.message}"
        self.find(reasons.READY, "True", reason, message)
        return self.finish(seconds)

    def wait(self, reason: str, message: str, *, seconds: float | None) -> AdaptationPlan:
        """Work is under way or waits for something that will come by itself."""
        self.find(reasons.READY, "False", reason, message)
        if reasons.RECONCILING not in self.findings:
            self.find(reasons.RECONCILING, "True", reason, message)
        return self.finish(seconds)

    def stall(self, reason: str, message: str, *, seconds: float | None = None) -> AdaptationPlan:
        """Somebody has to change something; the message says what."""
        self.announce("Warning", reason, message)
        self.find(reasons.READY, "False", reason, message)
        self.find(reasons.STALLED, "True", reason, message)
        return self.finish(seconds)

    def finish(self, seconds: float | None) -> AdaptationPlan:
        """The plan, with every known condition in the status. What comes after it may find more and finish again."""
        adaptation = self.snapshot.adaptation
        for known in ORDER[: ORDER.index(reasons.RECONCILING)]:
            self.findings.setdefault(known, self._untouched(known))
        self.findings |= {found.type: found for found in find_store_outage(self.snapshot.store_problem)}
        findings = tuple(self.findings[known] for known in ORDER if known in self.findings)
        conditions = merge_conditions(adaptation.status.conditions, findings, now=self.now, generation=adaptation.generation)
        self.put(observed_generation=adaptation.generation, conditions=conditions)
        soonest = min((*([seconds] if seconds is not None else []), *self.wishes), default=None)
        return AdaptationPlan(self.status, tuple(self.actions), soonest, self.takes_turn)

    def _untouched(self, condition_type: str) -> Finding:
        """What a pass that did not come so far leaves standing: the former finding of the same run, else nothing is known."""
        before = find_condition(self.snapshot.adaptation.status.conditions, condition_type)
        old, new = self.snapshot.adaptation.status.run, self.status.run
        if before is not None and old is not None and new is not None and old.id == new.id:
            return Finding(before.type, before.status, before.reason, before.message)
        if condition_type in NEGATIVE:
            return Finding(condition_type, "False", "NothingFound")
        return Finding(condition_type, "Unknown", "NotYet")
