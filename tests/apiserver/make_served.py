"""A world (``make_world``) whose Deployment is on a real API server: decided, written and taken back there, with its rollouts played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from tests.unit.act.make_actions import LIMITS
from tests.unit.decide.make_facts import make_container
from tests.unit.decide.make_world import ORT, World

from metainfer.act.events import ObjectRef
from metainfer.act.execute import Actor, Outcome
from metainfer.decide.adaptation import decide_adaptation
from metainfer.decide.facts import CanaryFacts
from metainfer.decide.plan import Action, AdaptationPlan, ApplyTarget, CreateCanary, CreateJob, DeleteCanary, RecordDecision, RestoreTarget
from metainfer.decide.wanted import find_wanted
from metainfer.kube.client import KubeClient
from metainfer.kube.kinds import DEPLOYMENT
from metainfer.observe.canary import is_asked, read_canary
from metainfer.observe.projections import project_target
from metainfer.predict.physics import PhysicsPredictor

Raw = dict[str, Any]


@dataclass
class Journal:
    """What was decided and taken back, as a decision log."""

    recorded: list[RecordDecision] = field(default_factory=list)

    async def record_decision(self, adaptation_uid: str, decision: RecordDecision) -> bool:
        """Kept in memory."""
        del adaptation_uid
        known = any(item.decision_id == decision.decision_id for item in self.recorded)
        self.recorded += [] if known else [decision]
        return not known


@dataclass
class Served:
    """One adaptation and its Deployment ``ocr``; Jobs are made up, writes are real."""

    world: World
    kube: KubeClient
    namespace: str
    journal: Journal = field(default_factory=Journal)
    written: list[Action] = field(default_factory=list)
    on_trial: Callable[[CanaryFacts], CanaryFacts] = lambda facts: facts
    """What its controllers and kubelets would make of a trial."""

    async def start(self) -> None:
        """Everything of the world into the test's namespace."""
        adaptation = replace(self.world.snapshot.adaptation, namespace=self.namespace)
        pods = tuple(replace(pod, namespace=self.namespace) for pod in self.world.snapshot.target_pods)
        self.world.snapshot = replace(self.world.snapshot, adaptation=adaptation, target_pods=pods)
        await self.roll_out()

    async def read(self) -> Raw:
        """The Deployment."""
        return await self.kube.get(DEPLOYMENT, "ocr", self.namespace)

    async def turn(self) -> AdaptationPlan:
        """One pass and what it writes; a rollout is not played by itself."""
        adaptation = self.world.snapshot.adaptation
        canary = self.on_trial(await read_canary(adaptation, self.kube)) if is_asked(adaptation) else None
        self.world.snapshot = replace(self.world.snapshot, target=project_target(await self.read()), canary=canary)
        plan = decide_adaptation(self.world.snapshot, PhysicsPredictor(), self.world.now)
        self.world.take(plan)
        for action in plan.actions:
            if isinstance(action, CreateJob):
                self.world.run(action)
        writes = [action for action in plan.actions if isinstance(action, ApplyTarget | RestoreTarget | CreateCanary | DeleteCanary | RecordDecision)]
        self.written += [action for action in writes if isinstance(action, ApplyTarget | RestoreTarget)]
        outcomes = await self._execute(writes)
        assert all(outcome.result in ("Done", "Unchanged") for outcome in outcomes), outcomes
        self.world.now += timedelta(seconds=30)
        return plan

    async def play(self, turns: int = 40) -> None:
        """Passes, each rollout ending well, until nothing is waited for."""
        for _ in range(turns):
            written = len(self.written)
            plan = await self.turn()
            if len(self.written) > written:
                await self.roll_out()
            elif plan.requeue_after_seconds is None or plan.requeue_after_seconds >= 60:
                return

    async def write(self) -> None:
        """Passes until something is written, and no rollout of it."""
        written = len(self.written)
        while len(self.written) == written:
            await self.turn()

    async def roll_out(self, **pod: Any) -> None:
        """What the Deployment controller and the kubelet would do: one pod of the newest template. ``pod``: how it fares."""
        raw = await self.read()
        template = raw["spec"]["template"]
        ready = pod.get("ready", True)
        counts = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": int(ready), "availableReplicas": int(ready)}
        status = {"observedGeneration": raw["metadata"]["generation"]} | {key: value for key, value in counts.items() if value}
        await self.kube.replace_status(DEPLOYMENT, "ocr", self.namespace, status, raw["metadata"]["resourceVersion"])
        wanted = find_wanted(self.world.status)
        family = wanted.config.family if wanted is not None and wanted.config is not None else ORT
        env = {item["name"]: item.get("value", "") for item in template["spec"]["containers"][0].get("env", ())}
        annotations = template["metadata"].get("annotations") or {}
        server, uid = make_container(env=env), f"uid-{raw['metadata']['generation']}"
        fields = {"containers": (server,), "node": f"{family}-1", "annotations": annotations, "uid": uid, "ready": True, "states": ()}
        moved = replace(self.world.snapshot.target_pods[0], **(fields | pod))
        self.world.snapshot = replace(self.world.snapshot, target_pods=(moved,), card_pods=(moved,))

    async def _execute(self, actions: list[Action]) -> tuple[Outcome, ...]:
        actor = Actor(self.kube, self.journal, LIMITS, lambda _raw: None)
        return await actor.execute(actions, ObjectRef("metainfer.dev/v1alpha1", "ModelAdaptation", "ocr", "uid", self.namespace))
