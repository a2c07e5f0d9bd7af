"""Strangers' model files through the probe as a Job runs it: a reason that names the fault, within every limit, no traceback.

All files go through at once, as many processes as there are processors, and each test looks at one outcome.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from tests.data import bad_models, models
from tests.data.bad_models import BAD_MODELS, FED, NOT_FED, UNUSUAL_MODELS, typed_inputs

from metainfer_probe.contract import EXIT_FAILED_WITH_REASON, EXIT_MEASURED, Failure, ProfileReport, decode_line, decode_summary
from metainfer_probe.dtypes import element_name

Case = TypeVar("Case", str, int)
ROOT = Path(__file__).parents[3]
MEMORY_LIMIT_BYTES = 700 << 20
"""Three times what a small model needs; the bombs ask for gigabytes."""
MEMORY_SLACK_BYTES = 300 << 20
"""The parent of the child that is watched, and what a child can take between two looks on a busy machine."""
BUDGET_SECONDS = 12
TIME_LIMIT_SECONDS = 120
"""Of a process on a machine that is busy with all the others; the budget ends it much sooner."""
SCRATCH_LIMIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a Job would leave: exit code, both reports, standard error, the most memory any of its processes had, and its files."""

    code: int
    report: ProfileReport
    summary: ProfileReport
    error: str
    peak_bytes: int
    scratch_bytes: int

    @property
    def failure(self) -> Failure:
        assert self.report.failure is not None, self.report
        return self.report.failure


def profile(path: Path, **request: object) -> Outcome:
    """Run ``metainfer-probe profile`` on a file of a folder of its own."""
    scratch = path.parent / "scratch"
    scratch.mkdir()
    asked: dict[str, object] = {"kind": "profile", "model": {"path": path.name}, "providers": ["CPUExecutionProvider"], "batch_sizes": [1, 2]}
    asked |= {"budget_seconds": BUDGET_SECONDS, "memory_limit_bytes": MEMORY_LIMIT_BYTES, "precisions": ["fp32"]} | request
    arguments = [sys.executable, "-m", "metainfer_probe.cli", "profile", "--request", json.dumps(asked), "--volume", str(path.parent)]
    arguments += ["--workdir", str(scratch), "--termination-log", str(scratch / "termination")]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "probes"), "TMPDIR": str(scratch), "HOME": str(scratch)}
    with (scratch / "out").open("w") as out, (scratch / "error").open("w") as error:
        child = subprocess.Popen(arguments, stdout=out, stderr=error, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)  # reaped here, for the usage of its whole family
    report, summary = decode_line((scratch / "out").read_text().splitlines()[-1]), decode_summary((scratch / "termination").read_text())
    assert isinstance(report, ProfileReport)
    assert isinstance(summary, ProfileReport)
    written = sum(file.stat().st_size for file in scratch.rglob("*") if file.is_file())
    return Outcome(child.returncode, report, summary, (scratch / "error").read_text(), usage.ru_maxrss * 1024, written)


def profile_each(folders: pytest.TempPathFactory, builders: Mapping[Case, Callable[[Path], Path]], **request: object) -> dict[Case, Outcome]:
    """Each file in a folder of its own, as many at once as there are processors."""

    def run(case: Case) -> Outcome:
        folder = folders.mktemp(re.sub(r"\W", "_", str(case))) / "model"
        folder.mkdir()
        return profile(builders[case](folder), **request)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(builders, pool.map(run, builders), strict=True))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Outcome]:
    """Every bad model's outcome, by its name in the table."""
    return profile_each(tmp_path_factory, {name: bad.build for name, bad in BAD_MODELS.items()})


@pytest.mark.parametrize("name", BAD_MODELS)
def test_the_reason_names_the_fault(name: str, outcomes: Mapping[str, Outcome]) -> None:
    """One reason per kind of fault, and a message with the thing in it."""
    outcome, bad = outcomes[name], BAD_MODELS[name]
    assert outcome.failure.reason in bad.reasons, outcome.failure
    assert [words for words in bad.names if words not in outcome.failure.message] == [], outcome.failure
    assert outcome.code == EXIT_FAILED_WITH_REASON
    assert outcome.summary.failure == outcome.failure


@pytest.mark.parametrize("name", BAD_MODELS)
def test_nobody_reads_a_traceback_or_raw_bytes(name: str, outcomes: Mapping[str, Outcome]) -> None:
    """Neither in the message nor on standard error, which is the Job's log."""
    outcome = outcomes[name]
    assert "Traceback" not in outcome.error, outcome.error
    assert outcome.failure.reason != "InternalError"
    assert re.search(r"[\x00-\x1f\x7f\u202e]", outcome.failure.message) is None
    assert str(ROOT) not in outcome.failure.message


@pytest.mark.parametrize("name", BAD_MODELS)
def test_limits_hold(name: str, outcomes: Mapping[str, Outcome]) -> None:
    """Memory and disk, whatever the file claims. The time limit held if there is an outcome at all."""
    outcome = outcomes[name]
    assert outcome.peak_bytes < MEMORY_LIMIT_BYTES + MEMORY_SLACK_BYTES
    assert outcome.scratch_bytes < SCRATCH_LIMIT_BYTES


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_broken_file_is_not_tried_again(name: str, outcomes: Mapping[str, Outcome]) -> None:
    """Only what ran out of time may be: a busy machine could be to blame. The digest keeps the same content from being tried anew."""
    outcome = outcomes[name]
    assert outcome.failure.retryable == (outcome.failure.reason == "TimedOut")
    assert outcome.report.digest


def test_a_file_that_changed_under_its_name_is_not_measured(tmp_path: Path) -> None:
    """The request pins a digest; both are in the message."""
    outcome = profile(models.dense(tmp_path), model={"path": "dense.onnx", "sha256": "ab" * 32})
    assert outcome.failure.reason == "DigestMismatch"
    assert "abababab" in outcome.failure.message
    assert outcome.code == EXIT_FAILED_WITH_REASON


@pytest.fixture(scope="module")
def unusual(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Outcome]:
    """Outcomes of the odd ones."""
    return profile_each(tmp_path_factory, UNUSUAL_MODELS | {"many nodes": bad_models.many_nodes})


def test_a_hundred_thousand_nodes_are_measured_or_end_in_time(unusual: Mapping[str, Outcome]) -> None:
    """Large graphs are not wrong; they get the time there is, and leave no half report."""
    outcome = unusual["many nodes"]
    assert outcome.report.failure is None or outcome.failure.reason in ("TimedOut", "OutOfMemory")
    assert outcome.report.nodes == 100_000 or outcome.report.failure is not None
    assert "Traceback" not in outcome.error
    assert outcome.peak_bytes < MEMORY_LIMIT_BYTES + MEMORY_SLACK_BYTES
    assert outcome.scratch_bytes < SCRATCH_LIMIT_BYTES


@pytest.mark.parametrize("name", UNUSUAL_MODELS)
def test_an_odd_model_that_is_not_wrong_is_measured(name: str, unusual: Mapping[str, Outcome]) -> None:
    """The checks refuse no more than runtimes do."""
    outcome = unusual[name]
    assert outcome.report.failure is None, outcome.report
    assert outcome.code == EXIT_MEASURED
    assert outcome.report.providers[0].curve
    assert outcome.error == ""


def test_inputs_of_every_type_that_numpy_has_are_fed(unusual: Mapping[str, Outcome]) -> None:
    """Strings too."""
    report = unusual["an input of every type that numpy has"].report
    assert {spec.dtype for spec in report.inputs} == {element_name(kind) for kind in FED}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, Outcome]:
    """Outcomes of inputs of types that no array has."""
    builders = {kind: partial(typed_inputs, kinds=(kind,)) for kind in NOT_FED}
    return profile_each(tmp_path_factory, builders, budget_seconds=4 * BUDGET_SECONDS)  # nothing here is slow, but the machine may be


@pytest.mark.parametrize("kind", NOT_FED, ids=[element_name(kind) for kind in NOT_FED])
def test_an_input_of_a_type_that_cannot_be_fed_is_refused(kind: int, typed: Mapping[int, Outcome]) -> None:
    """8-bit floats, bfloat16, complex numbers, 4 bits and less: by name, or in the runtime's words where it has no kernel."""
    outcome = typed[kind]
    assert "Traceback" not in outcome.error
    assert outcome.failure.reason in ("InputsUnsupported", "ModelInvalid", "KernelMissing")
    assert element_name(kind) in outcome.failure.message or outcome.failure.reason == "KernelMissing"
