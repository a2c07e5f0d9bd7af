"""How long pods may take to start, by what their owner declares."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.decide.make_facts import LONG_AGO, make_container, make_pod, make_target, make_template

from metainfer.decide.facts import ContainerFacts, ContainerState, KubeletProbe
from metainfer.decide.startup import is_starting, rollout_seconds, start_up_seconds

HALF_AN_HOUR = KubeletProbe(period_seconds=10, failure_threshold=180)
READINESS = KubeletProbe(initial_delay_seconds=60, period_seconds=5, failure_threshold=12)


@pytest.mark.parametrize(
    ("container", "want_seconds"),
    [
        pytest.param(make_container(), 0, id="no probe: ready as soon as it runs"),
        pytest.param(make_container(startup_probe=HALF_AN_HOUR), 1800, id="startup probe"),
        pytest.param(make_container(startup_probe=replace(HALF_AN_HOUR, initial_delay_seconds=30)), 1830, id="with its delay"),
        pytest.param(make_container(readiness_probe=READINESS), 120, id="readiness probe alone: its delay and its patience"),
        pytest.param(make_container(startup_probe=HALF_AN_HOUR, readiness_probe=READINESS), 1805, id="readiness after startup: one more look"),
    ],
)
def test_the_probes_say_how_long_a_start_may_take(container: ContainerFacts, want_seconds: float) -> None:
    """Period times failures, and the delay before."""
    assert start_up_seconds(make_target("ocr", container)) == want_seconds


def test_the_slowest_container_counts_and_the_settling_time_comes_on_top() -> None:
    """minReadySeconds; with Recreate the old pod's time to end as well."""
    slow = make_container("slow", startup_probe=HALF_AN_HOUR)
    target = make_target(template=make_template(make_container(), slow, termination_grace_seconds=600), min_ready_seconds=120)
    assert start_up_seconds(target) == 1920
    assert rollout_seconds(target) == 1920
    assert rollout_seconds(replace(target, strategy="Recreate")) == 2520


def test_a_pod_starts_from_when_its_container_runs() -> None:
    """Pulling a large image is not starting."""
    target = make_target("ocr", make_container(startup_probe=HALF_AN_HOUR))
    now = LONG_AGO + timedelta(hours=1)
    assert not is_starting(target, make_pod(created_at=LONG_AGO), now)
    running = ContainerState("server", started_at=now - timedelta(minutes=29))
    assert is_starting(target, make_pod(created_at=LONG_AGO, states=(running,)), now)
    assert not is_starting(target, make_pod(created_at=LONG_AGO, states=(running,)), now + timedelta(minutes=2))
