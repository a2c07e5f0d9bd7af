"""While the store is away no decision is lost or held up; when it is back it has everything, once."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import psycopg
import pytest
from tests.unit.store.faults import SERVER_FAULTS, SQLITE_FAULTS, Fault, make_login, mount_disk, remount
from tests.unit.store.look import connect
from tests.unit.store.make_results import ADAPTATION, DIGEST, RUN, at, make_probe, make_profile, make_run
from tests.unit.store.postgres_server import PostgresServer, make_certificate

from metainfer.decide.plan import RecordDecision
from metainfer.store.backlog import Backlog
from metainfer.store.engine import build_engine
from metainfer.store.errors import StoreUnavailable
from metainfer.store.patient import PatientStore, open_patiently
from metainfer.store.samples import SampleStore, open_store
from metainfer.store.tables import runs

WAIT_SECONDS = 60.0


def make_decision(name: str = "decision-1", minutes: float = 0) -> RecordDecision:
    return RecordDecision(name, RUN, at(minutes), {"selected": "this"})


@asynccontextmanager
async def running(url: str, *, backlog: Backlog | None = None) -> AsyncIterator[PatientStore]:
    """A store as the operator has it, in more of a hurry."""
    store = open_patiently(url)
    if backlog is not None:
        store._backlog = backlog
    store.answer_seconds, store.first_retry_seconds = 1.0, 0.05
    part = asyncio.create_task(store.run())
    try:
        yield store
    finally:
        part.cancel()
        await store.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - the store signals nothing to tests
            await asyncio.sleep(0.01)


async def until_back(store: PatientStore) -> None:
    await until(lambda: not store.problem)


async def until_away(store: PatientStore, words: str) -> None:
    """The first tries may end otherwise, for example in a connection that is just being cut off."""
    await until(lambda: words in store.problem)


def remove(folder: Path, pattern: str = "store.db-*") -> None:
    """The log and index that SQLite keeps beside a file."""
    for left in folder.glob(pattern):
        left.unlink(missing_ok=True)


async def use_without_it(store: PatientStore, fault: Fault) -> None:
    """The operator's day while the store is away: everything works, from memory."""
    await store.record_run(ADAPTATION, make_run("before"))
    assert not store.problem
    await asyncio.to_thread(fault.break_it)
    assert await store.record_decision(ADAPTATION, make_decision())
    assert await store.record_run(ADAPTATION, make_run("meanwhile", finished_at=at(1)))
    assert await store.record_profile(ADAPTATION, make_profile())
    assert await store.record_probe("lab", make_probe())
    await until_away(store, fault.words)
    assert "s3cret" not in store.problem
    assert [item.job for item in await store.find_runs(ADAPTATION, RUN)] == ["before", "meanwhile"]
    assert await store.find_profile(ADAPTATION, RUN) == make_profile()
    assert await store.find_probes(["uid-mi-probe-1"]) == (make_probe(),)
    assert await store.known_jobs(["uid-before", "uid-meanwhile", "uid-never"]) == {"uid-before", "uid-meanwhile"}
    assert await store.has_decision(ADAPTATION, "decision-1")
    assert await store.has_decision(ADAPTATION, "of the last process") is None
    assert await store.record_run(ADAPTATION, make_run("meanwhile", finished_at=at(9)))


async def read_back(url: str) -> tuple[list[str], list[str], list[str]]:
    """Runs, decisions and the other Jobs that a new process finds."""
    store = await asyncio.to_thread(open_store, url)
    try:
        found = await store.find_runs(ADAPTATION, RUN)
        jobs = await store.known_jobs(["uid-mi-profile-1", "uid-mi-probe-1"])
        return [item.job for item in found], [item.decision_id for item in await store.find_decisions(ADAPTATION)], sorted(jobs)
    finally:
        await store.close()


async def check_fault(fault: Fault, *, want_runs: list[str]) -> None:
    async with running(fault.url) as store:
        await use_without_it(store, fault)
        await asyncio.to_thread(fault.mend_it)
        await until_back(store)
    assert await read_back(fault.url) == (want_runs, ["decision-1"], ["uid-mi-probe-1", "uid-mi-profile-1"])


@pytest.mark.parametrize("name", SQLITE_FAULTS)
async def test_nothing_is_lost_or_held_up_while_sqlite_is_away(name: str, tmp_path: Path) -> None:
    """Whatever the volume does. A file that was taken away took its rows along."""
    with SQLITE_FAULTS[name](tmp_path) as fault:
        await check_fault(fault, want_runs=["meanwhile"] if name == "volume gone" else ["before", "meanwhile"])


@pytest.mark.parametrize("name", SERVER_FAULTS)
async def test_nothing_is_lost_or_held_up_while_postgresql_is_away(name: str, postgres: PostgresServer) -> None:
    """Whatever the server does."""
    with SERVER_FAULTS[name](postgres) as fault:
        await check_fault(fault, want_runs=["before", "meanwhile"])


async def test_the_event_loop_goes_on_while_the_server_says_nothing(postgres: PostgresServer) -> None:
    """The store has threads of its own: others are served while somebody waits for it."""
    async with running(postgres.url(postgres.make_database(), query="connect_timeout=2")) as store:
        postgres.freeze()
        try:
            recording = asyncio.create_task(store.record_run(ADAPTATION, make_run()))
            turns = 0
            while not recording.done():
                await asyncio.sleep(0.01)
                turns += 1
            assert turns > 10
            assert "no answer within 1.0 s" in store.problem
        finally:
            postgres.thaw()
        await until_back(store)


async def test_a_server_that_restarts_in_mid_transaction_has_the_row_once(postgres: PostgresServer) -> None:
    """The write was under way and nobody knows how far: it is written again under its key."""
    url = postgres.url(postgres.make_database())
    async with running(url) as store:
        store.answer_seconds = WAIT_SECONDS
        other = psycopg.connect(url)
        other.execute("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE")
        recording = asyncio.create_task(store.record_run(ADAPTATION, make_run("under-way")))
        await until(lambda: other.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone())
        await asyncio.to_thread(postgres.stop)
        other.close()
        assert await recording
        assert store.problem
        await asyncio.to_thread(postgres.start)
        await until_back(store)
    assert await read_back(url) == (["under-way"], [], [])


async def test_a_server_that_restarts_between_transactions_is_not_noticed(postgres: PostgresServer) -> None:
    """Connections are tried before they are used."""
    async with running(postgres.url(postgres.make_database())) as store:
        await store.record_run(ADAPTATION, make_run("before"))
        await asyncio.to_thread(postgres.stop)
        await asyncio.to_thread(postgres.start)
        await store.record_run(ADAPTATION, make_run("after", finished_at=at(1)))
        assert not store.problem
        assert len(await store.find_runs(ADAPTATION, RUN)) == 2


async def test_a_verified_certificate_is_wanted_where_the_url_wants_it(postgres: PostgresServer, tmp_path: Path) -> None:
    """verify-full with the right CA works; with another one the store is away and says what to give."""
    login = make_login(postgres)
    good = login.url.replace("sslmode=require", f"sslmode=verify-full&sslrootcert={postgres.certificate}")
    await open_store(good).close()
    _, other = make_certificate(tmp_path, "other")
    with pytest.raises(StoreUnavailable, match=r"certificate verify failed.*sslmode"):
        open_store(good.replace(str(postgres.certificate), str(other)))


async def test_an_operator_starts_without_its_store(postgres: PostgresServer) -> None:
    """It works from the first moment, and the store gets everything when it is there."""
    url = postgres.url(postgres.make_database())
    await asyncio.to_thread(postgres.stop)
    async with running(url) as store:
        assert "start the database server" in store.problem
        assert await store.record_decision(ADAPTATION, make_decision())
        with pytest.raises(StoreUnavailable, match="start the database server"):
            await store.count_runs()
        await asyncio.to_thread(postgres.start)
        await until_back(store)
        assert await store.count_runs() == 0
    assert (await read_back(url))[1] == ["decision-1"]


@pytest.mark.parametrize("name", ["header", "middle"])
async def test_a_damaged_file_is_left_as_it_is_until_somebody_moves_it(name: str, tmp_path: Path) -> None:
    """Nobody can say what is still right in it; what comes meanwhile goes into the next file."""
    path = tmp_path / "store.db"
    await fill_file(path, rows=300)
    content = bytearray(path.read_bytes())
    start = 0 if name == "header" else len(content) // 8192 * 4096
    content[start : start + 4096] = random.Random(1).randbytes(4096)  # noqa: S311  damage, no secret
    path.write_bytes(content)
    async with running(f"sqlite:///{path}") as store:
        assert "restore a backup, or move the file away" in store.problem
        assert await store.record_decision(ADAPTATION, make_decision())
        assert path.read_bytes() == content
        path.rename(tmp_path / "store.db.damaged")
        remove(tmp_path)
        await until_back(store)
    assert (await read_back(f"sqlite:///{path}"))[1] == ["decision-1"]


async def fill_file(path: Path, *, rows: int) -> None:
    """A closed file with everything in it and no log beside it."""
    store = open_store(f"sqlite:///{path}")
    for number in range(rows):
        await store.record_run(ADAPTATION, make_run(f"job-{number}", finished_at=at(number)))
    await store.record_decision(ADAPTATION, make_decision())
    await store.close()
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")


async def test_damage_in_a_file_is_an_outage_or_a_failure_and_never_another_error(tmp_path: Path) -> None:
    """Some bytes anywhere, as they are found by whoever reads there, also past the check at the start."""
    path = tmp_path / "store.db"
    await fill_file(path, rows=60)
    whole, chance, outages = path.read_bytes(), random.Random(7), 0  # noqa: S311  damage, no secret
    for _ in range(40):
        content = bytearray(whole)
        start, length = chance.randrange(len(content)), chance.choice((1, 16, 200, 4096))
        content[start : start + length] = chance.randbytes(min(length, len(content) - start))
        path.write_bytes(content)
        remove(tmp_path)
        outages += await count_outages(path)
    assert outages > 5


async def count_outages(path: Path) -> int:
    store, outages = SampleStore(build_engine(f"sqlite:///{path}")), 0
    try:
        for question in (
            store.find_runs(ADAPTATION, RUN),
            store.find_decisions(ADAPTATION),
            store.find_model_runs(DIGEST, 100),
            store.known_jobs(["uid-job-1", "uid-job-59"]),
            store.record_run(ADAPTATION, make_run("after")),
        ):
            try:
                await question
            except StoreUnavailable:
                outages += 1
    finally:
        await store.close()
    return outages


async def test_a_read_only_volume_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    """As the kernel leaves a disk after an error, until it is mounted again."""
    with mount_disk(tmp_path / "disk") as disk:
        url = f"sqlite:///{disk}/store.db"
        await fill_file(disk / "store.db", rows=1)
        remount(disk, "ro")
        async with running(url) as store:
            assert "mount the volume" in store.problem
            assert await store.record_decision(ADAPTATION, make_decision("decision-2", 1))
            await asyncio.to_thread(remount, disk, "rw")
            await until_back(store)
        assert (await read_back(url))[1] == ["decision-2", "decision-1"]


async def test_a_file_restored_from_a_backup_is_used_at_once(tmp_path: Path) -> None:
    """A connection to the file that was replaced would write where nobody reads."""
    url, path = f"sqlite:///{tmp_path}/store.db", tmp_path / "store.db"
    async with running(url) as store:
        await store.record_decision(ADAPTATION, make_decision())
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(tmp_path / "backup.db")) as backup:
            source.backup(backup)
        remove(tmp_path, "store.db*")
        (tmp_path / "backup.db").rename(path)
        await store.record_decision(ADAPTATION, make_decision("decision-2", 1))
        await until_back(store)
    assert (await read_back(url))[1] == ["decision-2", "decision-1"]


async def test_a_store_that_comes_back_empty_is_asked_anew(tmp_path: Path) -> None:
    """Somebody made a new one: the decisions in force belong into it too, so what this process knew of the old one counts no longer."""
    with SQLITE_FAULTS["volume gone"](tmp_path) as fault:
        async with running(fault.url) as store:
            await store.record_decision(ADAPTATION, make_decision())
            assert await store.has_decision(ADAPTATION, "decision-1")
            fault.break_it()
            assert await store.record_run(ADAPTATION, make_run())
            fault.mend_it()
            await until_back(store)
            assert await store.has_decision(ADAPTATION, "decision-1") is False


async def test_a_full_backlog_keeps_the_oldest_and_says_what_it_gave_up(tmp_path: Path) -> None:
    """What came last is still in its Job: it is not known, so the next pass reads it again. Decisions have room of their own."""
    with SQLITE_FAULTS["volume gone"](tmp_path) as fault:
        async with running(fault.url, backlog=Backlog(max_rows=8)) as store:
            fault.break_it()
            kept = [await store.record_run(ADAPTATION, make_run(f"job-{number}", finished_at=at(number))) for number in range(9)]
            assert kept == [True] * 7 + [False] * 2
            assert [item.job for item in await store.find_runs(ADAPTATION, RUN)] == [f"job-{number}" for number in range(7)]
            assert await store.known_jobs(["uid-job-6", "uid-job-7"]) == {"uid-job-6"}
            assert await store.record_decision(ADAPTATION, make_decision())
            assert not await store.record_decision(ADAPTATION, make_decision("decision-2"))
            assert await store.has_decision(ADAPTATION, "decision-2") is None
            fault.mend_it()
            await until_back(store)
            assert await store.has_decision(ADAPTATION, "decision-1")
            assert not await store.has_decision(ADAPTATION, "decision-2")
        assert len((await read_back(fault.url))[0]) == 7


async def test_a_row_that_no_database_takes_does_not_keep_the_others_out(postgres: PostgresServer) -> None:
    """One defect of ours must not become an outage that never ends."""
    url = postgres.url(postgres.make_database())
    async with running(url) as store:
        assert not await store.record_run(ADAPTATION, make_run("x" * 500))
        assert not store.problem
        await asyncio.to_thread(postgres.stop)
        assert await store.record_run(ADAPTATION, make_run("y" * 500))
        assert await store.record_run(ADAPTATION, make_run("good"))
        await asyncio.to_thread(postgres.start)
        await until_back(store)
    assert (await read_back(url))[0] == ["good"]


async def test_a_decision_of_a_process_that_was_killed_is_asked_for_by_the_next(postgres: PostgresServer) -> None:
    """The backlog went with the process; the store says that it has no such decision, so the pass makes it up from the status."""
    url = postgres.url(postgres.make_database())
    async with running(url) as store:
        await asyncio.to_thread(postgres.stop)
        assert await store.record_decision(ADAPTATION, make_decision())
    async with running(url) as store:
        assert await store.has_decision(ADAPTATION, "decision-1") is None
        await asyncio.to_thread(postgres.start)
        await until_back(store)
        assert await store.has_decision(ADAPTATION, "decision-1") is False
        assert await store.record_decision(ADAPTATION, make_decision())
        assert await store.has_decision(ADAPTATION, "decision-1")
    assert (await read_back(url))[1] == ["decision-1"]


async def test_the_question_that_finds_the_store_away_is_not_answered_from_memory(tmp_path: Path) -> None:
    """One pass rests on the store or on memory, never on some of both."""
    with SQLITE_FAULTS["volume gone"](tmp_path) as fault:
        async with running(fault.url) as store:
            await store.record_run(ADAPTATION, make_run())
            fault.break_it()
            with pytest.raises(ConnectionError):
                await store.known_jobs(["uid-mi-bench-1"])
            assert await store.known_jobs(["uid-mi-bench-1"]) == {"uid-mi-bench-1"}


async def test_an_opening_that_hangs_is_not_joined_by_others(tmp_path: Path) -> None:
    """A disk that does not answer must not collect threads."""
    release, openings = threading.Event(), 0

    def hang() -> SampleStore:
        nonlocal openings
        openings += 1
        release.wait()
        return open_store(f"sqlite:///{tmp_path}/store.db")

    store = PatientStore(hang, problem="gone")
    store.first_retry_seconds, store.open_seconds = 0.01, 0.02
    part = asyncio.create_task(store.run())
    await store.record_run(ADAPTATION, make_run())
    await until_away(store, "no answer within")
    await asyncio.sleep(0.2)
    assert openings == 1
    release.set()
    await until_back(store)
    assert openings == 1
    with connect(f"sqlite:///{tmp_path}/store.db") as connection:
        assert len(connection.execute(runs.select()).all()) == 1
    part.cancel()
    await store.close()
