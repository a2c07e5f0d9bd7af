"""The local cluster of hack/cluster: what its scripts promise, on a second cluster that may be broken.

The tests run in the order of this file; the last ones cut the power and take the cluster down.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cluster_fixture import CGROUP, SCRIPTS, Cluster, job, kernel_state, wait_until, why_not

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(bool(why_not()), reason=why_not())]

# On a disk: images cannot be laid over a temporary directory that is an overlay itself.
DIRECTORY = Path("/var/lib/meta-infer-cluster-test")
NODES = ["minode1", "minode2", "minode3", "minode4", "minode5"]


@pytest.fixture(scope="module")
def before() -> set[str]:
    """The machine before the cluster came, with what an interrupted run of these tests left taken away."""
    Cluster(DIRECTORY).run("down", "--purge")
    return kernel_state()


@pytest.fixture(scope="module")
def cluster(before: set[str]) -> Iterator[Cluster]:
    """A cluster that is up, and gone without a trace when the tests end."""
    cluster = Cluster(DIRECTORY)
    cluster.run("up")
    yield cluster
    cluster.run("down", "--purge")


def finish(cluster: Cluster, name: str) -> tuple[str, str]:
    """Wait for a Job; what it logged and the message that it left."""
    cluster.kubectl("wait", "--for=condition=Complete", f"job/{name}", "--timeout=60s")
    log = cluster.kubectl("logs", f"job/{name}")
    (pod,) = cluster.get("pods", f"--selector=job-name={name}")["items"]
    cluster.kubectl("delete", "job", name)
    return log, pod["status"]["containerStatuses"][0]["state"]["terminated"].get("message", "")


def test_up_again_changes_nothing(cluster: Cluster) -> None:
    """A second `up` finds everything there: no daemon is started anew, no node registers again."""
    nodes = {node["metadata"]["name"]: node["metadata"]["uid"] for node in cluster.get("nodes")["items"]}
    daemons = cluster.daemons()
    cluster.run("up")
    assert {node["metadata"]["name"]: node["metadata"]["uid"] for node in cluster.get("nodes")["items"]} == nodes
    assert cluster.daemons() == daemons
    assert cluster.run("status").stdout.count("Ready") == len(NODES)


def test_nodes_have_families_and_one_card_each(cluster: Cluster) -> None:
    """Three nodes of one family, two of the other, a card on each."""
    found = {}
    for node in cluster.get("nodes")["items"]:
        labels = node["metadata"]["labels"]
        found[node["metadata"]["name"]] = (labels["card.metainfer.dev/product"], labels["card.metainfer.dev/driver-version"])
        assert labels["card.metainfer.dev/present"] == "true"
        assert node["status"]["allocatable"]["metainfer.dev/card"] == "1"
    ort, openvino = ("ort-cpu", "1.32.0"), ("openvino-cpu", "2026.4.1")
    assert found == dict(zip(NODES, [ort, ort, ort, openvino, openvino], strict=True))


def test_a_job_runs_on_the_named_node_under_the_restricted_profile(cluster: Cluster) -> None:
    """The log and the termination message of a Job come back, from each family."""
    cluster.kubectl("label", "namespace", "default", "pod-security.kubernetes.io/enforce=restricted")
    script = "id -u; nslookup kubernetes.default.svc.cluster.local; printf done > /dev/termination-log"
    for node in ("minode2", "minode5"):
        cluster.kubectl("create", "--filename=-", given=job("hello", node, script))
        log, message = finish(cluster, "hello")
        assert log.startswith("65532\n")
        assert "198.19.240.1" in log, "the name of the API server's Service is resolved"
        assert message == "done"


def test_a_card_is_given_to_one_pod_at_a_time(cluster: Cluster) -> None:
    """A second pod that wants the node's card waits until the first one is gone."""
    card = {"metainfer.dev/card": "1"}
    cluster.kubectl("create", "--filename=-", given=job("first", "minode4", "sleep 1000", **card))
    cluster.kubectl("wait", "--for=jsonpath={.status.ready}=1", "job/first", "--timeout=60s")
    cluster.kubectl("create", "--filename=-", given=job("second", "minode4", "echo mine", **card))

    def refused() -> bool:
        conditions = cluster.get("pods", "--selector=job-name=second")["items"][0]["status"].get("conditions", [])
        return any("Insufficient metainfer.dev/card" in condition.get("message", "") for condition in conditions)

    wait_until("the second pod is refused", refused, timeout_seconds=30)
    cluster.kubectl("delete", "job", "first")
    assert finish(cluster, "second")[0] == "mine\n"


def test_the_slow_node_is_throttled_whatever_limit_its_pods_have(cluster: Cluster) -> None:
    """A pod on minode3 meets the quota of the node's own group, and may ask for more than that quota."""

    def throttled() -> int:
        stats = [file.read_text(encoding="utf-8").splitlines() for file in Path("/sys/fs/cgroup").glob(f"**/{CGROUP}/minode3/cpu.stat")]
        return sum(int(line.split()[1]) for lines in stats for line in lines if line.startswith("nr_throttled"))

    count = throttled()
    cluster.kubectl("create", "--filename=-", given=job("busy", "minode3", "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); done", cpu="1", memory="64Mi"))
    finish(cluster, "busy")
    assert throttled() - count > 100


def test_up_makes_a_released_volume_and_a_changed_node_right_again(cluster: Cluster) -> None:
    """A volume whose claim is gone can be claimed again; labels, links and nodes come back to what they were."""
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "mi-store", "resources": {"requests": {"storage": "1Gi"}}}
    cluster.kubectl("create", "--filename=-", given={"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "store"}, "spec": claim})
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Bound", "pvc/store", "--timeout=30s")
    cluster.kubectl("delete", "pvc", "store")
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Released", "pv/mi-store", "--timeout=30s")
    cluster.kubectl("label", "node", "minode1", "--overwrite", "card.metainfer.dev/driver-version=9")
    cluster.kubectl("delete", "node", "minode2")
    assert cluster.run("status", check=False).returncode != 0
    cluster.run("up")
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Available", "pv/mi-store", "--timeout=30s")
    assert cluster.get("node", "minode1")["metadata"]["labels"]["card.metainfer.dev/driver-version"] == "1.32.0"
    cluster.run("status")


def test_an_image_reaches_every_node_once(cluster: Cluster, tmp_path: Path) -> None:
    """What is in the local storage can be run on every node; loading it again is quick."""
    if subprocess.run(["which", "buildah"], capture_output=True, check=False).returncode != 0:
        pytest.skip("buildah is not installed: hack/images/build installs it")
    name = "localhost/meta-infer/cluster-test:dev"
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY hello /hello\n", encoding="utf-8")
    (tmp_path / "hello").write_text("hello", encoding="utf-8")
    subprocess.run(["buildah", "bud", "--quiet", "--isolation", "chroot", "--tag", name, str(tmp_path)], check=True, capture_output=True)
    try:
        cluster.run("load", name)
        assert "is on all nodes" in cluster.run("load", name).stderr
    finally:
        subprocess.run(["buildah", "rmi", name], check=False, capture_output=True)
    assert [node for node in NODES if not _has_image(cluster, node, name)] == []


def _has_image(cluster: Cluster, node: str, name: str) -> bool:
    """Asked of the node's containerd: the kubelet reports its images with a delay."""
    pid = cluster.daemons()[f"containerd.{node}"]
    command = ["nsenter", "--mount", "--net", f"--target={pid}", "ctr", "--namespace=k8s.io", "images", "list", "--quiet", f"name=={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == name


def test_up_works_after_a_power_cut(cluster: Cluster) -> None:
    """Every process is killed at once, mounts and namespaces stay behind; `up` starts the same cluster again."""
    cluster.kubectl("create", "--filename=-", given=job("running", "minode1", "sleep 1000"))
    cluster.kubectl("wait", "--for=jsonpath={.status.ready}=1", "job/running", "--timeout=60s")
    cluster.cut_power()
    assert cluster.run("status", check=False).returncode != 0
    cluster.run("up")
    cluster.run("status")
    cluster.kubectl("delete", "job", "running")
    cluster.kubectl("create", "--filename=-", given=job("after", "minode1", "echo alive"))
    assert finish(cluster, "after")[0] == "alive\n"


def test_an_interrupted_up_can_be_run_again(cluster: Cluster) -> None:
    """Killed in the middle of its work, twice, at different places."""
    for seconds in (1.5, 4):
        cluster.cut_power()
        script = cluster.start("up")
        time.sleep(seconds)
        os.killpg(script.pid, signal.SIGKILL)
        script.communicate()
    cluster.run("up")
    cluster.run("status")


def test_api_servers_run_beside_each_other(tmp_path: Path) -> None:
    """`--api-only` takes one directory each, finds a port by itself, and leaves nothing."""
    directories = [tmp_path / "one", tmp_path / "two"]
    for directory in directories:
        done = subprocess.run([SCRIPTS / "up", "--api-only", "--dir", directory], capture_output=True, text=True, check=True, timeout=600)
        assert done.stdout.strip() == f"{directory}/admin.kubeconfig"
    ports = {(directory / "port").read_text(encoding="utf-8") for directory in directories}
    for directory in directories:
        subprocess.run([SCRIPTS / "down", "--api-only", "--dir", directory], check=True, timeout=60)
    assert len(ports) == len(directories)
    assert not any(directory.exists() for directory in directories)


def test_down_leaves_nothing(cluster: Cluster, before: set[str]) -> None:
    """No process, mount, namespace, link, route, firewall rule, cgroup or changed setting; the data stays until --purge."""
    cluster.kubectl("create", "--filename=-", given=job("running", "minode1", "sleep 1000"))
    cluster.kubectl("wait", "--for=jsonpath={.status.ready}=1", "job/running", "--timeout=60s")
    cluster.run("down")
    assert cluster.pids() == set()
    assert kernel_state() - before == set()
    assert (DIRECTORY / "etcd").is_dir()
    cluster.run("down", "--purge")
    assert not DIRECTORY.exists()
