"""One Application of Argo CD over a Git repository and a namespace of its own, and the operator's writes on what it deploys."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from argo_processes import NAMESPACE, ArgoCd, ScenarioError
from tests.apiserver.api_server import ApiServer
from tests.apiserver.make_cluster import make_deployment
from tests.apiserver.make_placed import PRECISION, affinity_of, declared, env_of, place

from metainfer.act.restore import restore_target
from metainfer.kube.client import KubeClient
from metainfer.kube.errors import Conflict, NotFound
from metainfer.kube.kinds import DEPLOYMENT, Kind
from metainfer.kube.kinds import NAMESPACE as NAMESPACE_KIND

Raw = dict[str, Any]
APPLICATION: Final = Kind("argoproj.io", "v1alpha1", "Application", "applications", namespaced=True)
TARGET: Final = "srv"
REFRESH: Final = "argocd.argoproj.io/refresh"
OF_ARGO: Final = ("argocd.argoproj.io/tracking-id", "kubectl.kubernetes.io/last-applied-configuration")
"""What Argo CD itself adds to what Git says."""
POLL_SECONDS = 0.3
SEEN_SECONDS = 2.0
"""Until a write has reached Argo CD's cache of live objects through its watch."""
PATIENCE_SECONDS = 120.0
"""A guard against hanging; what is healed is healed within seconds."""
_GIT = ("git", "-c", "user.name=owner", "-c", "user.email=owner@example.invalid")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where Applications run."""

    api: ApiServer
    kube: KubeClient
    argo: ArgoCd
    directory: Path


@dataclass(slots=True)
class Application:
    """An owner who declares one Deployment (and a ConfigMap) in Git, with automated sync, prune and self-heal."""

    around: Surroundings
    name: str
    options: Sequence[str]
    annotations: Mapping[str, str]
    ignore: Sequence[Raw] = ()
    manifest: Raw = field(default_factory=dict)
    is_in_git: bool = True

    async def create(self) -> None:
        """Synced with the first commit."""
        await self.kube.create(NAMESPACE_KIND, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
        self._git("init", "--quiet", "--bare", "--initial-branch=main", str(self._repository))
        self._git("clone", "--quiet", str(self._repository), str(self._checkout))
        self.manifest = make_deployment(TARGET, self.name, env={"LOG_LEVEL": "info"})
        self._push()
        automated = {"prune": True, "selfHeal": True}
        spec = {
            "project": "default",
            "source": {"repoURL": f"file://{self._repository}", "targetRevision": "main", "path": "."},
            "destination": {"server": "https://kubernetes.default.svc", "namespace": self.name},
            "syncPolicy": {"automated": automated, "syncOptions": list(self.options)},
            "ignoreDifferences": list(self.ignore),
        }
        metadata = {"name": self.name, "namespace": NAMESPACE, "annotations": {"scenario": "argocd", **self.annotations}}
        await self.kube.create(APPLICATION, {"apiVersion": APPLICATION.api_version, "kind": APPLICATION.kind, "metadata": metadata, "spec": spec})
        await self.settle()

    @property
    def kube(self) -> KubeClient:
        """The client that the operator's code writes with."""
        return self.around.kube

    async def commit(self, change: Callable[[Raw], object]) -> None:
        """Change the pod template in Git, and wait until Argo CD has dealt with it."""
        change(self.manifest["spec"]["template"]["spec"])
        self._push()
        await self.settle()

    async def annotate(self, name: str, value: str) -> None:
        """Put an annotation on the Deployment in Git, and wait until Argo CD has dealt with it."""
        self.manifest["metadata"]["annotations"] = {name: value}
        self._push()
        await self.settle()

    async def remove(self) -> None:
        """Take the Deployment out of Git, and wait until Argo CD has dealt with it."""
        self.is_in_git = False
        self._push()
        await self.settle()

    async def settle(self) -> None:
        """Synced with the last commit after a hard refresh, and nothing under way."""
        await asyncio.sleep(SEEN_SECONDS)
        await self._refresh()
        await self.wait(f"Application {self.name} to be Synced with the last commit", self._is_settled)

    async def wait(self, what: str, ask: Callable[[], Awaitable[bool]]) -> None:
        """Poll; raises ScenarioError."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not await ask():
            if time.monotonic() > deadline:
                raise ScenarioError(f"not within {PATIENCE_SECONDS:.0f} s: {what}; {await self._describe()}")
            await asyncio.sleep(POLL_SECONDS)

    async def sync(self) -> None:
        """As a person does it; through the command line, because an operation made by hand ignores the sync options."""
        done = await asyncio.to_thread(self.around.argo.run, "app", "sync", self.name)
        if done.returncode != 0:
            raise ScenarioError(f"argocd app sync {self.name}: {done.stderr.strip()[-400:]}")
        await self.settle()

    async def diff(self) -> tuple[int, str]:
        """Exit status and output of ``argocd app diff``."""
        done = await asyncio.to_thread(self.around.argo.run, "app", "diff", self.name)
        return done.returncode, done.stdout.strip()

    async def last_operation(self) -> str:
        """When the last sync began; the same as before = nothing was synced."""
        state = (await self.status()).get("operationState") or {}
        return str(state.get("startedAt", ""))

    async def status(self) -> Raw:
        """The Application's."""
        found: Raw = (await self.kube.get(APPLICATION, self.name, NAMESPACE)).get("status") or {}
        return found

    async def read(self) -> Raw:
        """The Deployment; raises NotFound."""
        return await self.kube.get(DEPLOYMENT, TARGET, self.name)

    async def exists(self) -> bool:
        """Whether there is a Deployment."""
        try:
            await self.read()
        except NotFound:
            return False
        return True

    async def change_by_hand(self, value: str) -> None:
        """Somebody else changes a value that Git declares."""
        operation = [{"op": "replace", "path": "/spec/template/spec/containers/0/env/0/value", "value": value}]
        command = ("patch", "deployment", TARGET, f"--namespace={self.name}", "--type=json", f"--patch={json.dumps(operation)}", "--field-manager=somebody")
        done = await asyncio.to_thread(self.around.api.kubectl, *command)
        if done.returncode != 0:
            raise ScenarioError(f"kubectl patch: {done.stderr.strip()}")

    async def place(self, **fields: Any) -> Raw:
        """A decision of ours, written by the operator's own code."""
        return await place(self.kube, self.name, TARGET, **fields)

    async def restore(self) -> tuple[str, ...]:
        """Ours given back by the operator's own code, and whatever follows from it; the fields that had to be left."""
        while True:
            try:
                restored = await restore_target(self.kube, self.name, TARGET)
            except Conflict:
                continue
            await self.settle()
            return tuple(str(item) for item in restored.left)

    async def is_as_git_says(self) -> bool:
        """Whether the Deployment is what a fresh create of Git's manifest makes of it."""
        made = await asyncio.to_thread(self._create_dry)
        return _of_owner(await self.read()) == _of_owner(made)

    async def precision(self) -> str | None:
        """The variable that the decision sets."""
        return env_of(await self.read()).get(PRECISION)

    async def node_affinity(self) -> Raw:
        """Both halves."""
        found: Raw = affinity_of(await self.read()).get("nodeAffinity") or {}
        return found

    async def _refresh(self) -> None:
        pointer = f"/metadata/annotations/{REFRESH.replace('/', '~1')}"
        await self.kube.patch_json(APPLICATION, self.name, NAMESPACE, [{"op": "add", "path": pointer, "value": "hard"}])

        async def is_done() -> bool:
            return REFRESH not in (await self.kube.get(APPLICATION, self.name, NAMESPACE))["metadata"]["annotations"]

        await self.wait("the refresh", is_done)

    async def _is_settled(self) -> bool:
        application = await self.kube.get(APPLICATION, self.name, NAMESPACE)
        status = application.get("status") or {}
        running = "operation" in application or (status.get("operationState") or {}).get("phase") == "Running"
        sync = status.get("sync") or {}
        return not running and sync.get("status") == "Synced" and sync.get("revision") == self._head()

    async def _describe(self) -> str:
        status = await self.status()
        said = [item.get("message", "") for item in status.get("conditions") or ()]
        return f"sync {(status.get('sync') or {}).get('status')}, operation {(status.get('operationState') or {}).get('message')}, {said}"

    def _create_dry(self) -> Raw:
        made = self.manifest | {"metadata": self.manifest["metadata"] | {"name": "fresh"}}
        done = self.around.api.kubectl("create", "--dry-run=server", "--output=json", "--filename=-", stdin=json.dumps(made))
        if done.returncode != 0:
            raise ScenarioError(f"kubectl create: {done.stderr.strip()}")
        found: Raw = json.loads(done.stdout)
        return found

    def _push(self) -> None:
        other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "namespace": self.name}}
        (self._checkout / "all.yaml").write_text(yaml.safe_dump_all([self.manifest, other] if self.is_in_git else [other]))
        self._git("-C", str(self._checkout), "add", "all.yaml")
        self._git("-C", str(self._checkout), "commit", "--quiet", "--message", "change")
        self._git("-C", str(self._checkout), "push", "--quiet", "origin", "main")

    def _head(self) -> str:
        return self._git("-C", str(self._checkout), "rev-parse", "main").strip()

    def _git(self, *arguments: str) -> str:
        done = subprocess.run([*_GIT, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ScenarioError(f"git {arguments[0]}: {done.stderr.strip()}")
        return done.stdout

    @property
    def _repository(self) -> Path:
        return self.around.directory / f"{self.name}.git"

    @property
    def _checkout(self) -> Path:
        return self.around.directory / self.name


def _of_owner(raw: Mapping[str, Any]) -> Raw:
    """What Git has a say in."""
    found = declared(raw)
    return found | {"annotations": {key: value for key, value in found["annotations"].items() if key not in OF_ARGO}}
