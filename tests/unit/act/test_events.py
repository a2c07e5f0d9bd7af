from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import REGISTRY
from tests.unit.act.fake_cluster import FakeCluster

from metainfer.act.events import BURST, EventRecorder, ObjectRef, event_name
from metainfer.decide.plan import EmitEvent
from metainfer.kube.errors import ApiError, Conflict, Forbidden, ServerUnavailable

OCR = ObjectRef("metainfer.dev/v1alpha1", "ModelAdaptation", "ocr", "uid-ocr", "models")
POOL = ObjectRef("metainfer.dev/v1alpha1", "AcceleratorPool", "lab", "uid-lab")
DECIDED = EmitEvent("Normal", "PlacementDecided", "ocr runs on openvino-cpu with bf16")


@dataclass
class Clock:
    now: datetime = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **passed: float) -> None:
        self.now += timedelta(**passed)


def counts(cluster: FakeCluster) -> dict[str, int]:
    return {event["message"]: event["count"] for (kind, _, _), event in cluster.objects.items() if kind == "Event"}


async def test_an_event_is_about_the_object_in_its_namespace() -> None:
    """``kubectl describe`` shows it."""
    cluster = FakeCluster()
    assert await EventRecorder(cluster, Clock()).emit(DECIDED, OCR)
    event = cluster.objects["Event", "models", event_name(DECIDED, OCR)]
    assert (event["involvedObject"]["kind"], event["involvedObject"]["uid"], event["involvedObject"]["namespace"]) == ("ModelAdaptation", "uid-ocr", "models")
    assert (event["type"], event["reason"], event["count"], event["firstTimestamp"]) == ("Normal", "PlacementDecided", 1, "2026-03-01T12:00:00Z")


async def test_events_about_cluster_scoped_objects_are_in_the_default_namespace() -> None:
    """The API server refuses any other."""
    cluster = FakeCluster()
    await EventRecorder(cluster, Clock()).emit(DECIDED, POOL)
    (event,) = cluster.objects.values()
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]


async def test_the_same_words_again_raise_the_count() -> None:
    """One line in ``kubectl get events``, not five."""
    cluster, clock = FakeCluster(), Clock()
    recorder = EventRecorder(cluster, clock)
    for _ in range(5):
        await recorder.emit(DECIDED, OCR)
        clock.advance(seconds=30)
    assert counts(cluster) == {DECIDED.message: 5}
    (event,) = cluster.objects.values()
    assert (event["firstTimestamp"], event["lastTimestamp"]) == ("2026-03-01T12:00:00Z", "2026-03-01T12:02:00Z")


async def test_a_restart_goes_on_counting() -> None:
    """What was said before is on the API server, not in memory."""
    cluster = FakeCluster()
    for _ in range(2):
        await EventRecorder(cluster, Clock()).emit(DECIDED, OCR)
    assert counts(cluster) == {DECIDED.message: 2}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param((EmitEvent("Normal", "PlacementDecided", "another family"), OCR), id="another message"),
        pytest.param((EmitEvent("Normal", "Validated", DECIDED.message), OCR), id="another reason"),
        pytest.param((EmitEvent("Warning", "PlacementDecided", DECIDED.message), OCR), id="another type"),
        pytest.param((DECIDED, ObjectRef("v", "ModelAdaptation", "ocr", "uid-2", "models")), id="another object of that name"),
    ],
)
async def test_other_words_are_another_event(other: tuple[EmitEvent, ObjectRef]) -> None:
    """Nothing is merged that differs."""
    cluster = FakeCluster()
    recorder = EventRecorder(cluster, Clock())
    await recorder.emit(DECIDED, OCR)
    await recorder.emit(*other)
    assert len(cluster.objects) == 2


async def test_a_loop_of_events_is_braked_and_counted() -> None:
    """A thousand repetitions in a minute are ten writes; the count is right at the next one."""
    cluster, clock = FakeCluster(), Clock()
    recorder = EventRecorder(cluster, clock)
    written = [await recorder.emit(DECIDED, OCR) for _ in range(1000)]
    assert sum(written) == BURST
    clock.advance(minutes=1)
    assert await recorder.emit(DECIDED, OCR)
    assert counts(cluster) == {DECIDED.message: 1001}


async def test_what_is_told_is_counted_for_alerts() -> None:
    """By reason, and runs by their trigger, which is the first word of what is told of their start."""
    recorder = EventRecorder(FakeCluster(), Clock())
    await recorder.emit(EmitEvent("Warning", "CountedVerdict", "the card is slower"), OCR)
    await recorder.emit(EmitEvent("Normal", "AdaptationStarted", "CountedTrigger: another driver: 5 -> 6"), OCR)
    told = {"kind": "ModelAdaptation", "type": "Warning", "reason": "CountedVerdict"}
    assert REGISTRY.get_sample_value("metainfer_events_total", told) == 1
    assert REGISTRY.get_sample_value("metainfer_runs_started_total", {"trigger": "CountedTrigger"}) == 1


async def test_one_objects_loop_does_not_silence_another() -> None:
    """The brake is per object."""
    cluster = FakeCluster()
    recorder = EventRecorder(cluster, Clock())
    for number in range(100):
        await recorder.emit(EmitEvent("Warning", "ProbeFailed", f"attempt {number}"), POOL)
    assert len(cluster.objects) == BURST
    assert await recorder.emit(DECIDED, OCR)


async def test_a_long_name_leaves_room_for_the_rest() -> None:
    """Names of Events are bounded like any other's."""
    name = event_name(DECIDED, ObjectRef("v", "ModelAdaptation", "x" * 250 + ".y", "uid", "models"))
    assert len(name) <= 253


@pytest.mark.parametrize(
    "error", [Forbidden(403, "Forbidden", "namespace is being terminated"), ServerUnavailable(503, "", "down"), Conflict(409, "Conflict", "")]
)
@pytest.mark.parametrize("verb", ["get", "create"])
async def test_an_event_that_cannot_be_written_is_dropped(error: ApiError, verb: str) -> None:
    """Events are no interface: no pass fails because of one."""
    cluster = FakeCluster(failures={verb: error})
    assert not await EventRecorder(cluster, Clock()).emit(DECIDED, OCR)


async def test_what_stays_true_is_said_once_in_its_quiet_time() -> None:
    """Every look finds it again; the user needs to be told as often as Events are forgotten. Another message is news at once."""
    cluster, clock = FakeCluster(), Clock()
    events = EventRecorder(cluster, clock)
    left = EmitEvent("Warning", "FieldsLeft", "env A", quiet_seconds=3600)
    assert [await events.emit(left, OCR) for _ in range(3)] == [True, False, False]
    assert await events.emit(EmitEvent("Warning", "FieldsLeft", "env B", quiet_seconds=3600), OCR)
    clock.now += timedelta(hours=1)
    assert await events.emit(left, OCR)
