"""A real Argo CD as processes of this machine against one API server: redis, repo server, application controller, API server.

No pods and no nodes: Argo CD only reads Git and writes objects. Knows nothing of what is tried with it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.apiserver.api_server import ROOT, ApiServer, find_binary

NAMESPACE = "argocd"
HOST = "127.0.0.1"
START_SECONDS = 120.0
END_SECONDS = 30.0
"""Guards against hanging."""
_FOLDERS = {"ARGOCD_TLS_DATA_PATH": "tls", "ARGOCD_SSH_DATA_PATH": "ssh", "ARGOCD_GPG_DATA_PATH": "gpg-source", "ARGOCD_GNUPGHOME": "gpg", "TMPDIR": "tmp",
            "ARGOCD_CONFIG_DIR": "cli"}  # fmt: skip


class ScenarioError(Exception):
    """Something that is needed did not work, with what it said."""


@dataclass(frozen=True, slots=True)
class ArgoCd:
    """The command line of a running Argo CD."""

    binary: str
    server_port: int
    environment: Mapping[str, str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One ``argocd`` command, whatever its exit status."""
        command = [self.binary, "--server", f"{HOST}:{self.server_port}", "--plaintext", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(self.environment))


@contextmanager
def run_argo_cd(api: ApiServer, directory: Path) -> Iterator[ArgoCd]:
    """Argo CD with its CRDs and configuration on this API server, ready for Applications; logs lie in ``directory``."""
    _ensure_packages("redis-server", "git")
    binary = Path(find_binary("argocd"))
    _install(api, binary.parent / "files")
    environment = _build_environment(binary, directory)
    redis, repo, server = (_free_port() for _ in range(3))
    shared = [f"--redis={HOST}:{redis}"]
    client = [*shared, f"--namespace={NAMESPACE}", f"--kubeconfig={api.kubeconfig}", f"--repo-server={HOST}:{repo}", "--repo-server-plaintext"]
    # --client-ca-path has a default, which the repo server refuses together with --disable-tls.
    repo_flags = [f"--address={HOST}", f"--port={repo}", *_metrics(), *shared, "--disable-tls", "--client-ca-path="]
    server_flags = [f"--address={HOST}", f"--port={server}", *_metrics(), *client, "--insecure", "--disable-auth"]
    with ExitStack() as stack:

        def start(name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
            return stack.enter_context(_running(name, command, environment, directory))

        _wait_for_port(start("redis", [_find("redis-server"), f"--bind {HOST}", f"--port {redis}", "--save ''", "--appendonly no"]), redis)
        _wait_for_port(start("argocd-repo-server", [str(binary), *repo_flags]), repo)
        start("argocd-application-controller", [str(binary), *client, *_metrics()])
        _wait_for_port(start("argocd-server", [str(binary), *server_flags]), server)
        yield ArgoCd(str(binary), server, environment)


def _ensure_packages(*commands: str) -> None:
    """From the distribution, as the cluster's scripts do it."""
    library = ROOT / "hack/cluster/lib"
    script = f"set -euo pipefail; source '{library}/common.sh'; source '{library}/packages.sh'; install_packages {' '.join(commands)}"
    if subprocess.run(["bash", "-c", script], check=False).returncode != 0:
        raise ScenarioError(f"one of these is missing and could not be installed, see above: {', '.join(commands)}")


def _install(api: ApiServer, files: Path) -> None:
    """What its install manifests have besides the workloads; with an administrator's kubeconfig no roles are needed."""
    _kubectl(api, "apply", "--server-side", *(f"--filename={path}" for path in sorted((files / "manifests/crds").glob("*-crd.yaml"))))
    wait_until("Argo CD's kinds", lambda: api.kubectl("get", "applications,appprojects", "--all-namespaces").returncode == 0)
    _kubectl(api, "create", "namespace", NAMESPACE)
    _kubectl(api, "apply", f"--namespace={NAMESPACE}", *(f"--filename={path}" for path in sorted((files / "manifests/base/config").glob("argocd-*.yaml"))))


def _kubectl(api: ApiServer, *arguments: str) -> None:
    done = api.kubectl(*arguments)
    if done.returncode != 0:
        raise ScenarioError(f"kubectl {arguments[0]}: {done.stderr.strip()}")


def _build_environment(binary: Path, directory: Path) -> dict[str, str]:
    """Its own folders; ``https://kubernetes.default.svc`` then means the kubeconfig, and its helpers are found."""
    folders = {name: directory / folder for name, folder in _FOLDERS.items()}
    commands = directory / "bin"
    for folder in (*folders.values(), commands):
        folder.mkdir(mode=0o700)
    shutil.copy(binary.parent / "files/hack/git-verify-wrapper.sh", commands)
    (commands / "git-verify-wrapper.sh").chmod(0o755)
    (commands / "argocd-git-ask-pass").symlink_to(binary)
    own = {"ARGOCD_FAKE_IN_CLUSTER": "true", "ARGOCD_GPG_ENABLED": "false", "HOSTNAME": "argocd-application-controller-0"}
    return dict(os.environ) | own | {name: str(path) for name, path in folders.items()} | {"PATH": f"{commands}:{os.environ['PATH']}"}


@contextmanager
def _running(name: str, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One binary is all of them: the variable says which."""
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**environment, "ARGOCD_BINARY_NAME": name})
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], port: int) -> None:
    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0

    wait_until(f"{process.args!r} to listen on port {port}", lambda: listens() or process.poll() is not None)
    if process.poll() is not None:
        raise ScenarioError(f"{process.args!r} ended with {process.returncode}: see its log (--keep)")


def wait_until(what: str, ask: Callable[[], bool]) -> None:
    """Poll until it is so; raises ScenarioError."""
    deadline = time.monotonic() + START_SECONDS
    while not ask():
        if time.monotonic() > deadline:
            raise ScenarioError(f"gave up waiting for {what}")
        time.sleep(0.2)


def _metrics() -> list[str]:
    return [f"--metrics-port={_free_port()}"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _find(command: str) -> str:
    found = shutil.which(command)
    if found is None:
        raise ScenarioError(f"{command} is missing: install the package of that name")
    return found
