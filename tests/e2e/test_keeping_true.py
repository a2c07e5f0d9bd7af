"""What comes after the first placement: more load is no slow card, and a slow card is left. One server under real load, with short clocks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bring_up import ensure_models
from lab import Lab
from scenarios.plays import begin_under_load, play_more_load, play_slow_card
from scenarios.prometheus import Prometheus
from scenarios.report import Report
from scenarios.stage import MODEL, Stage, make_namespace, open_stage
from scenarios.watched import Watched

pytestmark = [pytest.mark.e2e, pytest.mark.cluster]
NAMESPACE = "e2e-keeping"


@pytest.fixture(scope="module")
def stage(lab: Lab, pool: str, prometheus: Prometheus, models: Path) -> Iterator[Stage]:
    """A namespace that Prometheus follows."""
    ensure_models(lab, print, MODEL)
    make_namespace(lab, NAMESPACE, models)
    with open_stage(lab, prometheus, NAMESPACE) as opened:
        yield opened
    lab.kubectl("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=120s", timeout_seconds=130)
    lab.kubectl("delete", "persistentvolume", f"models-{NAMESPACE}", "--ignore-not-found")


@pytest.fixture(scope="module")
def watched(stage: Stage) -> Watched:
    """Decided, in place, and with its baselines."""
    return begin_under_load(stage, "kept", lambda _moment: None)


def test_more_load_alone_writes_nothing(stage: Stage, watched: Watched) -> None:
    """The service is slower because it is busier: the verdict says Load, the Deployment stays as it is, and peace returns with the usual load."""
    report = Report("more load")
    play_more_load(stage, watched, report)
    assert report.problems == []


def test_a_card_that_becomes_slow_is_found_and_left(watched: Watched) -> None:
    """A real quota on the node: P99 drifts, the check on that very node says Card, the pods move, and P99 is what it was."""
    report = Report("slow card")
    play_slow_card(watched, report)
    assert report.problems == []
