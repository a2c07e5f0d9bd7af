from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.make_facts import CPU_PROVIDER, GIB, MIB, OPENVINO_PROVIDER, make_family, make_figures, make_node, make_portrait
from tests.unit.decide.make_runs import make_candidate, make_profile

from metainfer.api.v1alpha1.model_adaptation import Accuracy
from metainfer.decide.facts import Candidate, Rejection
from metainfer.decide.families import Exclusion, FamilyOption
from metainfer.decide.filters import RULES, Context, Rule, filter_candidates, find_obstacle
from metainfer.decide.rejections import MAXIMUM_REASONS, summarize_rejections
from metainfer_probe.contract import Failure, HotOp, PrecisionSupport, ProfileReport

CUDA = "CUDAExecutionProvider"


def make_option(name: str = "ort-cpu", **fields: Any) -> FamilyOption:
    """A family of one probed node; ``family`` holds fields of the family, ``figures`` those of its portrait."""
    family = make_family(name, **({"execution_providers": (CPU_PROVIDER, OPENVINO_PROVIDER, CUDA)} | dict(fields.pop("family", {}))))
    figures = fields.pop("figures", tuple(make_figures(provider) for provider in family.execution_providers))
    portrait = make_portrait("node-1", name, figures=figures, memory_bytes=fields.pop("memory_bytes", 16 * GIB))
    return FamilyOption("cards", family, **({"nodes": (make_node(),), "portraits": (portrait,), "free_cards": {"node-1": 1}} | fields))


def make_context(option: FamilyOption | None = None, profile: ProfileReport | None = None, **fields: Any) -> Context:
    """One family, a model that every runtime reads, calibration inputs, goal Latency."""
    option = option or make_option()
    defaults: dict[str, Any] = {
        "accuracy": Accuracy(),
        "slo": None,
        "goal": "Latency",
        "load_clients": 4,
        "has_calibration": True,
        "current": None,
    }
    return Context(profile=profile or make_profile(), families={(option.pool, option.family.name): option}, **(defaults | fields))


def reason_of(candidate: Candidate, context: Context) -> str | None:
    found = find_obstacle(candidate, context)
    return found.reason if found is not None else None


def message_of(candidate: Candidate, context: Context) -> str:
    found = find_obstacle(candidate, context)
    assert found is not None
    return found.message


def failing(reason: str, message: str = "because") -> Failure:
    return Failure(reason=reason, message=message)


def test_a_plain_candidate_is_kept() -> None:
    """Nothing speaks against fp32 on a probed, free card that reads the model."""
    candidate = make_candidate()
    result = filter_candidates([candidate], make_context())
    assert (result.kept, result.rejections) == ((candidate,), ())


PLAIN_FP16 = make_figures(CPU_PROVIDER, "fp16")
EMULATED_FP16 = make_figures(CPU_PROVIDER, "fp16", effective_precision="fp32")
ONE_NODE_OUT = {"node-1": Exclusion("TaintNotTolerated", "taint gpu=yes:NoSchedule")}
BATCHED: dict[str, Any] = {"batch_size": 4}
HALF_ON_CUDA = (
    HotOp(op_type="MatMul", node="a", time_permille=500, provider=CUDA),
    HotOp(op_type="NonMaxSuppression", node="b", time_permille=120, provider=CPU_PROVIDER),
)
CASES: tuple[tuple[str, Candidate, Context], ...] = (
    ("FamilyUnknown", make_candidate("nowhere"), make_context()),
    ("NoNodes", make_candidate(), make_context(make_option(nodes=(), portraits=()))),
    ("TaintNotTolerated", make_candidate(), make_context(make_option(nodes=(), portraits=(), excluded=ONE_NODE_OUT))),
    ("RolledBackBefore", make_candidate(), make_context(rolled_back={make_candidate(): "decision d-1: no pod of it served"})),
    ("NoPortrait", make_candidate(), make_context(make_option(portraits=()))),
    ("ModelElsewhere", make_candidate(), make_context(make_option(unmeasurable={"node-1": Exclusion("ModelElsewhere", "its volume is on node-9")}))),
    ("NoRoom", make_candidate(), make_context(make_option(no_room=Exclusion("NoRoom", "needs 2 cards, 1 is free")))),
    ("ProviderMissing", make_candidate(execution_provider="ROCMExecutionProvider"), make_context()),
    ("ProviderMissing", make_candidate(execution_provider=OPENVINO_PROVIDER), make_context(make_option(figures=(make_figures(),)))),
    ("RuntimeTooOld", make_candidate(), make_context(profile=make_profile({CPU_PROVIDER: {"failure": failing("RuntimeTooOld")}}))),
    ("UnknownOperators", make_candidate(), make_context(profile=make_profile({CPU_PROVIDER: {"failure": failing("UnknownOperators")}}))),
    ("AlreadyQuantised", make_candidate(precision="int8"), make_context(profile=make_profile(stored_precision="int8"))),
    (
        "NothingToQuantise",
        make_candidate(precision="int8"),
        make_context(
            profile=make_profile({CPU_PROVIDER: {"precisions": (PrecisionSupport(precision="int8", native=True, failure=failing("NothingToQuantise")),)}})
        ),
    ),
    ("PrecisionUnsupported", make_candidate(precision="bf16"), make_context()),
    ("PrecisionUnsupported", make_candidate(precision="fp16"), make_context(make_option(figures=(make_figures(), EMULATED_FP16)))),
    ("LowCoverage", make_candidate(), make_context(profile=make_profile({CPU_PROVIDER: {"coverage_permille": 799}}))),
    ("ProviderRanNothing", make_candidate(), make_context(profile=make_profile({CPU_PROVIDER: {"coverage_permille": 0, "assigned_nodes": 0}}))),
    ("InsufficientMemory", make_candidate(), make_context(make_option(memory_bytes=20 * MIB))),
    ("InsufficientMemory", make_candidate(), make_context(memory_limit_bytes=20 * MIB)),
    ("BatchUnsupported", make_candidate(**BATCHED), make_context(profile=make_profile({CPU_PROVIDER: {"batch_failure": failing("BatchDiffers")}}))),
    ("RaggedInputs", make_candidate(**BATCHED), make_context(profile=make_profile(ragged_inputs=True))),
    ("LossyUnverifiable", make_candidate(precision="int8"), make_context(has_calibration=False)),
    ("CostUnknown", make_candidate(), make_context(goal="Cost")),
    ("HotOperatorUnsupported", make_candidate(execution_provider=CUDA), make_context(profile=make_profile({CUDA: {}}, hot=HALF_ON_CUDA))),
)


@pytest.mark.parametrize(("want_reason", "candidate", "context"), CASES, ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)])
def test_each_rule_rejects_with_its_own_reason(want_reason: str, candidate: Candidate, context: Context) -> None:
    """A user reads the reason: it must be the one that applies."""
    assert reason_of(candidate, context) == want_reason


def test_a_hot_operator_without_a_kernel_rejects_the_provider() -> None:
    """It ran on another provider in the provider's own session, and takes a share that counts."""
    context = make_context(profile=make_profile({CUDA: {}, CPU_PROVIDER: {}}, hot=HALF_ON_CUDA))
    assert "NonMaxSuppression (12 % of the time) has no kernel in CUDAExecutionProvider" in message_of(make_candidate(execution_provider=CUDA), context)
    assert reason_of(make_candidate(), context) is None, "the CPU provider is what everything falls back to"


def test_hot_operators_of_another_session_say_nothing() -> None:
    """The list comes from one provider's session; OpenVINO is not judged by what ran on ONNX Runtime."""
    hot = (HotOp(op_type="Conv", node="a", time_permille=900, provider=CPU_PROVIDER),)
    assert reason_of(make_candidate(execution_provider=OPENVINO_PROVIDER), make_context(profile=make_profile(hot=hot))) is None


def test_a_cold_operator_may_fall_back() -> None:
    """Less than the dead band of the time decides nothing."""
    hot = (HotOp(op_type="MatMul", node="a", time_permille=500, provider=CUDA), HotOp(op_type="Shape", node="b", time_permille=49, provider=CPU_PROVIDER))
    assert reason_of(make_candidate(execution_provider=CUDA), make_context(profile=make_profile({CUDA: {}}, hot=hot))) is None


def test_a_provider_that_was_not_on_the_profiling_card_is_not_held_against_the_family() -> None:
    """The profile ran on some free card; that another family's provider is missing there says nothing about the model."""
    profile = make_profile({CPU_PROVIDER: {}, CUDA: {"failure": failing("ProviderMissing", "this probe image has no CUDA here")}})
    assert reason_of(make_candidate(execution_provider=CUDA), make_context(profile=profile)) is None


def test_a_precision_that_only_the_profiling_card_lacks_is_kept_where_the_family_has_it() -> None:
    """The portrait of the candidate's own card decides."""
    support = PrecisionSupport(precision="bf16", native=False, failure=failing("PrecisionUnsupported", "this CPU has no bf16"))
    profile = make_profile({OPENVINO_PROVIDER: {"precisions": (support,)}})
    candidate = make_candidate(precision="bf16", execution_provider=OPENVINO_PROVIDER)
    with_bf16 = make_option(figures=(make_figures(OPENVINO_PROVIDER), make_figures(OPENVINO_PROVIDER, "bf16")))
    assert reason_of(candidate, make_context(with_bf16, profile)) is None
    assert reason_of(candidate, make_context(make_option(), profile)) == "PrecisionUnsupported"


def test_int8_needs_no_figures_of_the_probe() -> None:
    """It is made from the file and gated by accuracy; cards without int8 units still run it."""
    assert reason_of(make_candidate(precision="int8"), make_context()) is None


def test_an_int8_file_is_served_as_it_is() -> None:
    """fp32 stands for the file as given."""
    assert reason_of(make_candidate(precision="fp32"), make_context(profile=make_profile(stored_precision="int8"))) is None


def test_memory_is_named_in_gib() -> None:
    """The sentence says what is needed and what there is."""
    profile = make_profile(weight_bytes=round(2.5 * GIB), activation_bytes_per_sample=100 * MIB)
    message = message_of(make_candidate(), make_context(make_option(memory_bytes=GIB), profile))
    assert message == "needs about 2.6 GiB, the card of family ort-cpu has 1.0 GiB"


def test_the_pools_own_memory_bound_beats_what_the_probe_saw() -> None:
    """A slice of a card has less than the card."""
    option = make_option(family={"memory_bytes_per_card": 10 * MIB}, memory_bytes=16 * GIB)
    assert reason_of(make_candidate(), make_context(option)) == "InsufficientMemory"


def test_the_smallest_card_of_the_family_counts() -> None:
    """Nobody knows on which node of the family a pod will land."""
    small = make_portrait("node-2", memory_bytes=10 * MIB)
    assert reason_of(make_candidate(), make_context(make_option(portraits=(*make_option().portraits, small)))) == "InsufficientMemory"


@given(batch=st.integers(1, 64), concurrency=st.integers(1, 8))
def test_memory_grows_with_batch_and_concurrency_and_shrinks_with_precision(batch: int, concurrency: int) -> None:
    """What does not fit does not fit with more of it; what fits in fp32 fits in int8."""
    context = make_context(profile=make_profile(weight_bytes=GIB, activation_bytes_per_sample=512 * MIB))
    smaller = make_candidate(batch_size=batch, concurrency=concurrency)
    larger = make_candidate(batch_size=2 * batch, concurrency=concurrency)
    narrow = make_candidate(batch_size=batch, concurrency=concurrency, precision="int8")
    if reason_of(smaller, context) == "InsufficientMemory":
        assert reason_of(larger, context) == "InsufficientMemory"
    else:
        assert reason_of(narrow, context) != "InsufficientMemory"


@pytest.mark.parametrize(
    "context",
    [
        pytest.param(make_context(make_option(no_room=Exclusion("NoRoom", "full"))), id="no room"),
        pytest.param(make_context(make_option(memory_bytes=MIB)), id="memory estimate"),
        pytest.param(make_context(has_calibration=False), id="unverifiable"),
        pytest.param(make_context(goal="Cost"), id="cost unknown"),
        pytest.param(make_context(profile=make_profile({CPU_PROVIDER: {"coverage_permille": 10}})), id="low coverage"),
        pytest.param(make_context(profile=make_profile({CPU_PROVIDER: {"batch_failure": failing("BatchDiffers")}}, ragged_inputs=True)), id="batches"),
        pytest.param(make_context(make_option(portraits=())), id="no portrait"),
    ],
)
def test_the_present_configuration_is_not_dropped_for_an_estimate_or_a_preference(context: Context) -> None:
    """It runs. Leaving it out would leave nothing to compare with."""
    candidate = make_candidate(precision="int8", batch_size=4)
    kept = Context(**{name: getattr(context, name) for name in Context.__slots__} | {"current": candidate})
    assert reason_of(candidate, context) is not None
    assert reason_of(candidate, kept) is None


def test_the_present_configuration_is_dropped_when_it_cannot_be_measured() -> None:
    """A benchmark of it could only fail."""
    candidate = make_candidate()
    assert reason_of(candidate, make_context(make_option(nodes=(), portraits=()), current=candidate)) == "NoNodes"
    profile = make_profile({CPU_PROVIDER: {"failure": failing("ModelInvalid")}})
    assert reason_of(candidate, make_context(profile=profile, current=candidate)) == "ModelInvalid"


def test_the_most_basic_reason_wins() -> None:
    """A family that the target may not use is not described by its memory."""
    option = make_option(nodes=(), portraits=(), excluded=ONE_NODE_OUT, no_room=Exclusion("NoRoom", "full"))
    context = make_context(option, make_profile(ragged_inputs=True), has_calibration=False, goal="Cost", memory_limit_bytes=1)
    assert reason_of(make_candidate(precision="int8", batch_size=4), context) == "TaintNotTolerated"


def test_the_nodes_of_a_closed_family_are_summarised_by_reason() -> None:
    """Counted, with one node as example each."""
    excluded = {
        "node-1": Exclusion("TaintNotTolerated", "taint a"),
        "node-2": Exclusion("TaintNotTolerated", "taint b"),
        "node-3": Exclusion("Unschedulable", "cordoned"),
    }
    message = message_of(make_candidate(), make_context(make_option(nodes=(), portraits=(), excluded=excluded)))
    assert message == "no node of family ort-cpu can run the target: 2 x TaintNotTolerated (node-1: taint a); 1 x Unschedulable (node-3: cordoned)"


@given(st.permutations([make_candidate(precision=precision, batch_size=batch) for precision in ("fp32", "bf16", "int8") for batch in (1, 4)]))
def test_the_order_of_candidates_does_not_change_what_is_kept(candidates: list[Candidate]) -> None:
    """Each candidate is judged alone, and order is kept."""
    context = make_context(profile=make_profile(ragged_inputs=True))
    result = filter_candidates(candidates, context)
    assert set(result.kept) == {make_candidate(), make_candidate(precision="int8")}
    assert [item for item in candidates if item in result.kept] == list(result.kept)
    assert len(result.kept) + len(result.rejections) == len(candidates)


def test_rejections_are_grouped_by_reason_with_count_and_example() -> None:
    """The most frequent reason first."""
    one, two, three = (make_candidate(batch_size=batch) for batch in (4, 8, 16))
    lines = summarize_rejections([Rejection(one, "NoRoom", "full"), Rejection(two, "RaggedInputs", "ragged"), Rejection(three, "RaggedInputs", "ragged")])
    assert [(line.reason, line.count) for line in lines] == [("RaggedInputs", 2), ("NoRoom", 1)]
    assert lines[1].message == f"full (for example {one.key})"


@given(st.lists(st.tuples(st.integers(0, 40), st.text(max_size=700)), max_size=120))
def test_the_summary_is_bounded_and_loses_no_count(found: list[tuple[int, str]]) -> None:
    """The status has 24 lines of at most 512 characters, however many reasons there are."""
    rejections = [Rejection(make_candidate(family="f" * 63, batch_size=2 + number), f"Reason{number}", message) for number, message in found]
    lines = summarize_rejections(rejections)
    assert len(lines) <= MAXIMUM_REASONS
    assert sum(line.count for line in lines) == len(rejections)
    assert all(len(line.message) <= 512 for line in lines)
    assert lines == summarize_rejections(list(reversed(rejections)))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_is_the_first_to_hit_in_some_case(rule: Rule) -> None:
    """A rule that others always forestall would be dead."""
    assert any(next(other for other in RULES if other(candidate, context) is not None) is rule for _, candidate, context in CASES)
