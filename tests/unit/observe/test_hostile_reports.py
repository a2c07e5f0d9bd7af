"""Whatever a Job leaves in its termination message and log: a result with a report or a reason, and a row that every store takes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.decide.check_plan import is_storable
from tests.unit.observe.make_jobs import at, make_job, make_pod, make_state
from tests.unit.observe.test_reports import LATER, Cluster
from tests.unit.probe.hostile_documents import spoilt
from tests.unit.probe.test_contract_fuzz import BENCH, NODE, PROFILE, signed

from metainfer.decide.facts import JobFacts, ProbeResult, ProfileResult
from metainfer.observe.reports import AnyResult, find_ending, read_result
from metainfer.store.rows import probe_row, profile_row, run_row
from metainfer_probe.contract import REPORT_PREFIX, Report, clean_text

REPORTS: dict[str, Report] = {"probe": NODE, "profile": PROFILE, "bench": BENCH}


def read(job: JobFacts, log: str) -> AnyResult:
    ending = find_ending(job, LATER)
    assert ending is not None
    result = asyncio.run(read_result(job, ending, Cluster(log)))
    assert result is not None
    return result


@st.composite
def remains(draw: st.DrawFn) -> tuple[str, str, str]:
    """Purpose, termination message and log: signed reports and lines with odd values, cut ones, and anything else."""
    purpose = draw(st.sampled_from(sorted(REPORTS)))
    document = REPORTS[purpose].model_dump(mode="json")
    message = signed(draw(st.just(document) | spoilt(document)))
    line = REPORT_PREFIX + json.dumps(draw(st.just(document) | spoilt(document)))
    kept = draw(st.none() | st.integers(0, 200))
    return purpose, draw(st.sampled_from((message, message[:kept], "")) | st.text()), draw(st.sampled_from((line, line[:kept], "")) | st.text())


@settings(max_examples=150)
@given(remains())
def test_whatever_a_job_leaves_is_a_result(left: tuple[str, str, str]) -> None:
    """Nothing is raised, nothing is unbounded, and the log never outweighs the summary's checksum."""
    purpose, message, log = left
    state = make_state(exit_code=0, terminated_reason="Completed", termination_message=message, finished_at=at(60))
    result = read(make_job(make_pod(state), purpose=purpose), log)
    assert (result.report is None) == (result.failure is not None)
    if result.failure is not None:
        assert len(result.failure.message) <= 512
        assert clean_text(result.failure.message) == result.failure.message
    check_row(row_of(result))


def row_of(result: AnyResult) -> dict[str, Any]:
    if isinstance(result, ProbeResult):
        return probe_row("pool", result)
    return profile_row("uid", result) if isinstance(result, ProfileResult) else run_row("uid", result)


def check_row(row: dict[str, Any]) -> None:
    """PostgreSQL takes no zero in a text and no integer beyond 63 bits; a row that is refused would be tried again for ever."""
    plain = {name: value for name, value in row.items() if not hasattr(value, "isoformat")}
    assert is_storable(plain)
    assert [name for name, value in plain.items() if isinstance(value, str) and "\x00" in value] == []
