"""A choice that is tried first (``rollout.canary``), for real: pods of it behind the same Service, judged on what they serve, promoted or taken away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from lab import condition

from scenarios.report import Report
from scenarios.servers import BURNS, START, make_separable, serve_elsewhere
from scenarios.stage import OTHER_MODEL, Stage
from scenarios.watched import Moment, Watched, say
from scenarios.written import differences, is_rolled_out, own

LOAD = ("--rate", "5", "--even", "--reconnect")
"""Of requests of 900 KB. A Service chooses a pod per connection: on connections that are kept, the trial would be asked nothing."""
DRIFT = {"p99IncreasePercent": 50, "windows": 2, "window": "30s", "minRequests": 50}
"""A window has 150 requests, of which chance gives 63 to 87 to each of two pods in 19 windows of 20."""
ROLLOUT: Mapping[str, Any] = {"canary": {"sharePercent": 20, "limit": "15m"}, "watch": "1m"}
TRIAL, DECISION, PREIMAGE = "metainfer.dev/canary-of", "metainfer.dev/decision", "metainfer.dev/pre-image"
FIGURES_OVER = "60s"
Hook = Callable[[Moment], None]


def canary(stage: Stage, report: Report, on_change: Hook) -> None:
    """A choice that really is better is tried, promoted and written; no request fails, and nothing of the trial is left."""
    watched, before = _serve(stage, report, "canary", START, on_change)
    _play_trial(watched, before, report, want_outcome="Promoted")
    written = watched.wait("the choice in place", lambda moment: moment.is_ready and is_rolled_out(moment.deployment), 300)
    report.mark("in place")
    _expect_nothing_left(stage, watched, report)
    _expect_ordinary(stage, before, written, report)
    _expect_event(stage, watched, report, "CanaryPromoted")
    after = watched.stand(65)
    report.note("p99_ms_after", _p99_ms(watched, f"{watched.name}-.*"))
    report.expect(after.generation == written.generation, "it was written again")
    _note_answers(stage, watched, report)


def canary_slower(stage: Stage, report: Report, on_change: Hook) -> None:
    """A choice that measured well and serves slower is found out on trial: the Deployment is never written, and nothing of the trial is left."""
    watched, before = _serve(stage, report, "canary-slower", BURNS, on_change)
    _play_trial(watched, before, report, want_outcome="Worse")
    _expect_nothing_left(stage, watched, report)
    found = watched.wait("it is told", lambda moment: _told(moment)["status"] == "True", 60)
    report.expect(_told(found)["reason"] == "CanaryWorse", f"RolledBack is {_told(found)['reason']}, not CanaryWorse")
    say(f"    {_told(found)['message']}")
    _expect_event(stage, watched, report, "CanaryWorse")
    after = watched.stand(65)
    report.note("p99_ms_after", _p99_ms(watched, f"{watched.name}-.*"))
    report.expect(after.generation == before["metadata"]["generation"], "the Deployment was written")
    for line in differences("", own(before), own(after.deployment)):
        report.expect(False, f"the Deployment is not what it was: {line}")
    report.expect("metainfer" not in _managers(after.deployment), "the operator owns fields of the Deployment")
    report.expect(not _names_on_trial(stage), "a trial was begun again")
    _note_answers(stage, watched, report, may_fail=True)


def _serve(stage: Stage, report: Report, name: str, script: str, on_change: Hook) -> tuple[Watched, Mapping[str, Any]]:
    """A server under load that nobody adapts yet, and its Deployment."""
    watched = serve_elsewhere(stage, name, script, prepare=make_separable)
    watched.on_change = on_change
    stage.send(f"{name}-load", *LOAD, to=name, model=OTHER_MODEL)
    say("a minute of load, to compare with later")
    time.sleep(65)
    report.note("p99_ms_before", _p99_ms(watched, f"{name}-.*"))
    before = stage.lab.find("deployment", name, stage.namespace) or {}
    report.disturb("an adaptation that wants its choice tried first")
    stage.adapt(name, OTHER_MODEL, drift=DRIFT, rollout=ROLLOUT)
    return watched, before


def _play_trial(watched: Watched, before: Mapping[str, Any], report: Report, *, want_outcome: str) -> None:
    """From the adaptation to the verdict; the Deployment is not touched before that."""
    begun = watched.wait("a trial", lambda moment: bool(moment.trial), 600)
    report.mark("trial begun")
    tried = watched.wait("a trial that serves", lambda moment: "readyAt" in moment.trial or _ended(moment), 300)
    report.mark("trial serves")
    for moment in (begun, tried):
        untouched = moment.generation == before["metadata"]["generation"]
        report.expect(untouched or _ended(moment), "the Deployment was written before the verdict")
    found = watched.wait("a verdict on the trial", _ended, 900)
    report.mark("judged")
    report.note("p99_ms_trial", _p99_ms(watched, "mi-canary-.*"))
    report.note("p99_ms_beside", _p99_ms(watched, f"{watched.name}-.*"))
    outcome, words = found.trial["outcome"], found.trial.get("message", "")
    report.expect(outcome == want_outcome, f"the trial ended as {outcome} ({words}), not {want_outcome}")
    say(f"    {words}")


def _ended(moment: Moment) -> bool:
    return bool(moment.trial.get("outcome", "Running") != "Running")


def _told(moment: Moment) -> Mapping[str, Any]:
    return condition(moment.item, "RolledBack")


def _p99_ms(watched: Watched, pods: str) -> float | None:
    seconds = watched.p99_seconds(pods, FIGURES_OVER)
    return None if seconds is None else round(seconds * 1000, 1)


def _names_on_trial(stage: Stage) -> list[str]:
    """Whatever carries the label of a trial."""
    kinds = "deployments,replicasets,pods"
    items = stage.lab.list(kinds, stage.namespace, TRIAL)
    return sorted(f"{item['kind']} {item['metadata']['name']}" for item in items)


def _expect_nothing_left(stage: Stage, watched: Watched, report: Report) -> None:
    deadline = time.monotonic() + 120
    while (left := _names_on_trial(stage)) and time.monotonic() < deadline:
        watched.stand(1)
    report.mark("trial gone")
    report.expect(not left, f"left of the trial: {', '.join(left)}")


def _expect_ordinary(stage: Stage, before: Mapping[str, Any], written: Moment, report: Report) -> None:
    """The Deployment is what it was with the ready patch over it, as anybody could have applied it, and the two annotations of every placement."""
    recommended = written.status.get("recommendation") or {}
    patch = ("patch", "--local", "-f", "-", "--type=strategic", "-p", recommended.get("patch", "{}"), "-o", "json")
    ordinary = own(json.loads(stage.lab.kubectl(*patch, stdin=json.dumps(before))))
    found = own(written.deployment)
    mark = {DECISION: recommended.get("decisionId")}
    ordinary["annotations"] |= mark | {PREIMAGE: found["annotations"].get(PREIMAGE, "missing")}
    template = ordinary["spec"]["template"]["metadata"]
    template["annotations"] = (template.get("annotations") or {}) | mark
    for deployment in (ordinary, found):
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            container["env"].sort(key=lambda entry: entry["name"])
    report.expect(found != own(before), "nothing was written")
    for line in differences("", ordinary, found):
        report.expect(False, f"the Deployment is not as after an ordinary placement: {line}")


def _expect_event(stage: Stage, watched: Watched, report: Report, reason: str) -> None:
    events = [event for event in stage.lab.list("events", stage.namespace) if event["involvedObject"]["name"] == watched.name]
    told = [event["message"] for event in events if event["reason"] == reason]
    report.expect(len(told) == 1, f"{len(told)} Events say {reason}")


def _managers(deployment: Mapping[str, Any]) -> set[str]:
    return {str(entry.get("manager")) for entry in deployment["metadata"].get("managedFields", ())}


def _note_answers(stage: Stage, watched: Watched, report: Report, *, may_fail: bool = False) -> None:
    """Of all requests since the load began; a request on a connection of its own fails whenever the pod behind it does not answer."""
    answers = stage.answers(f"{watched.name}-load")
    report.note("requests_answered", answers.requests)
    report.note("requests_failed", list(answers.failures))
    report.expect(may_fail or not answers.failures, f"requests failed: {'; '.join(answers.failures)}")
