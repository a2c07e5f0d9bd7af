"""A decision on trial: on a few pods of its own, behind the same Service, and compared with those beside it in the same windows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.unit.decide.keeping.make_windows import make_window
from tests.unit.decide.make_facts import CARD, make_container, make_pod, make_target
from tests.unit.decide.make_world import OPENVINO, World, kinds, make_world

from metainfer.api.v1alpha1.common import CANARY_LABEL, DECISION_ANNOTATION, LabelSelector
from metainfer.api.v1alpha1.model_adaptation import CanaryStatus, Rollout
from metainfer.decide.canary.reach import find_labels
from metainfer.decide.canary.trying import report_canary_refused
from metainfer.decide.conditions import parse_time
from metainfer.decide.facts import CanaryFacts, CanarySurroundings, ContainerState, PodFacts
from metainfer.decide.families import Exclusion
from metainfer.decide.latency.served import LatencyProblem, ServedFacts, ServedWindow
from metainfer.decide.plan import ApplyTarget, CreateCanary, DeleteCanary, EmitEvent, RecordDecision, RestoreTarget

UID = "uid-adaptation-ocr"
LABELS = {"app": "ocr", "part": "server"}
AROUND = CanarySurroundings(services={"ocr": {"part": "server"}, "other": {"app": "web"}, "outside": {}})
WORSE, SAME = {"p99_ms": 60.0, "mean_ms": 16.0}, {"p99_ms": 41.0, "mean_ms": 11.0}


@dataclass
class Trial:
    """A world with a Service, a source of latency, and our own Deployment while there is one."""

    world: World
    around: CanarySurroundings = AROUND
    made: CreateCanary | None = None
    pod: dict[str, Any] = field(default_factory=dict)
    windows: list[ServedWindow] = field(default_factory=list)
    beside: list[ServedWindow] = field(default_factory=list)

    def turn(self) -> None:
        """One pass; what it makes is there in the next."""
        applies = self.world.applies
        snapshot = self.world.snapshot
        problem = None if self.world.snapshot.served is None else self.world.snapshot.served.problem
        served = ServedFacts(tuple(self.beside), problem, self.world.now + timedelta(seconds=60) if problem is None else None)
        self.world.snapshot = replace(snapshot, served=served, canary=self._facts())
        plan = self.world.turn()
        for action in plan.actions:
            if isinstance(action, CreateCanary):
                self.made = action
            elif isinstance(action, DeleteCanary):
                self.made = None
        assert self.world.applies in (applies, applies + 1)

    def turns(self, count: int) -> None:
        """So many."""
        for _ in range(count):
            self.turn()

    def serve(self, *, beside: dict[str, Any] | None = None, **fields: Any) -> None:
        """One window later: what the pods on trial served, and those beside them."""
        ready_at = self.status.ready_at
        assert ready_at is not None
        ends = self._next(parse_time(ready_at))
        self.windows.append(replace(make_window(0, **fields), ended_at=ends))
        self.beside.append(replace(make_window(0, **(beside or {})), ended_at=ends))
        self.world.now = ends + timedelta(seconds=20)
        self.turn()

    @property
    def status(self) -> CanaryStatus:
        """Of the trial."""
        assert self.world.status.canary is not None
        return self.world.status.canary

    def _next(self, ready_at: datetime) -> datetime:
        return ready_at + (len(self.windows) + 1) * timedelta(minutes=15)

    def _facts(self) -> CanaryFacts | None:
        if self.world.status.recommendation is None:
            return None
        if self.made is None:
            return CanaryFacts(self.around)
        ready = self.pod.get("ready", True)
        template = replace(make_target("ocr").template, labels=self.made.labels, annotations={DECISION_ANNOTATION: self.made.apply.decision_id})
        deployment = make_target(self.made.name, template=template, available_replicas=int(ready), uid="uid-canary", labels={CANARY_LABEL: UID})
        return CanaryFacts(self.around, deployment, (self._make_pod(),), ServedFacts(tuple(self.windows)))

    def _make_pod(self) -> PodFacts:
        assert self.made is not None
        containers = self.made.apply.body["spec"]["template"]["spec"].get("containers", [])
        env = {entry["name"]: entry["value"] for item in containers for entry in item["env"]}
        fields = {"node": f"{OPENVINO}-2", "ready": True, "annotations": {DECISION_ANNOTATION: self.made.apply.decision_id}, "labels": dict(self.made.labels)}
        return make_pod("canary-1", make_container(env=env), **(fields | self.pod))


def make_trial(**fields: Any) -> Trial:
    """Decided, and about to be tried."""
    target = make_target("ocr", make_container(requests={CARD: 1}), match_labels={"app": "ocr"}, **fields.pop("target", {}))
    target = replace(target, template=replace(target.template, labels=LABELS))
    rollout = {"canary": {"sharePercent": 20, "limit": "3h"}} | fields.pop("rollout", {})
    trial = Trial(make_world(spec={"rollout": rollout}, target=target), **fields)
    for _ in range(30):
        trial.turn()
        if trial.world.status.canary is not None or trial.world.condition("Applied")[1] in ("CanaryNoRoom", "CanaryPreparing"):
            break
    trial.turn()
    return trial


def outcome_of(trial: Trial) -> tuple[str, str]:
    """And its reason."""
    return trial.status.outcome, trial.status.reason


def test_a_decision_is_tried_on_pods_that_the_service_reaches_and_the_deployment_does_not_count() -> None:
    """One in five, at least one; nothing is written meanwhile, and the condition says how far it is."""
    trial = make_trial()
    made, recommendation = trial.made, trial.world.status.recommendation
    assert made is not None
    assert recommendation is not None
    assert (made.replicas, dict(made.labels), made.owner["uid"]) == (1, {"part": "server", CANARY_LABEL: UID}, UID)
    assert (made.apply.decision_id, trial.world.applies) == (recommendation.decision_id, 0)
    assert trial.world.condition("Ready") == ("False", "CanaryRunning")
    assert len(kinds(trial.world.actions, CreateCanary)) == 1
    assert "CanaryStarted" in [event.reason for event in kinds(trial.world.actions, EmitEvent)]


def test_a_trial_that_serves_as_well_is_taken_away_and_written() -> None:
    """Three windows have to agree; promotion, clean-up and the write are one pass."""
    trial = make_trial()
    for _ in range(2):
        trial.serve(**SAME)
        assert outcome_of(trial)[0] == "Running"
    trial.serve(**SAME)
    assert (outcome_of(trial), trial.made, trial.world.applies) == (("Promoted", "CanaryPromoted"), None, 1)
    trial.turns(3)
    assert trial.world.condition("Ready") == ("True", "Applied")
    assert len(kinds(trial.world.actions, CreateCanary)) == 1


def test_a_trial_that_is_hardly_asked_is_not_promoted_for_being_fast() -> None:
    """Clients that keep their connections leave it with next to nothing: windows with half the rate of each pod beside it, or more, have to agree."""
    trial = make_trial()
    for _ in range(3):
        trial.serve(**SAME, per_second=2.0, replicas=1.0, beside={"per_second": 20.0})
    assert (trial.status.outcome, trial.world.applies) == ("Running", 0)
    assert "less than half of the requests" in trial.world.message("Applied")
    for _ in range(3):
        trial.serve(**SAME, per_second=6.0, replicas=1.0, beside={"per_second": 20.0})
    assert (trial.status.outcome, trial.world.applies) == ("Promoted", 1)


def test_hardly_asked_is_told_of_services_that_are_seldom_asked_too() -> None:
    """Less than one request in two minutes for each pod beside it, in windows of a day."""
    trial = make_trial()
    for _ in range(3):
        trial.serve(**SAME, per_second=0.002, replicas=1.0, beside={"per_second": 0.014})
    assert (trial.status.outcome, trial.world.applies) == ("Running", 0)
    assert "less than half of the requests" in trial.world.message("Applied")
    for _ in range(3):
        trial.serve(**SAME, per_second=0.007, replicas=1.0, beside={"per_second": 0.014})
    assert (trial.status.outcome, trial.world.applies) == ("Promoted", 1)


def test_a_trial_that_is_slow_though_hardly_asked_is_worse() -> None:
    """Clients that wait for their answers ask a slow pod less: that is no excuse."""
    trial = make_trial()
    for _ in range(3):
        trial.serve(**WORSE, per_second=2.0, replicas=1.0, beside={"per_second": 20.0})
    assert outcome_of(trial) == ("Worse", "CanaryWorse")


def test_an_idle_moment_among_slow_windows_acquits_nobody() -> None:
    """Slow whenever it was asked is slow."""
    trial = make_trial()
    for _ in range(2):
        trial.serve(**WORSE, per_second=10.0, replicas=1.0, beside={"per_second": 20.0})
    trial.serve(**SAME, per_second=2.0, replicas=1.0, beside={"per_second": 20.0})
    trial.serve(**WORSE, per_second=10.0, replicas=1.0, beside={"per_second": 20.0})
    assert outcome_of(trial) == ("Worse", "CanaryWorse")


def test_where_nobody_counts_replicas_the_rates_of_few_and_many_pods_are_not_held_against_each_other() -> None:
    """A fifth of the pods has a fifth of the requests."""
    trial = make_trial()
    for _ in range(3):
        trial.serve(**SAME, per_second=2.0, replicas=None, beside={"per_second": 10.0, "replicas": None})
    assert trial.status.outcome == "Promoted"


def test_a_trial_that_serves_worse_is_taken_away_and_remembered() -> None:
    """The Deployment was never touched; the decision is not chosen again for the same inputs."""
    trial = make_trial()
    for _ in range(3):
        trial.serve(**WORSE)
    assert (outcome_of(trial), trial.made, trial.world.applies, trial.world.restores) == (("Worse", "CanaryWorse"), None, 0, 0)
    assert trial.world.condition("RolledBack") == ("True", "CanaryWorse")
    assert trial.world.status.decisions[0].outcome == "RolledBack"
    assert [record.rollback for record in kinds(trial.world.actions, RecordDecision)] == ["", "CanaryWorse"]
    trial.turns(3)
    assert trial.world.condition("Ready") == ("True", "GivenBack")
    assert (kinds(trial.world.actions, ApplyTarget), kinds(trial.world.actions, RestoreTarget)) == ([], [])


def test_a_trial_whose_pods_never_serve_fails() -> None:
    """Without a single window."""
    trial = make_trial(pod={"ready": False, "states": (ContainerState("server", waiting_reason="CrashLoopBackOff", restarts=4),)})
    trial.turn()
    assert (outcome_of(trial)[0], trial.world.condition("RolledBack")) == ("Failed", ("True", "CanaryFailed"))
    trial.turn()
    assert trial.made is None


@pytest.mark.parametrize(
    ("fields", "beside"),
    [
        pytest.param({"per_second": 0.1}, {}, id="no traffic to speak of", marks=[]),
        pytest.param({**WORSE, "per_second": 30.0}, {}, id="busier than the pods beside it"),
        pytest.param({"metric": "another"}, {}, id="another metric"),
    ],
)
def test_a_trial_of_which_nothing_can_be_told_is_given_up_and_nothing_is_written(fields: dict[str, Any], beside: dict[str, Any]) -> None:
    """Inconclusive is no yes."""
    trial = make_trial()
    if "per_second" in fields and fields["per_second"] < 1:
        trial.beside, trial.world.now = [], trial.world.now + timedelta(hours=4)
        trial.turn()
    for _ in range(0 if trial.status.outcome != "Running" else 13):
        trial.serve(beside=beside, **fields)
    assert (outcome_of(trial), trial.world.applies) == (("Inconclusive", "CanaryInconclusive"), 0)
    trial.turns(3)
    assert (trial.made, trial.world.condition("Applied"), trial.world.condition("RolledBack")[0]) == (None, ("False", "CanaryInconclusive"), "False")
    assert trial.world.condition("Ready") == ("True", "Recommended")


@pytest.mark.parametrize(
    ("around", "want_reason"),
    [
        pytest.param(CanarySurroundings(services={"ocr": {"app": "ocr"}}), "CanaryNotSeparable", id="the Service selects on what the Deployment selects on"),
        pytest.param(CanarySurroundings(services={"other": {"app": "web"}, "none": {}}), "CanaryNoService", id="no Service"),
        pytest.param(CanarySurroundings(unread="services is forbidden"), "CanaryForbidden", id="no right to look"),
        pytest.param(
            replace(AROUND, budgets={"all": LabelSelector.model_validate({"matchLabels": {"part": "server"}})}), "CanaryCounted", id="counted by a budget"
        ),
        pytest.param(replace(AROUND, budgets={"odd": None}), "CanaryCounted", id="a budget that cannot be read"),
    ],
)
def test_what_cannot_be_tried_is_written_in_place_and_says_why(around: CanarySurroundings, want_reason: str) -> None:
    """No trial is better than one that disturbs."""
    trial = make_trial(around=around)
    assert (outcome_of(trial), trial.world.applies) == (("Skipped", want_reason), 1)
    assert kinds(trial.world.actions, CreateCanary) == []
    assert want_reason in [event.reason for event in kinds(trial.world.actions, EmitEvent)]


def test_a_budget_that_does_not_count_them_is_none_of_the_trials_business() -> None:
    """Most budgets select as the Deployment does."""
    budgets = {"ocr": LabelSelector.model_validate({"matchLabels": {"app": "ocr"}})}
    found = find_labels(replace(make_target("ocr"), template=replace(make_target("ocr").template, labels=LABELS)), replace(AROUND, budgets=budgets), UID)
    assert not isinstance(found, Exclusion)


def test_labels_by_which_other_tools_track_are_left_out_where_no_service_needs_them() -> None:
    """Argo CD's label tracking would take what carries it for its own."""
    labels = LABELS | {"app.kubernetes.io/instance": "shop", "tier": "ml"}
    target = replace(make_target("ocr"), template=replace(make_target("ocr").template, labels=labels))
    assert find_labels(target, AROUND, UID) == {"part": "server", "tier": "ml", CANARY_LABEL: UID}


def test_without_a_source_of_latency_nothing_can_be_compared() -> None:
    """Written in place."""
    world_with_problem = make_trial()
    world = world_with_problem.world
    world.snapshot = replace(world.snapshot, served=ServedFacts(problem=LatencyProblem("NotWatched", "no Prometheus")))
    status = world.status.model_copy(update={"canary": None})
    world.snapshot = replace(world.snapshot, adaptation=replace(world.snapshot.adaptation, status=status))
    world_with_problem.made = None
    world_with_problem.turns(2)
    assert (outcome_of(world_with_problem), world.applies) == (("Skipped", "CanaryNothingToCompare"), 1)


def fill_cards(trial: Trial) -> None:
    """Somebody else's pods on every card of the chosen family."""
    others = tuple(make_pod(f"other-{index}", node=f"{OPENVINO}-{index}", requests={CARD: 1}, labels={CANARY_LABEL: UID}) for index in (1, 2))
    trial.world.snapshot = replace(trial.world.snapshot, card_pods=(*trial.world.snapshot.card_pods, *others))


@pytest.mark.parametrize(
    ("target", "want"),
    [
        pytest.param({"max_surge": 0, "max_unavailable": 1}, "Skipped", id="maxSurge 0: replaced in place"),
        pytest.param({"max_surge": 1, "max_unavailable": 1}, "", id="otherwise it waits"),
    ],
)
def test_a_full_pool_replaces_in_place_where_the_owner_lets_old_pods_go_first_else_waits(target: dict[str, Any], want: str) -> None:
    """With a reason either way."""
    trial = make_trial(target=target)
    status = trial.world.status.model_copy(update={"canary": None})
    trial.world.snapshot = replace(trial.world.snapshot, adaptation=replace(trial.world.snapshot.adaptation, status=status))
    trial.made = None
    fill_cards(trial)
    trial.turn()
    if want:
        assert (outcome_of(trial), trial.world.applies) == (("Skipped", "CanaryNoRoom"), 1)
    else:
        assert (trial.world.condition("Ready"), trial.world.applies, trial.world.status.canary) == (("False", "CanaryNoRoom"), 0, None)


@pytest.mark.parametrize("stop", ["suspended", "not wanted any more", "other inputs"])
def test_a_trial_that_nobody_wants_any_more_is_taken_away(stop: str) -> None:
    """Whatever ends it."""
    trial = make_trial()
    assert trial.made is not None
    match stop:
        case "suspended":
            trial.world.change_spec(suspend=True)
        case "not wanted any more":
            trial.world.change_spec(rollout=Rollout())
        case _:
            trial.world.change_spec(load=trial.world.snapshot.adaptation.spec.load.model_copy(update={"clients": 9}))
    trial.turn()
    assert trial.made is None


def test_a_trial_that_was_claimed_and_never_made_is_made_by_the_next_pass() -> None:
    """Killed in between: the same name, the same pods."""
    trial = make_trial()
    first, trial.made = trial.made, None
    trial.turn()
    assert trial.made == first
    assert first is not None


def test_a_trial_that_the_api_server_does_not_take_is_written_in_place() -> None:
    """A missing right, an admission policy: the reason is in the status."""
    trial = make_trial()
    refused = report_canary_refused(trial.world.status.canary, "denied by policy no-extra-deployments")
    trial.world.snapshot = replace(
        trial.world.snapshot, adaptation=replace(trial.world.snapshot.adaptation, status=trial.world.status.model_copy(update={"canary": refused}))
    )
    trial.made = None
    trial.turn()
    assert (outcome_of(trial), trial.world.applies) == (("Skipped", "CanaryRefused"), 1)
