"""A test cluster seen from the command line: kubectl, helm, waiting, and requests through a Service.

Used by the demo and by the end-to-end tests. Everything goes through the binaries a user would call, so what works here works for
them. ``KUBECONFIG`` decides which cluster; without it the one of ``hack/cluster`` is used (and brought up by whoever calls).
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import string
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import yaml

ROOT = Path(__file__).resolve().parents[2]
IMAGES = {name: f"localhost/meta-infer/{name}:dev" for name in ("operator", "probe", "demo-server")}
SYSTEM_NAMESPACE = "meta-infer-system"
RELEASE = "meta-infer"
Object = dict[str, Any]
T = TypeVar("T")


class LabError(Exception):
    """A step that failed, with what the tool said."""


@dataclass(slots=True)
class Lab:
    """One cluster."""

    kubeconfig: Path
    kubectl_path: str
    helm_path: str
    _connection: tuple[str, ssl.SSLContext] | None = field(default=None, repr=False)

    @classmethod
    def connect(cls) -> Lab:
        """The cluster of KUBECONFIG, else the local one."""
        config = os.environ.get("KUBECONFIG") or _tool("hack/cluster/kubeconfig")
        return cls(Path(config), _tool("hack/cluster/bin", "kubectl"), _tool("hack/cluster/bin", "helm"))

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True, timeout_seconds: float = 120) -> str:
        """Standard output of one kubectl call."""
        return _run([self.kubectl_path, "--kubeconfig", str(self.kubeconfig), *arguments], stdin=stdin, check=check, timeout_seconds=timeout_seconds)

    def helm(self, *arguments: str) -> str:
        """Standard output of one helm call."""
        return _run([self.helm_path, "--kubeconfig", str(self.kubeconfig), *arguments], timeout_seconds=300)

    def apply(self, text: str, namespace: str | None = None, *options: str) -> None:
        """``kubectl apply`` as a user does it (client-side unless an option says otherwise)."""
        scope = ["-n", namespace] if namespace else []
        self.kubectl(*scope, "apply", "-f", "-", *options, stdin=text)

    def apply_objects(self, *objects: Mapping[str, Any], namespace: str | None = None) -> None:
        """The same for dictionaries."""
        self.apply(yaml.safe_dump_all(objects), namespace)

    def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """One object, or None when it does not exist."""
        scope = ["-n", namespace] if namespace else []
        text = self.kubectl(*scope, "get", kind, name, "-o", "json", "--ignore-not-found")
        return json.loads(text) if text.strip() else None

    def list(self, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        """All objects of a kind."""
        scope = ["-n", namespace] if namespace else ["-A"]
        chosen = ["-l", selector] if selector else []
        items: list[Object] = json.loads(self.kubectl("get", kind, *scope, *chosen, "-o", "json"))["items"]
        return items

    def get(self, path: str) -> Object:
        """One object or list by its path on the API server, without a process per question; raises LabError with the server's words."""
        return self._send(path, None)

    def post(self, namespace: str, service: str, path: str, body: Mapping[str, Any]) -> Object:
        """One request through the Service, by the API server's own proxy; raises LabError with the server's words."""
        return self._send(f"/api/v1/namespaces/{namespace}/services/http:{service}:8080/proxy{path}", body)

    def _send(self, path: str, body: Mapping[str, Any] | None) -> Object:
        server, context = self._connect()
        given = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{server}{path}", given, {"Content-Type": "application/json"})  # noqa: S310 - our own cluster
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as response:  # noqa: S310
                answer: Object = json.load(response)
                return answer
        except (urllib.error.URLError, TimeoutError) as error:
            detail = error.read().decode(errors="replace")[:300] if isinstance(error, urllib.error.HTTPError) else ""
            raise LabError(f"{request.get_method()} {path}: {error} {detail}") from error

    @property
    def host(self) -> str:
        """The API server's address; on the local cluster the machine itself, as nodes and pods reach it."""
        config = yaml.safe_load(self.kubeconfig.read_text(encoding="utf-8"))
        return str(urlsplit(config["clusters"][0]["cluster"]["server"]).hostname)

    def _connect(self) -> tuple[str, ssl.SSLContext]:
        if self._connection is None:
            config = yaml.safe_load(self.kubeconfig.read_text(encoding="utf-8"))
            cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
            context = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority"))
            with tempfile.TemporaryDirectory() as folder:
                certificate, key = Path(folder, "crt"), Path(folder, "key")
                certificate.write_text(_pem(user, "client-certificate"), encoding="utf-8")
                key.write_text(_pem(user, "client-key"), encoding="utf-8")
                context.load_cert_chain(certificate, key)
            self._connection = (cluster["server"], context)
        return self._connection


def wait_until(what: str, ask: Callable[[], T | None], *, timeout_seconds: float, every_seconds: float = 1.0) -> T:
    """Ask until the answer is not None; raises LabError naming what did not happen."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        answer = ask()
        if answer is not None:
            return answer
        if time.monotonic() > deadline:
            raise LabError(f"not within {timeout_seconds:.0f} s: {what}")
        time.sleep(every_seconds)


def condition(item: Mapping[str, Any] | None, kind: str) -> Object:
    """One condition of an object's status; an empty one when it is not there."""
    conditions: Sequence[Object] = (item or {}).get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == kind), {"type": kind, "status": "Unknown", "reason": "", "message": ""})


def predictor_of(lab: Lab, pool: str = "demo") -> Object:
    """``status.predictor`` of a pool; empty before the operator has looked at it."""
    status: Object = (lab.find("acceleratorpool", pool) or {}).get("status", {})
    return dict(status.get("predictor") or {})


def describe_predictor(state: Mapping[str, Any]) -> str:
    """Which model ranks and which was trained last, in one line."""
    serving = f"model {state['version']} of {state['rows']} rows ranks" if "version" in state else "the roofline alone ranks"
    newest = f"model {state['newestVersion']} was trained last: {state.get('newestVerdict', '')}" if "newestVersion" in state else "none was trained here yet"
    return f"{serving}, {newest}"


def fill(path: Path, **values: str) -> str:
    """A manifest with ``${NAME}`` places filled in."""
    return string.Template(path.read_text(encoding="utf-8")).substitute(values)


def _tool(*command: str) -> str:
    return _run([str(ROOT / command[0]), *command[1:]], timeout_seconds=3600).strip()


def _pem(section: Mapping[str, str], name: str) -> str:
    if f"{name}-data" in section:
        return base64.b64decode(section[f"{name}-data"]).decode()
    return Path(section[name]).read_text(encoding="utf-8")


def _run(command: Sequence[str], *, stdin: str | None = None, check: bool = True, timeout_seconds: float) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    if check and done.returncode != 0:
        words = [Path(command[0]).name, *(item for item in command[1:] if not item.startswith("/"))]
        raise LabError(f"{' '.join(words)[:300]} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout
