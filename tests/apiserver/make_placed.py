"""Deployments with a decision of ours on them: written by the operator's own planning and acting, without the measuring before it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.apiserver.api_server import ApiServer
from tests.unit.act.make_actions import LIMITS
from tests.unit.decide.make_facts import OPENVINO_PROVIDER, make_config, make_family

from metainfer.act.events import ObjectRef
from metainfer.act.execute import Actor, Outcome
from metainfer.act.ports import Remember
from metainfer.decide.placement import PlacementPlan, PlacementRequest, build_placement
from metainfer.decide.plan import RecordDecision
from metainfer.decide.pre_image import DeletionPolicy
from metainfer.decide.settings_mapping import PRESETS
from metainfer.decide.target import find_container
from metainfer.kube.client import KubeClient
from metainfer.kube.errors import Conflict
from metainfer.kube.kinds import DEPLOYMENT
from metainfer.observe.projections import project_target
from metainfer_probe.contract import ServingConfig

Raw = dict[str, Any]
PRECISION = "METAINFER_PRECISION"
DECISION = "d41d8cd98f00"
FAST = make_config(execution_provider=OPENVINO_PROVIDER, precision="bf16", concurrency=2)
FAMILY = make_family("openvino-cpu", execution_providers=(OPENVINO_PROVIDER,))
by_both_owners = pytest.mark.parametrize(
    "flags", [pytest.param((), id="client-side owner"), pytest.param(("--server-side", "--field-manager=chart"), id="server-side owner")]
)


class NoLog:
    """A decision log that nobody should need here."""

    async def record_decision(self, adaptation_uid: str, decision: RecordDecision, decided_at: datetime | None = None) -> bool:
        raise AssertionError((adaptation_uid, decision, decided_at))


def make_actor(kube: Any, remember: Remember = lambda _raw: None) -> Actor:
    """All writes."""
    return Actor(kube, NoLog(), LIMITS, remember)  # type: ignore[arg-type]  # never asked


def plan_placement(
    raw: Mapping[str, Any], *, uid: str = "uid-adaptation", policy: DeletionPolicy = "Restore", config: ServingConfig = FAST, decision: str = DECISION
) -> PlacementPlan:
    """What the operator would write for a decision."""
    target = project_target(raw)
    container = find_container(target.template, None)
    assert container is not None
    request = PlacementRequest(
        target=target, container=container, family=FAMILY, pool="cards", config=config, mapping=PRESETS["MetaInfer"], config_maps={},
        decision_id=decision, adaptation_uid=uid, deletion_policy=policy,
    )  # fmt: skip
    return build_placement(request)


async def try_place(kube: KubeClient, namespace: str, name: str, **fields: Any) -> Outcome:
    """One write of a decision, whatever becomes of it; judged again as often as a controller was faster."""
    while True:
        plan = plan_placement(await kube.get(DEPLOYMENT, name, namespace), **fields)
        assert plan.apply is not None, plan.withheld
        try:
            (outcome,) = await make_actor(kube).execute((plan.apply,), ObjectRef("apps/v1", "Deployment", name, "uid", namespace))
        except Conflict:
            continue
        return outcome


async def place(kube: KubeClient, namespace: str, name: str, **fields: Any) -> Raw:
    """The decision is on the Deployment."""
    outcome = await try_place(kube, namespace, name, **fields)
    assert outcome.result == "Done", outcome
    return await kube.get(DEPLOYMENT, name, namespace)


def declared(raw: Mapping[str, Any]) -> Raw:
    """All of a Deployment that anybody declares; the controller's revision is nobody's."""
    metadata = raw["metadata"]
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != "deployment.kubernetes.io/revision"}
    return {"spec": raw["spec"], "labels": metadata.get("labels"), "annotations": annotations}


def env_of(raw: Mapping[str, Any]) -> dict[str, str | None]:
    """Variables of the first container."""
    return {item["name"]: item.get("value") for item in raw["spec"]["template"]["spec"]["containers"][0].get("env", ())}


def affinity_of(raw: Mapping[str, Any]) -> Raw:
    """The template's affinity."""
    found: Raw = raw["spec"]["template"]["spec"].get("affinity") or {}
    return found


class Kubectl:
    """As people use it."""

    def __init__(self, kubeconfig: Path, binary: str) -> None:
        self._server = ApiServer(kubeconfig, binary)

    def run(self, *arguments: str, manifest: Mapping[str, Any] | None = None) -> str:
        """Its output; fails when it does."""
        done = self._server.kubectl(*arguments, stdin=json.dumps(manifest) if manifest is not None else "")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, manifest: Mapping[str, Any], *flags: str) -> str:
        """Client-side, unless a flag says otherwise."""
        return self.run("apply", *flags, "-f", "-", manifest=manifest)

    def close(self) -> None:
        """Close the connection."""
        self._server.close()
