from __future__ import annotations

from tests.unit.store.make_results import ADAPTATION, RUN, at, make_bench_report, make_profile, make_run

from metainfer.decide.plan import RecordDecision
from metainfer.store.backlog import Backlog, Entry, Recollection
from metainfer.store.rows import decision_row, run_row
from metainfer.store.tables import decisions, runs


def make_entry(job: str, **detail: object) -> Entry:
    return Entry(runs, run_row(ADAPTATION, make_run(job, report=make_bench_report(detail=detail))))


def make_decision(name: str) -> Entry:
    return Entry(decisions, decision_row(ADAPTATION, RecordDecision(name, RUN, at(0), {})))


def drain(backlog: Backlog) -> list[str]:
    found = []
    while (entry := backlog.first()) is not None:
        found.append(entry.key[-1])
        backlog.drop(entry)
    return found


def test_rows_leave_in_the_order_in_which_they_came() -> None:
    """And each key once."""
    backlog = Backlog()
    assert all(backlog.offer(make_entry(job)) for job in ("b", "a", "b", "c"))
    assert len(backlog) == 3
    assert drain(backlog) == ["uid-b", "uid-a", "uid-c"]
    assert backlog.size_bytes == 0


def test_a_full_backlog_keeps_the_oldest_and_has_room_for_decisions() -> None:
    """What came last is still in its Job; of decisions there are few."""
    backlog = Backlog(max_rows=8)
    assert [backlog.offer(make_entry(f"job-{number}")) for number in range(8)] == [True] * 7 + [False]
    assert backlog.offer(make_decision("d1"))
    assert not backlog.offer(make_decision("d2"))
    assert drain(backlog) == [*(f"uid-job-{number}" for number in range(7)), "d1"]


def test_the_large_detail_is_left_out_where_the_row_fits_only_without() -> None:
    """Memory is bounded in bytes too; the report is what teaches."""
    small = make_entry("small").size_bytes
    backlog = Backlog(max_bytes=small * 4)
    assert backlog.offer(make_entry("large", much="x" * small * 4))
    entry = backlog.first()
    assert entry is not None
    assert (entry.row["detail"], entry.row["report"] is not None) == (None, True)
    assert backlog.size_bytes < small * 2


def test_results_are_remembered_as_the_store_would_give_them() -> None:
    """Without detail, oldest first, a Job started again replacing its earlier result."""
    recent = Recollection()
    recent.keep(ADAPTATION, [make_run("b", finished_at=at(2)), make_run("a", finished_at=at(1), report=make_bench_report(detail={"much": 1}))])
    recent.keep(ADAPTATION, [make_run("a", finished_at=at(3), job_uid="again")])
    recent.keep("another", [make_run("c")])
    recent.keep(ADAPTATION, [make_run("d", run_id="another"), make_profile()])
    assert [(item.job, item.job_uid) for item in recent.find_runs(ADAPTATION, RUN)] == [("b", "uid-b"), ("a", "again")]
    assert recent.find_profiles(ADAPTATION, RUN) == (make_profile(),)
    assert recent.known(["uid-a", "again", "x"]) == {"uid-a", "again"}
    recent.keep(ADAPTATION, [make_run("a", finished_at=at(1), report=make_bench_report(detail={"much": 1}))])
    assert all(item.report is None or not item.report.detail for item in recent.find_runs(ADAPTATION, RUN))


def test_what_was_used_least_lately_is_forgotten() -> None:
    """Memory is bounded; then the result is read from its Job again."""
    recent = Recollection(limit=2)
    for job in ("a", "b", "a", "c"):
        recent.keep(ADAPTATION, [make_run(job)])
    assert recent.known(["uid-a", "uid-b", "uid-c"]) == {"uid-a", "uid-c"}
