"""The reader beside the passes: what a pass is given at once, what is read meanwhile, and what a bad source may cost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from tests.unit.decide.latency.make_served import make_histogram, make_served
from tests.unit.decide.make_facts import make_adaptation, make_pod
from tests.unit.observe.latency.conftest import History
from tests.unit.observe.latency.test_latency_scrape import Page, Pods

from metainfer.decide.facts import AdaptationFacts, ContainerState, PodFacts
from metainfer.decide.latency.order import LatencyOrder, LatencyRules, choose_order
from metainfer.decide.latency.series import Scrape, ServedSeries
from metainfer.decide.latency.served import ServedFacts
from metainfer.decide.latency.target import ServedTarget
from metainfer.observe.latency_http import MetricsUnavailable
from metainfer.observe.latency_prometheus import PrometheusEndpoint
from metainfer.observe.served import ServedReader
from metainfer.observe.served_reading import find_target, read_window
from metainfer.observe.served_sources import LatencySources

WITH_PROMETHEUS = LatencyRules(has_prometheus=True)
VERSIONS = {"histogram": {"name": "demo_latency_seconds"}}


def make_decided(service: str = "versions", *, since: float, **drift: Any) -> AdaptationFacts:
    """An adaptation whose decision has been in place since then."""
    decided = datetime.fromtimestamp(since, UTC).isoformat()
    config = {"pool": "cards", "family": "ort-cpu", "executionProvider": "CPUExecutionProvider", "precision": "fp32", "batchSize": 1, "concurrency": 1}
    recommendation = {
        "decisionId": "d-1", "decidedAt": decided, "config": config | {"dynamicBatching": False, "maxBatchDelay": "0us"},
        "expected": {"p50": "1ms", "p99": "2ms", "throughputPerSecond": 1},
    }  # fmt: skip
    status = {"recommendation": recommendation, "served": {"decisionId": "d-1", "settledAt": decided}}
    return make_adaptation(namespace=service, spec={"drift": drift}, status=status)


def make_service_pod(service: str = "versions", **fields: Any) -> PodFacts:
    return make_pod(f"{service}-7d9f-abcde", namespace=service, **fields)


@dataclass
class Watch:
    """A reader with a clock that tests turn, and what it has woken."""

    now: float
    reader: ServedReader = field(init=False)
    woken: list[tuple[str, str]] = field(default_factory=list)

    def open(self, sources: Any, rules: LatencyRules = WITH_PROMETHEUS) -> Watch:
        self.reader = ServedReader(sources, rules, lambda namespace, name: self.woken.append((namespace, name)), lambda: self.now)
        return self

    async def look(self, adaptation: AdaptationFacts, *pods: PodFacts) -> ServedFacts:
        """What a pass sees, after what it set going has ended."""
        self.reader.look(adaptation, pods)
        await self.reader.settle()
        return self.reader.look(adaptation, pods)


Opens = Callable[..., LatencySources]


@pytest.fixture
async def opens() -> AsyncIterator[Opens]:
    """Sources that are closed after the test."""
    opened: list[LatencySources] = []

    def open_sources(clock: Callable[[], float], url: str = "", authorization: str = "") -> LatencySources:
        opened.append(LatencySources(PrometheusEndpoint(url, authorization=authorization), clock))
        return opened[-1]

    yield open_sources
    for sources in opened:
        await sources.close()


@pytest.fixture
async def pods() -> AsyncIterator[Pods]:
    started = Pods()
    yield started
    await started.stop()


async def test_a_pass_gets_what_is_there_and_is_woken_for_more(history: History, opens: Opens) -> None:
    """The first look has nothing yet; reading goes on beside it, and the windows of the past are not lost to a restart."""
    watch = Watch(history.end + 20.0).open(opens(lambda: watch.now, history.url))
    since = history.end - 3500
    adaptation, pod = make_decided(since=since, source=VERSIONS, window="10m"), make_service_pod()
    first = watch.reader.look(adaptation, (pod,))
    assert first.windows == ()
    assert first.problem is None
    await watch.reader.settle()
    assert watch.woken == [("versions", "ocr")]
    facts = watch.reader.look(adaptation, (pod,))
    ends = [window.ended_at.timestamp() for window in facts.windows]
    assert watch.now - 600 - 15 <= ends[-1] <= watch.now
    assert len(ends) == (ends[-1] - since) // 600, "the grid of windows is the adaptation's own: four or five of them fit"
    assert ends == sorted(ends)
    assert all(later - earlier == 600 for earlier, later in itertools.pairwise(ends))
    p99 = facts.windows[-1].reading.p99
    assert p99 is not None
    assert p99.value_us == pytest.approx(48_000, rel=0.04)
    assert facts.windows[-1].nodes["node-1"].mean_us == pytest.approx(facts.windows[-1].reading.mean_us)
    assert facts.next_at is not None
    assert 0 < facts.next_at.timestamp() - watch.now <= 600 + 15


async def test_each_window_is_asked_for_once() -> None:
    """However many passes there are; at first as many of the past as are judged together, which a restart would else be hours without."""
    source = Silent()
    watch = Watch(10_000.0).open(source)
    adaptation = make_decided(since=1000.0, window="10m")
    for _ in range(5):
        await watch.look(adaptation, make_service_pod())
    assert len(source.asked) == 12
    watch.now += 600
    await watch.look(adaptation, make_service_pod())
    assert len(source.asked) == 13


async def test_windows_end_at_the_same_times_for_every_operator() -> None:
    """By the adaptation's UID: a restart reads the same windows, and neighbours other ones."""
    ends = []
    for uid in ("a", "a", "b"):
        source = Silent()
        await Watch(10_000.0).open(source).look(replace(make_decided(since=1000.0), uid=uid), make_service_pod())
        ends.append(source.asked)
    assert ends[0] == ends[1] != ends[2]


async def test_nothing_is_read_of_the_time_before_the_decision() -> None:
    """It was another configuration."""
    source = Silent()
    await Watch(10_000.0).open(source).look(make_decided(since=8900.0, window="10m"), make_service_pod())
    assert [start >= 8900.0 for start, _ in source.asked] == [True]


async def test_while_a_run_decides_only_the_windows_before_it_are_read() -> None:
    """What a decision will be compared with: the pods of then are gone after its rollout. Each once, and none while benchmarks disturb it."""
    source = Silent()
    watch = Watch(10_000.0).open(source)
    started = datetime.fromtimestamp(8900.0, UTC).isoformat()
    run = {"id": "r-1", "inputsHash": "h", "startedAt": started, "step": "Profiling"}
    adaptation = make_adaptation(namespace="versions", spec={"drift": make_decided(since=0.0, window="10m").spec.drift}, status={"run": run})
    for _ in range(3):
        await watch.look(adaptation, make_service_pod())
    assert len(source.asked) == 3
    assert all(end <= 8900.0 for _, end in source.asked)


@dataclass
class Silent:
    """A source that has no series, or that fails, or never answers."""

    error: Exception | None = None
    hangs: bool = False
    asked: list[tuple[float, float]] = field(default_factory=list)
    targets: list[ServedTarget] = field(default_factory=list)

    async def read_window(self, url: str, target: ServedTarget, *, start_unix_seconds: float, end_unix_seconds: float) -> ServedSeries:
        self.asked.append((start_unix_seconds, end_unix_seconds))
        self.targets.append(target)
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return ServedSeries(start_unix_seconds, end_unix_seconds)

    async def scrape(self, target: ServedTarget) -> Scrape:
        raise AssertionError(target)


async def test_a_source_that_never_answers_holds_up_nobody() -> None:
    """Looks return at once, and one adaptation has one question under way."""
    source = Silent(hangs=True)
    watch = Watch(10_000.0).open(source)
    others = [replace(make_decided(since=1000.0), uid=f"uid-{index}") for index in range(40)]
    for _ in range(3):
        for adaptation in others:
            assert watch.reader.look(adaptation, (make_service_pod(),)).windows == ()
        await asyncio.sleep(0)
    assert len(source.asked) == 8
    await watch.reader.close()


async def test_a_source_that_is_away_is_told_and_asked_again_later() -> None:
    """The windows that it missed are read when it is back."""
    source = Silent(error=MetricsUnavailable("MetricsUnreachable", "no answer"))
    watch = Watch(10_000.0).open(source)
    adaptation = make_decided(since=1000.0, window="10m")
    facts = await watch.look(adaptation, make_service_pod())
    assert facts.problem is not None
    assert facts.problem.reason == "MetricsUnreachable"
    assert facts.next_at is not None
    assert facts.next_at.timestamp() >= watch.now + 60
    await watch.look(adaptation, make_service_pod())
    assert len(source.asked) == 1
    source.error, watch.now = None, watch.now + 61
    facts = await watch.look(adaptation, make_service_pod())
    assert facts.problem is None
    assert len(facts.windows) == 12


async def test_a_defect_in_reading_costs_that_reading_only() -> None:
    """Whatever others answer, the passes go on."""
    facts = await Watch(10_000.0).open(Silent(error=ZeroDivisionError())).look(make_decided(since=1000.0), make_service_pod())
    assert facts.problem is not None
    assert facts.problem.reason == "ReadingFailed"


async def test_another_decision_or_source_begins_anew() -> None:
    """Windows of the former one are not shown for it."""
    watch = Watch(10_000.0).open(Silent())
    adaptation = make_decided(since=1000.0, window="10m")
    assert len((await watch.look(adaptation, make_service_pod())).windows) == 12
    other = make_decided(since=1000.0, window="20m")
    assert watch.reader.look(other, (make_service_pod(),)).windows == ()
    await watch.reader.settle()


async def test_without_a_pod_that_runs_nothing_is_asked() -> None:
    """A query without pods would be about the whole namespace."""
    source = Silent()
    watch = Watch(10_000.0).open(source)
    await watch.look(make_decided(since=1000.0), make_service_pod(phase="Pending"), make_service_pod(deleting=True))
    assert source.asked == []


async def test_a_forbidden_address_is_never_asked() -> None:
    """Said, and nothing is sent."""
    source = Silent()
    adaptation = make_decided(since=1000.0, source={"prometheus": {"url": "http://169.254.169.254"}})
    facts = await Watch(10_000.0).open(source).look(adaptation, make_service_pod())
    assert facts.problem is not None
    assert facts.problem.reason == "AddressNotAllowed"
    assert source.asked == []


async def test_credentials_go_to_the_operators_own_prometheus_only(opens: Opens, pods: Pods) -> None:
    """Another address that the settings allow is still another's."""
    seen: dict[str, str | None] = {}

    async def answer(request: web.Request) -> web.Response:
        seen[request.path] = request.headers.get("Authorization")
        return web.json_response({"status": "success", "data": {"resultType": "matrix", "result": []}})

    host = await pods.start("prometheus", answer)
    url = f"http://{host.address}:{host.port}"
    sources = opens(lambda: 0.0, f"{url}/own", "Bearer secret")
    target = ServedTarget("shop", (), find_target("shop", (), _order()).source)
    for named in ("", f"{url}/other"):
        await sources.read_window(named, target, start_unix_seconds=0.0, end_unix_seconds=900.0)
    assert seen == {"/own/api/v1/query": "Bearer secret", "/other/api/v1/query": None}


async def test_a_prometheus_that_does_not_answer_is_left_alone_for_a_while_by_everybody(opens: Opens, pods: Pods) -> None:
    """A thousand adaptations do not wait for a thousand deadlines."""
    asked = 0

    async def answer(_request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=503)

    now = [0.0]
    host = await pods.start("prometheus", answer)
    sources = opens(lambda: now[0], f"http://{host.address}:{host.port}")
    target = ServedTarget("shop", (), find_target("shop", (), _order()).source)
    for now[0] in (0.0, 1.0, 29.0, 31.0):
        with pytest.raises(MetricsUnavailable) as caught:
            await sources.read_window("", target, start_unix_seconds=0.0, end_unix_seconds=900.0)
        assert caught.value.reason == "MetricsUnreachable"
    assert asked == 2


def _order() -> LatencyOrder:
    found = choose_order(make_adaptation().spec, WITH_PROMETHEUS)
    assert isinstance(found, LatencyOrder)
    return found


# --- Pods -----------------------------------------------------------------------------------------------------------


async def test_scrapes_make_a_window(opens: Opens, pods: Pods) -> None:
    """A pass for each; each asks for the next look."""
    page = Page()
    page.serve(0.021)
    served = await pods.start("ocr-1", page.answer)
    now = 1_800_000_000.0
    sources = opens(lambda: watch.now)
    watch = Watch(now).open(sources, LatencyRules())
    source = {"scrape": {"port": served.port}}
    adaptation, pod = make_decided(since=now - 100, source=source, window="20s", minRequests=50), make_pod("ocr-1", address=served.address)
    facts, looks = await watch.look(adaptation, pod), 0
    while not facts.windows:
        page.serve(*[0.021] * 30)
        assert facts.next_at is not None
        watch.now, looks = facts.next_at.timestamp() + 0.01, looks + 1
        facts = await watch.look(adaptation, pod)
    assert looks in (4, 5)  # the first look is not at the beginning of a step
    assert [window.reading.requests for window in facts.windows] == [30 * looks]
    assert facts.windows[0].reading.seconds == pytest.approx(20, abs=2.6)
    assert facts.windows[0].reading.mean_us == pytest.approx(21_000)


async def test_a_gap_between_scrapes_makes_no_window(opens: Opens, pods: Pods) -> None:
    """Restarts in it would not be seen."""
    page = Page()
    served = await pods.start("ocr-1", page.answer)
    sources = opens(lambda: watch.now)
    watch = Watch(1_800_000_000.0).open(sources, LatencyRules())
    source = {"scrape": {"port": served.port}}
    adaptation, pod = make_decided(since=watch.now - 100, source=source, window="20s"), make_pod("ocr-1", address=served.address)
    await watch.look(adaptation, pod)
    watch.now += 100
    assert (await watch.look(adaptation, pod)).windows == ()


async def test_pods_in_their_nodes_network_are_not_scraped(opens: Opens) -> None:
    """Their address is the node's, where others answer."""
    sources = opens(lambda: 1e9)
    watch = Watch(1e9).open(sources, LatencyRules())
    adaptation = make_decided(since=0.0, source={"scrape": {"port": 10_255, "path": "/pods"}})
    facts = await watch.look(adaptation, make_pod("ocr-1", address="10.0.0.1", host_network=True))
    assert facts.problem is not None
    assert facts.problem.reason == "NoPodToScrape"


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        ({}, (0, "")),
        ({"prometheus.io/port": "9000", "prometheus.io/path": "/m"}, (9000, "/m")),
        ({"prometheus.io/port": "http", "prometheus.io/path": "m"}, (0, "")),
        ({"prometheus.io/port": "99999999999", "prometheus.io/path": "/m?a=http://b"}, (0, "")),
        ({"prometheus.io/port": "\u0663", "prometheus.io/path": "/a\nb"}, (0, "")),
    ],
)
def test_annotations_of_a_pod_are_believed_where_they_make_sense(annotations: dict[str, str], want: tuple[int, str]) -> None:
    """Others write them."""
    (served,) = find_target("shop", (make_pod(annotations=annotations, address="10.0.0.1"),), _order()).pods
    assert (served.port, served.path) == want


@pytest.mark.parametrize(("restarts", "want"), [(1, ()), (0, ("CountersUnshared",))], ids=["restarted", "not restarted"])
def test_a_reset_is_believed_where_a_container_was_started_again(restarts: int, want: tuple[str, ...]) -> None:
    """Elsewhere it is processes that count for themselves."""
    series = make_served(*make_histogram(resets=(20,), base="metainfer_request_duration_seconds"))
    state = ContainerState("server", restarts=restarts, started_at=datetime.fromtimestamp(series.start_unix_seconds + 300, UTC))
    found = read_window(_order(), series, (make_pod("p-0", states=(state,)),)).reading.reasons
    assert tuple(reason for reason in found if reason == "CountersUnshared") == want
