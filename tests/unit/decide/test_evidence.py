from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.decide.make_facts import CPU_PROVIDER, OPENVINO_PROVIDER
from tests.unit.decide.make_runs import make_accuracy, make_candidate, make_measured, make_run

from metainfer.api.v1alpha1.model_adaptation import Accuracy
from metainfer.decide.evidence import ANSWER_RULES, RUN_RULES, find_broken, find_fault
from metainfer.decide.facts import RunResult
from metainfer_probe.contract import Failure, Readback

FP32, INT8, BATCHED = make_candidate(), make_candidate(precision="int8"), make_candidate(batch_size=4)
CRASH = Failure(reason="RuntimeCrashed", message="signal 11 while loading")
DEFAULT = Accuracy()


def make_readback(**fields: Any) -> Readback:
    return Readback(**({"provider": CPU_PROVIDER, "precision": "fp32", "coverage_permille": 1000, "assigned_nodes": 90} | fields))


BROKEN = (
    ("RuntimeCrashed", make_run(FP32, failure=CRASH)),
    ("RuntimeCrashed", replace(make_run(FP32), report=make_run(FP32, failure=None).report.model_copy(update={"failure": CRASH}))),  # type: ignore[union-attr]
    ("ReportMissing", replace(make_run(FP32), report=None)),
    ("RequestsFailed", make_run(FP32, measured=make_measured(errors=2))),
    ("NoFigures", make_run(FP32, measured=None)),
    ("NoFigures", make_run(FP32, measured=make_measured(p99_us=0.0))),
    ("NoFigures", make_run(FP32, measured=make_measured(throughput_per_second=0.0))),
    ("TooFewRounds", make_run(FP32, partial=True, rounds=2)),
    ("ReadbackMissing", make_run(FP32, readback=None)),
    ("ProviderDiffers", make_run(FP32, readback=make_readback(provider=OPENVINO_PROVIDER))),
    ("PrecisionDiffers", make_run(INT8, readback=make_readback(precision="fp32"))),
    ("PrecisionDiffers", make_run(FP32, readback=make_readback(precision="bf16"))),
    ("LowCoverage", make_run(FP32, readback=make_readback(coverage_permille=500))),
)


@pytest.mark.parametrize(("want_reason", "run"), BROKEN, ids=[f"{number}-{case[0]}" for number, case in enumerate(BROKEN)])
def test_a_broken_run_is_no_result(want_reason: str, run: RunResult) -> None:
    """Whatever it measured was not the candidate; the message begins with the reason."""
    fault = find_broken(run)
    assert fault is not None
    assert (fault.verdict, fault.reason) == ("Failed", want_reason)
    assert fault.message.startswith(want_reason)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(make_run(FP32), id="complete"),
        pytest.param(make_run(FP32, partial=True, rounds=3), id="partial with three rounds"),
        pytest.param(make_run(FP32, rounds=1), id="complete with one round"),
        pytest.param(make_run(FP32, readback=make_readback(precision="int8")), id="file that is int8 already"),
        pytest.param(make_run(FP32, readback=make_readback(precision="fp16")), id="file that is fp16 already"),
    ],
)
def test_a_sound_run_is_a_result(run: RunResult) -> None:
    """fp32 means the file as given, whatever it is stored in."""
    assert find_broken(run) is None
    assert find_fault(run, DEFAULT, is_current=False) is None


BAD_ANSWERS = (
    ("AnswersDiffer", "AccuracyExceeded", make_run(FP32, accuracy=make_accuracy(difference_ppm=100_001)), Accuracy(budget_permille=1000)),
    ("InvalidValues", "AccuracyExceeded", make_run(INT8, accuracy=make_accuracy(invalid_values=True)), Accuracy(budget_permille=1000)),
    ("BatchDiffers", "AccuracyExceeded", make_run(BATCHED, accuracy=make_accuracy(batch_difference_ppm=1001)), Accuracy(budget_permille=1000)),
    ("AccuracyExceeded", "AccuracyExceeded", make_run(INT8, accuracy=make_accuracy(difference_ppm=10_001)), DEFAULT),
    ("AccuracyExceeded", "AccuracyExceeded", make_run(FP32, accuracy=make_accuracy(difference_ppm=10_001)), DEFAULT),
    ("GeneratedInputs", "Unverified", make_run(INT8, accuracy=make_accuracy(inputs="generated")), DEFAULT),
    ("GeneratedInputs", "Unverified", make_run(INT8, accuracy=make_accuracy(samples=0)), DEFAULT),
    ("NotCompared", "Unverified", make_run(INT8, accuracy=None), DEFAULT),
)


@pytest.mark.parametrize(
    ("want_reason", "want_verdict", "run", "accuracy"), BAD_ANSWERS, ids=[f"{number}-{case[0]}" for number, case in enumerate(BAD_ANSWERS)]
)
def test_answers_that_are_not_good_enough_are_never_chosen(want_reason: str, want_verdict: str, run: RunResult, accuracy: Accuracy) -> None:
    """The speed of such a run still counts as a measurement, so the run itself is not broken."""
    fault = find_fault(run, accuracy, is_current=False)
    assert fault is not None
    assert (fault.reason, fault.verdict) == (want_reason, want_verdict)
    assert find_broken(run) is None


@pytest.mark.parametrize(
    ("run", "accuracy"),
    [
        pytest.param(make_run(INT8, accuracy=make_accuracy(difference_ppm=10_000)), DEFAULT, id="exactly the budget"),
        pytest.param(make_run(INT8, accuracy=make_accuracy(difference_ppm=40_000, self_difference_ppm=50_000)), DEFAULT, id="model that is not deterministic"),
        pytest.param(make_run(BATCHED, accuracy=make_accuracy(batch_difference_ppm=40_000, self_difference_ppm=50_000)), DEFAULT, id="and batches of it"),
        pytest.param(make_run(FP32, accuracy=make_accuracy(batch_difference_ppm=900_000)), DEFAULT, id="batches differ, but none is used"),
        pytest.param(make_run(INT8, accuracy=make_accuracy(inputs="generated")), Accuracy(allow_unverified=True), id="unverified allowed"),
        pytest.param(make_run(FP32, accuracy=make_accuracy(inputs="generated")), DEFAULT, id="fp32 on generated inputs"),
        pytest.param(make_run(FP32, accuracy=None), DEFAULT, id="fp32 not compared"),
    ],
)
def test_answers_within_the_budget_pass(run: RunResult, accuracy: Accuracy) -> None:
    """The gate is the budget, or what the model differs from itself, whichever is wider."""
    assert find_fault(run, accuracy, is_current=False) is None


def test_allow_unverified_does_not_allow_a_difference() -> None:
    """It waives the proof, not the budget."""
    run = make_run(INT8, accuracy=make_accuracy(inputs="generated", difference_ppm=999_000))
    fault = find_fault(run, Accuracy(allow_unverified=True), is_current=False)
    assert fault is not None
    assert fault.verdict == "AccuracyExceeded"


def test_what_the_owner_serves_already_needs_no_proof_but_must_keep_the_budget() -> None:
    """Leaving it as it is approves nothing."""
    assert find_fault(make_run(INT8, accuracy=make_accuracy(inputs="generated")), DEFAULT, is_current=True) is None
    assert find_fault(make_run(INT8, accuracy=make_accuracy(difference_ppm=20_000)), DEFAULT, is_current=True) is not None


def test_the_message_names_difference_and_budget() -> None:
    """A user decides by these two numbers."""
    fault = find_fault(make_run(INT8, accuracy=make_accuracy(difference_ppm=34_000)), DEFAULT, is_current=False)
    assert fault is not None
    assert fault.message == "3.4 % from fp32 by RelativeL2, 1 % allowed"


def test_every_rule_is_the_first_to_hit_in_some_case() -> None:
    """A rule that others always forestall would be dead."""
    for rule in RUN_RULES:
        assert any(next(other for other in RUN_RULES if other(run) is not None) is rule for _, run in BROKEN), rule.__name__
    for answer in ANSWER_RULES:
        assert any(next(other for other in ANSWER_RULES if other(run, accuracy) is not None) is answer for _, _, run, accuracy in BAD_ANSWERS), answer.__name__
