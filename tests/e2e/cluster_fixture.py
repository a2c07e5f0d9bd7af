"""A second local cluster for the tests of the cluster itself, which kill it and take it down.

It has its own directory and number, so it stands beside the cluster that people and the other tests use and leaves that one alone.
Standard library only: these tests must run where nothing of the project is installed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[2] / "hack" / "cluster"
BUSYBOX = "localhost/meta-infer/busybox:dev"
# The highest number there is: the one that somebody who starts a second cluster by hand takes last.
INSTANCE = "15"
CGROUP = f"mi-{INSTANCE}"


def why_not() -> str:
    """Why these tests cannot run here; empty where they can."""
    if sys.platform != "linux":
        return "the local cluster needs Linux (namespaces, cgroups)"
    if os.geteuid() != 0:
        return "the local cluster needs root (namespaces, cgroups): run the tests with 'sudo -E'"
    return ""


def wait_until(what: str, probe: Callable[[], bool], *, timeout_seconds: float) -> None:
    """Poll until it is so, fail with its name otherwise."""
    deadline = time.monotonic() + timeout_seconds
    while not probe():
        assert time.monotonic() < deadline, f"gave up waiting: {what}"
        time.sleep(0.2)


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster in one directory."""

    directory: Path

    @property
    def environment(self) -> dict[str, str]:
        """What makes the scripts mean this cluster."""
        return {**os.environ, "META_INFER_CLUSTER_DIR": str(self.directory), "META_INFER_CLUSTER_INSTANCE": INSTANCE}

    def start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """One of the scripts, left running in a process group of its own."""
        return subprocess.Popen([SCRIPTS / script, *arguments], env=self.environment, text=True, stderr=subprocess.PIPE, start_new_session=True)

    def run(self, script: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """One of the scripts, to its end."""
        done = subprocess.run([SCRIPTS / script, *arguments], env=self.environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0 or not check, f"{script} failed: {done.stdout}{done.stderr}"
        return done

    def kubectl(self, *arguments: str, given: Mapping[str, Any] | None = None) -> str:
        """Standard output of kubectl, with an object as its input."""
        command = [self.run("bin", "kubectl").stdout.strip(), f"--kubeconfig={self.directory}/admin.kubeconfig", *arguments]
        done = subprocess.run(command, input=json.dumps(given) if given else None, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)} failed: {done.stderr}"
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """The same, for ``get``, parsed."""
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def daemons(self) -> dict[str, int]:
        """Name and pid of every daemon that runs, without what they started, which carries the same mark."""
        names = {pid: Path(_environment(pid).get("META_INFER_DAEMON", "")).name for pid in self.pids()}
        return {name: pid for pid, name in names.items() if name and _executable(pid) == name.split(".", maxsplit=1)[0]}

    def pids(self) -> set[int]:
        """Every process of this cluster: daemons by their environment, what runs in pods by its cgroup."""
        marked = {pid for pid in _all_pids() if _environment(pid).get("META_INFER_CLUSTER") == str(self.directory)}
        grouped = {int(pid) for file in Path("/sys/fs/cgroup").glob(f"**/{CGROUP}/**/cgroup.procs") for pid in _read(file).split()}
        return marked | grouped

    def cut_power(self) -> None:
        """Kill everything at once, as when the machine loses its power, until nothing is left."""
        for _ in range(20):
            if not (pids := self.pids()):
                return
            for pid in pids:
                _kill(pid)
            time.sleep(0.2)
        raise AssertionError(f"processes do not end: {self.pids()}")


def kernel_state() -> set[str]:
    """What a cluster could leave behind in the kernel."""

    def lines(*command: str) -> list[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()

    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    state = {
        # Whoever builds an image meanwhile mounts its storage.
        "mount": [mount for mount in mounts if not mount.startswith("/var/lib/containers")],
        "network namespace": [str(path) for path in Path("/run/netns").glob("*")],
        "link": [line.split(":")[1].split("@")[0].strip() for line in lines("ip", "-oneline", "link")],
        "route": lines("ip", "route"),
        "iptables rule": [line for line in lines("iptables-save") if line.startswith("-A")],
        "cgroup": [str(path) for path in Path("/sys/fs/cgroup").glob("**/mi*/")],
        "sysctl": lines("sysctl", "vm.overcommit_memory", "kernel.panic", "kernel.panic_on_oops"),
    }
    return {f"{kind} {item}" for kind, items in state.items() for item in items}


def job(name: str, node: str, script: str, **limits: str) -> dict[str, Any]:
    """A Job that a restricted namespace takes, on one node by name."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "resources": {"limits": limits},
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
    }
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": pod}}}


def _all_pids() -> Iterable[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _environment(pid: int) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in _read(Path(f"/proc/{pid}/environ")).split("\0") if "=" in entry)


def _executable(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def _read(file: Path) -> str:
    """Empty where the process or the cgroup ended meanwhile."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
