"""Our fields under the real Helm: what upgrades, rollbacks and conflicts do to them, and that giving them up leaves the chart's own object.

``applied by the server`` is Helm 4's way for new releases, ``by the client`` that of releases older than it and of ``--server-side=false``.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.apiserver.api_server import find_binary
from tests.apiserver.make_placed import FAST, PRECISION, affinity_of, declared, env_of, place, plan_placement, try_place

from metainfer.act.restore import restore_target
from metainfer.kube.client import KubeClient
from metainfer.kube.errors import FieldConflict
from metainfer.kube.kinds import CONFIG_MAP, DEPLOYMENT

pytestmark = [pytest.mark.apiserver, pytest.mark.chart]

Raw = dict[str, Any]
SERVER, CLIENT = "true", "false"
by_both_ways = pytest.mark.parametrize("way", [pytest.param(SERVER, id="applied by the server"), pytest.param(CLIENT, id="by the client")])
by_server = pytest.mark.parametrize("way", [pytest.param(SERVER, id="applied by the server")])
by_client = pytest.mark.parametrize("way", [pytest.param(CLIENT, id="by the client")])
TERMS = [{"matchExpressions": [{"key": "card", "operator": "In", "values": ["t4"]}]}]
REQUIRED = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": TERMS}}}
APART = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
TEMPLATE = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: srv
  labels: {team: vision}
spec:
  replicas: 1
  selector: {matchLabels: {app: srv}}
  template:
    metadata: {labels: {app: srv}}
    spec:
      {{- with .Values.affinity }}
      affinity: {{ toJson . }}
      {{- end }}
      containers:
        - name: {{ .Values.container }}
          image: server:1
          env: {{ toJson .Values.env }}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
data: {level: {{ .Values.level | quote }}}
"""
VALUES: Raw = {"container": "server", "level": "info", "env": [{"name": "LOG_LEVEL", "value": "info"}], "affinity": {}}


@dataclass
class Release:
    """A release of a small chart: a Deployment, and another object that shows how far an upgrade came."""

    kube: KubeClient
    namespace: str
    chart: Path
    way: str
    values: Raw = field(default_factory=lambda: dict(VALUES))

    def run(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One helm command, whatever its exit status."""
        command = [find_binary("helm"), verb, "srv", *arguments, "--namespace", self.namespace]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"HELM_CACHE_HOME": str(self.chart / "cache")})

    def install(self) -> None:
        """The first revision."""
        done = self.run("install", str(self.chart), "--values", self._write_values(), f"--server-side={self.way}")
        assert done.returncode == 0, done.stderr

    def try_upgrade(self, *flags: str, **values: Any) -> subprocess.CompletedProcess[str]:
        """One more revision with these values, whatever becomes of it."""
        self.values |= values
        return self.run("upgrade", str(self.chart), "--values", self._write_values(), *flags)

    def upgrade(self, *flags: str, **values: Any) -> None:
        """One more revision, which must succeed."""
        done = self.try_upgrade(*flags, **values)
        assert done.returncode == 0, done.stderr

    async def read(self) -> Raw:
        """The Deployment."""
        return await self.kube.get(DEPLOYMENT, "srv", self.namespace)

    async def level(self) -> str:
        """What the release's other object says."""
        found: str = (await self.kube.get(CONFIG_MAP, "other", self.namespace))["data"]["level"]
        return found

    async def place(self, **fields: Any) -> Raw:
        """A decision of ours is on the Deployment."""
        return await place(self.kube, self.namespace, "srv", **fields)

    async def restore(self) -> Raw:
        """Ours given back, nothing left; returns what is declared then."""
        restored = await restore_target(self.kube, self.namespace, "srv")
        assert restored.left == ()
        return declared(restored.deployment)

    async def fresh(self) -> Raw:
        """What the same values make of a Deployment that we never touched."""
        rendered = self.run("template", str(self.chart), "--values", self._write_values()).stdout
        (manifest,) = (item for item in yaml.safe_load_all(rendered) if item["kind"] == "Deployment")
        manifest["metadata"] |= {"name": "fresh", "namespace": self.namespace}
        made = await self.kube.create(DEPLOYMENT, manifest)
        await self.kube.delete(DEPLOYMENT, "fresh", self.namespace)
        return declared(made)["spec"]  # type: ignore[no-any-return]

    async def raw_apply(self, body: Raw) -> Raw:
        """An apply of ours without any of the operator's care."""
        return await self.kube.apply(DEPLOYMENT, "srv", body, namespace=self.namespace)

    def _write_values(self) -> str:
        path = self.chart / "given.json"
        path.write_text(json.dumps(self.values))
        return str(path)


@pytest.fixture
async def release(kube: KubeClient, namespace: str, tmp_path: Path, way: str) -> Release:
    """Installed, with a decision of ours on it."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: srv\nversion: 0.1.0\n")
    (tmp_path / "templates" / "all.yaml").write_text(TEMPLATE)
    made = Release(kube, namespace, tmp_path, way)
    made.install()
    await made.place()
    return made


def env(**values: str) -> list[Raw]:
    """The chart's env: its own entry and these."""
    return [*VALUES["env"], *({"name": name, "value": value} for name, value in values.items())]


def ours_of(raw: Raw) -> tuple[str | None, Any]:
    """Our precision and whether our affinity is there."""
    return env_of(raw).get(PRECISION), "nodeAffinity" in affinity_of(raw)


@by_both_ways
async def test_upgrades_and_rollbacks_keep_our_fields(release: Release) -> None:
    """Another value, the same again, back to the first revision: ours stay, the next apply is taken, and restoring is exact."""
    release.upgrade(level="debug", env=[{"name": "LOG_LEVEL", "value": "debug"}])
    assert ours_of(await release.read()) == ("bf16", True)
    release.upgrade()
    assert release.run("rollback", "1").returncode == 0
    rolled_back = await release.read()
    assert (ours_of(rolled_back), env_of(rolled_back)["LOG_LEVEL"]) == (("bf16", True), "info")
    await release.place()
    release.values |= VALUES
    assert (await release.restore())["spec"] == await release.fresh()


@by_server
async def test_a_chart_that_declares_our_value_shares_the_entry(release: Release) -> None:
    """No conflict, and the chart keeps its entry when we leave."""
    release.upgrade(env=env(**{PRECISION: "bf16"}))
    assert (await release.restore())["spec"] == await release.fresh()


@by_client
async def test_helm_leaves_no_trace_of_a_value_that_is_there_already(release: Release) -> None:
    """The documented limit: nothing tells that the chart declares it now, so it goes with ours, until the next upgrade."""
    release.upgrade(env=env(**{PRECISION: "bf16"}))
    assert PRECISION not in json.dumps((await release.restore())["spec"])
    release.upgrade()
    assert (declared(await release.read()))["spec"] == await release.fresh()


@by_server
@pytest.mark.parametrize(
    ("values", "path"),
    [
        pytest.param({"env": env(**{PRECISION: "fp32"})}, f'.spec.template.spec.containers[name="server"].env[name="{PRECISION}"].value', id="a setting"),
        pytest.param({"affinity": REQUIRED}, ".spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution", id="affinity"),
    ],
)
async def test_an_upgrade_to_a_chart_that_wants_our_field_fails_with_our_name(release: Release, values: Raw, path: str) -> None:
    """The words of docs/gitops.md; the Deployment is untouched, the release's other objects are not. Once ours is gone, the same upgrade passes."""
    before = await release.read()
    dry = release.try_upgrade("--dry-run=server", level="debug", **values)
    assert dry.returncode == 0, "a dry run does not show it"
    failed = release.try_upgrade(level="debug", **values)
    assert failed.returncode == 1
    assert "UPGRADE FAILED: conflict occurred while applying object" in failed.stderr
    assert 'conflict with "metainfer"' in failed.stderr
    assert path in failed.stderr
    assert (await release.read())["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
    assert await release.level() == "debug"
    assert release.run("rollback", "1").returncode == 0, "one way out"
    assert ours_of(await release.read()) == ("bf16", True)
    await release.restore()
    release.upgrade(level="debug", **values)
    assert (declared(await release.read()))["spec"] == await release.fresh()


@by_server
async def test_rollback_on_failure_undoes_the_failed_upgrade(release: Release) -> None:
    """Another way out: the release's other objects go back too, ours stay."""
    assert release.try_upgrade("--rollback-on-failure", "--timeout=2s", level="debug", env=env(**{PRECISION: "fp32"})).returncode == 1
    assert (ours_of(await release.read()), await release.level()) == (("bf16", True), "info")


@by_server
async def test_force_conflicts_gives_the_field_to_the_chart(release: Release) -> None:
    """The chart wins; the operator sees it declared, keeps its value, and leaves without a trace."""
    release.upgrade("--force-conflicts", env=env(**{PRECISION: "fp32"}))
    plan = plan_placement(await release.read())
    assert plan.apply is None
    assert [(item.path.rpartition(".env")[2], item.manager) for item in plan.withheld] == [(f'[name="{PRECISION}"]', "helm")]
    assert (await release.restore())["spec"] == await release.fresh()


@by_server
async def test_a_rollback_to_a_revision_that_wants_our_field_fails_with_our_name(release: Release) -> None:
    """The same conflict as an upgrade's."""
    await release.restore()
    release.upgrade(env=env(**{PRECISION: "fp32"}))
    release.upgrade(env=env())
    await release.place()
    failed = release.run("rollback", "2")
    assert failed.returncode == 1
    assert 'conflict with "metainfer"' in failed.stderr


@by_client
async def test_a_rollback_to_a_revision_that_wants_our_field_gets_it(release: Release) -> None:
    """By the client the chart wins, also backwards."""
    await release.restore()
    release.upgrade(env=env(**{PRECISION: "fp32"}))
    release.upgrade(env=env())
    await release.place()
    assert release.run("rollback", "2").returncode == 0
    release.values |= {"env": env(**{PRECISION: "fp32"})}
    assert (await release.restore())["spec"] == await release.fresh()


@by_client
async def test_a_chart_that_wants_our_setting_gets_it_and_we_give_way(release: Release) -> None:
    """No error tells of it. Written against it, ours would be a conflict; left out without release, the chart's own entry would go."""
    applied = plan_placement(await release.read()).apply
    release.upgrade(env=env(**{PRECISION: "fp32"}))
    assert ours_of(await release.read()) == ("fp32", True)
    assert applied is not None
    with pytest.raises(FieldConflict) as caught:
        await release.raw_apply(dict(applied.body))
    assert [(item.field.rpartition(".env")[2], item.manager) for item in caught.value.causes] == [(f'[name="{PRECISION}"].value', "helm")]
    plan = plan_placement(await release.read())
    assert plan.apply is None
    assert [item.manager for item in plan.withheld] == ["helm"]
    agreed = plan_placement(await release.read(), config=_with_precision("fp32"))
    assert agreed.apply is not None
    assert agreed.apply.release_env == (("server", PRECISION),)
    await release.place(config=_with_precision("fp32"))
    assert env_of(await release.read())[PRECISION] == "fp32"
    assert (await release.restore())["spec"] == await release.fresh()


@by_client
async def test_without_the_release_step_the_charts_entry_would_go(release: Release) -> None:
    """Why it exists; an upgrade with unchanged values puts it back. If this stops failing, the step can go."""
    release.upgrade(env=env(**{PRECISION: "fp32"}))
    await release.raw_apply({})
    assert PRECISION not in env_of(await release.read())
    release.upgrade()
    assert env_of(await release.read())[PRECISION] == "fp32"


@by_client
async def test_a_chart_that_wants_required_affinity_gets_that_half(release: Release) -> None:
    """The preferred half stays ours until it is given back."""
    release.upgrade(affinity=REQUIRED)
    live = await release.read()
    assert affinity_of(live)["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] == TERMS
    assert "preferredDuringSchedulingIgnoredDuringExecution" in affinity_of(live)["nodeAffinity"]
    plan = plan_placement(live)
    assert [item.manager for item in plan.withheld] == ["helm"]
    await release.place()
    assert (await release.restore())["spec"] == await release.fresh()


@by_both_ways
async def test_a_chart_that_drops_its_affinity_block(release: Release, way: str) -> None:
    """Applied by the server ours stay; by the client the whole block goes, ours with it and without an error, until they are applied again."""
    release.upgrade(affinity=APART)
    await release.place()
    release.upgrade(affinity={})
    live = await release.read()
    assert ours_of(live) == ("bf16", way == SERVER)
    assert (await try_place(release.kube, release.namespace, "srv")).result == "Done"
    assert ours_of(await release.read()) == ("bf16", True)
    assert (await release.restore())["spec"] == await release.fresh()


@by_both_ways
async def test_force_replace(release: Release, way: str) -> None:
    """Impossible by the server; by the client it takes all of ours, and the next apply puts them back."""
    done = release.try_upgrade("--force-replace", level="debug")
    if way == SERVER:
        assert "cannot use server-side apply and force replace together" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert ours_of(await release.read()) == (None, False)
    await release.place()
    assert (await release.restore())["spec"] == await release.fresh()


@by_client
async def test_a_release_that_moves_to_server_side_apply_keeps_ours(release: Release) -> None:
    """No conflict, and exact afterwards."""
    release.upgrade("--server-side=true", level="debug")
    assert ours_of(await release.read()) == ("bf16", True)
    await release.place()
    assert (await release.restore())["spec"] == await release.fresh()


@by_server
async def test_a_chart_that_renames_the_container_fails_until_ours_are_given_back(release: Release) -> None:
    """One of the two cases that cannot be avoided: what is left of the old container would be our entry alone."""
    failed = release.try_upgrade(container="engine")
    assert failed.returncode == 1
    assert "spec.template.spec.containers" in failed.stderr
    await release.restore()
    release.upgrade(container="engine")
    assert (declared(await release.read()))["spec"] == await release.fresh()


@by_both_ways
async def test_uninstall_is_not_held_back(release: Release) -> None:
    """Ours go with the object."""
    assert release.run("uninstall").returncode == 0
    assert (await release.kube.list(DEPLOYMENT, namespace=release.namespace))[0] == []


def _with_precision(precision: str) -> Any:
    return FAST.model_copy(update={"precision": precision})
