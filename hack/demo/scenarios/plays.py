"""The scenarios: what is disturbed, and what has to come of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from lab import LabError

from scenarios.canary import canary, canary_slower
from scenarios.nodes import throttled
from scenarios.report import Report
from scenarios.servers import BURNS, REFUSES, serve_elsewhere
from scenarios.stage import OTHER_MODEL, WINDOW_SECONDS, Stage, await_baselines, await_decision
from scenarios.watched import Moment, Watched, say
from scenarios.written import differences, is_rolled_out, newest, own

USUAL_LOAD = ("--rate", "25", "--even")
"""About a quarter of what one server can do. At equal distances: chance would make windows of 10 s differ by 6 %."""
MORE_CLIENTS = "6"
"""Fewer than candidates were measured under (spec.load.clients): busier, and still within what was validated."""
SLOW_PERCENT = 35
"""Of a processor: enough for the usual load, three times as slow."""
MUCH = 1.5
"""A drift of 50 % counts in these adaptations; what is back is below that."""
DETECT_SECONDS = 12 * WINDOW_SECONDS
Hook = Callable[[Moment], None]


def begin(stage: Stage, name: str, on_change: Hook, **spec: Any) -> Watched:
    """A server that is adapted; nobody asks it anything yet. It does not begin on the card that is slow from the start."""
    with stage.closed(stage.degraded_nodes()):
        watched = stage.serve(name)
    watched.on_change = on_change
    stage.adapt(name, **spec)
    await_decision(watched)
    return watched


def begin_under_load(stage: Stage, name: str, on_change: Hook, **spec: Any) -> Watched:
    """The same under the usual load, with everything to compare with later."""
    watched = begin(stage, name, on_change, **spec)
    stage.send(f"{name}-load", *USUAL_LOAD, to=name)
    await_baselines(watched)
    watched.stand(3 * WINDOW_SECONDS)  # the first check ran beside the server: windows that it disturbed are not what is played here
    return watched


def slow_card(stage: Stage, report: Report, on_change: Hook) -> None:
    """A node gets really slower under load: the check says so, traffic moves, P99 is back."""
    watched = begin_under_load(stage, "slow-card", on_change)
    play_slow_card(watched, report)


def play_slow_card(watched: Watched, report: Report) -> None:
    """The disturbance alone."""
    before = watched.look()
    (node,) = watched.nodes()
    usual = watched.p99_seconds()
    if usual is None:
        raise LabError("Prometheus has no P99 of the usual load")
    report.note("p99_ms_usual", round(usual * 1000, 1))
    report.disturb(f"{node} gets {SLOW_PERCENT} % of a processor")
    with throttled(node, SLOW_PERCENT):
        watched.wait("a suspicion of P99Drift", lambda moment: moment.suspicion == "P99Drift", DETECT_SECONDS)
        report.mark("noticed")
        report.note("p99_ms_slow", round((watched.p99_seconds() or 0) * 1000, 1))
        found = watched.wait("a verdict", lambda moment: moment.verdict != before.verdict, 180)
        report.mark("judged")
        report.expect(found.verdict["verdict"] == "Card", f"the verdict is {found.verdict['verdict']} ({found.verdict.get('message')}), not Card")
        report.expect(found.verdict["node"] == node, f"the check looked at {found.verdict['node']}, the slow node is {node}")
        _wait_for_nodes(watched, node)
        report.mark("moved")
        _wait_for_p99(watched, usual * MUCH)
        report.mark("recovered")
        report.note("p99_ms_after", round((watched.p99_seconds() or 0) * 1000, 1))
        watched.wait("Ready again", lambda moment: moment.is_ready, 120)


def _wait_for_nodes(watched: Watched, left: str) -> None:
    deadline = time.monotonic() + 420
    while not (nodes := watched.nodes()) or left in nodes:
        if time.monotonic() > deadline:
            raise LabError(f"the pods did not leave {left}: {watched.look().words}")
        watched.stand(1)


def _wait_for_p99(watched: Watched, bound_seconds: float) -> None:
    deadline = time.monotonic() + 180
    while (p99 := watched.p99_seconds()) is None or p99 > bound_seconds:
        if time.monotonic() > deadline:
            raise LabError(f"P99 stays at {p99} s, above {bound_seconds:.4f} s")
        watched.stand(1)


def more_load(stage: Stage, report: Report, on_change: Hook) -> None:
    """More requests and nothing else: the verdict is Load, nothing is written."""
    watched = begin_under_load(stage, "more-load", on_change)
    play_more_load(stage, watched, report)


def play_more_load(stage: Stage, watched: Watched, report: Report) -> None:
    """The disturbance alone."""
    before = watched.look()
    report.note("requests_per_second_usual", round(watched.requests_per_second(), 1))
    report.disturb(f"{MORE_CLIENTS} clients more, each asking all the time")
    stage.send(f"{watched.name}-more", "--clients", MORE_CLIENTS, to=watched.name)
    try:
        noticed = watched.wait("a suspicion about the load", lambda moment: moment.suspicion != "", DETECT_SECONDS)
        report.mark("noticed")
        report.expect(noticed.suspicion in ("P99Drift", "LoadShifted"), f"{noticed.suspicion} was suspected")
        report.note("requests_per_second_more", round(watched.requests_per_second(), 1))
        found = watched.wait("a verdict", lambda moment: moment.verdict != before.verdict, 180)
        report.mark("judged")
        report.expect(found.verdict["verdict"] == "Load", f"the verdict is {found.verdict['verdict']} ({found.verdict.get('message')}), not Load")
        after = watched.stand(2 * WINDOW_SECONDS)
        report.expect(after.generation == before.generation, "the Deployment was written")
    finally:
        stage.stop(f"{watched.name}-more")
    calm = watched.wait("nothing suspected any more", lambda moment: moment.suspicion == "", DETECT_SECONDS)
    report.mark("calm again")
    report.expect(calm.generation == before.generation, "the Deployment was written")


def new_driver(stage: Stage, report: Report, on_change: Hook) -> None:
    """Half of a family's nodes get another driver: one re-check of what runs on that family, none of what does not."""
    affected, other = _two_families(stage, on_change)
    nodes = stage.family_nodes("openvino-cpu")
    before = {watched.name: watched.look() for watched in (affected, other)}
    driver = stage.lab.get(f"/api/v1/nodes/{nodes[0]}")["metadata"]["labels"]["card.metainfer.dev/driver-version"]
    report.disturb(f"driver of {', '.join(nodes[: len(nodes) // 2])}: {driver} -> {driver}-r2")
    try:
        stage.label(nodes[: len(nodes) // 2], f"card.metainfer.dev/driver-version={driver}-r2")
        _expect_one_answer(affected, before[affected.name], report)
        rest = other.stand(30)
        report.expect(_answers_since(before[affected.name], affected.look()) == 1, "more than one re-check of the affected adaptation")
        report.expect(_answers_since(before[other.name], rest) == 0, "the other family's adaptation was checked or run anew")
    finally:
        stage.label(nodes, f"card.metainfer.dev/driver-version={driver}")


def lost_labels(stage: Stage, report: Report, on_change: Hook) -> None:
    """Labels that vanish for a minute and labels that flap: nothing is checked, run or written."""
    affected, other = _two_families(stage, on_change)
    nodes = stage.family_nodes("openvino-cpu")
    labels = stage.lab.get(f"/api/v1/nodes/{nodes[0]}")["metadata"]["labels"]
    ours = {key: value for key, value in labels.items() if key.startswith("card.metainfer.dev/")}
    before, others = affected.look(), other.look()
    report.disturb(f"all labels of {', '.join(nodes)} vanish for 60 s")
    try:
        stage.label(nodes, *(f"{key}-" for key in ours))
        on_change(affected.look())  # nothing is to change that would call it
        affected.stand(60)
    finally:
        stage.label(nodes, *(f"{key}={value}" for key, value in ours.items()))
    _expect_calm(affected, before, report, "after labels vanished and came back")
    key, driver = "card.metainfer.dev/driver-version", ours["card.metainfer.dev/driver-version"]
    report.disturb("the driver's label flaps for 90 s, every 5 s")
    try:
        for number in range(18):
            stage.label(nodes, f"{key}={driver}-x" if number % 2 == 0 else f"{key}={driver}")
            affected.stand(5)
    finally:
        stage.label(nodes, f"{key}={driver}")
    _expect_calm(affected, before, report, "after labels that flapped")
    report.expect(_answers_since(others, other.look()) == 0, "the other family's adaptation was checked or run anew")


def old_answer(stage: Stage, report: Report, on_change: Hook) -> None:
    """An answer that reached its age: one re-check, and no write where the answer is the same."""
    watched = begin(stage, "old-answer", on_change, freshness="2m")
    before = watched.look()
    report.disturb("the answer gets two minutes old")
    _expect_one_answer(watched, before, report)
    after = watched.stand(30)
    report.expect(_answers_since(before, after) == 1, "more than one re-check")
    report.expect(after.generation == before.generation, "the Deployment was written though the answer is the same")
    report.expect(after.is_ready, "it is not Ready afterwards")


SLOW_LOAD = ("--rate", "4", "--even")
"""Of requests of 900 KB."""
SLOW_DRIFT = {"p99IncreasePercent": 50, "windows": 2, "window": "20s", "minRequests": 50}


def failing_choice(stage: Stage, report: Report, on_change: Hook) -> None:
    """A choice that measured well and does not start: it is taken back, and the Deployment is what it was, field by field."""
    watched = serve_elsewhere(stage, "failing", REFUSES)
    watched.on_change = on_change
    _play_taken_back(stage, watched, report, want_reason="RolloutFailed")


def slower_choice(stage: Stage, report: Report, on_change: Hook) -> None:
    """A choice that measured well and serves slower under real load: it is taken back, and the Deployment is what it was, field by field."""
    watched = serve_elsewhere(stage, "slower", BURNS)
    watched.on_change = on_change
    stage.send("slower-load", *SLOW_LOAD, to="slower", model=OTHER_MODEL)
    say("a minute of load, to compare with later")
    time.sleep(60)
    _play_taken_back(stage, watched, report, want_reason="LatencyWorse", drift=SLOW_DRIFT, rollout={"watch": "2m"})


def _play_taken_back(stage: Stage, watched: Watched, report: Report, *, want_reason: str, **spec: Any) -> None:
    before = stage.lab.find("deployment", watched.name, stage.namespace) or {}
    report.disturb("an adaptation whose choice is worse than what is there")
    stage.adapt(watched.name, OTHER_MODEL, **spec)
    watched.wait("something is written", lambda moment: moment.generation > before["metadata"]["generation"], 600)
    report.mark("written")
    watched.wait("it is taken back", lambda moment: newest(moment).get("outcome") == "RolledBack", 300)
    report.mark("taken back")
    taken_back = watched.wait("the pods as before", lambda moment: bool(watched.nodes()) and is_rolled_out(moment.deployment), 180)
    report.mark("serving as before")
    report.expect(newest(taken_back).get("reason") == want_reason, f"the reason is {newest(taken_back).get('reason')}, not {want_reason}")
    for line in differences("", own(before), own(taken_back.deployment)):
        report.expect(False, f"the Deployment is not what it was: {line}")
    after = watched.stand(30)
    report.expect(after.generation == taken_back.generation, "it was written again")


def _two_families(stage: Stage, on_change: Hook) -> tuple[Watched, Watched]:
    """One server that can only run on the family that is disturbed, and one that has never been there."""
    space = {"precisions": ["fp32"], "batchSizes": [1], "concurrencies": [1]}
    with stage.closed(stage.family_nodes("openvino-cpu")):
        other = begin(stage, "on-ort", lambda _moment: None, configSpace={**space, "executionProviders": ["CPUExecutionProvider"]})
    affected = begin(stage, "on-openvino", on_change, configSpace={**space, "executionProviders": ["OpenVINOExecutionProvider"]})
    return affected, other


def _answers_since(before: Moment, after: Moment) -> int:
    """Re-checks: runs that are others than before, and checks that were made for another reason than the baseline."""
    runs = int(before.run.get("id") != after.run.get("id"))
    return max(runs, after.count_jobs("check") - before.count_jobs("check"))


def _expect_one_answer(watched: Watched, before: Moment, report: Report) -> None:
    watched.wait("a re-check", lambda moment: _answers_since(before, moment) > 0, 300)
    report.mark("re-check begun")
    watched.wait("the answer", lambda moment: moment.is_ready and not moment.check.get("claim") and moment.run.get("step") == "Done", 300)
    report.mark("answered")


def _expect_calm(watched: Watched, before: Moment, report: Report, when: str) -> None:
    after = watched.stand(45)
    report.expect(_answers_since(before, after) == 0, f"something was checked or run {when}")
    report.expect(after.generation == before.generation, f"the Deployment was written {when}")
    report.expect(after.is_ready, f"it is not Ready {when}")


Play = Callable[[Stage, Report, Hook], None]
PLAYS: Mapping[str, Play] = {
    "slow-card": slow_card,
    "more-load": more_load,
    "new-driver": new_driver,
    "lost-labels": lost_labels,
    "old-answer": old_answer,
    "failing-choice": failing_choice,
    "slower-choice": slower_choice,
    "canary": canary,
    "canary-slower": canary_slower,
}
