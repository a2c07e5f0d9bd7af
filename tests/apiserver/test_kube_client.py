"""The port against a real API server: every method, and every refusal as its type."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from tests.apiserver.identities import create_identity, read_cluster, write_kubeconfig
from tests.apiserver.make_cluster import create_node, ensure_kinds, make, make_adaptation, make_deployment

from metainfer.kube.client import KubeClient, Selection
from metainfer.kube.credentials import read_credentials
from metainfer.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Expired,
    FieldConflict,
    FieldOwner,
    Forbidden,
    Invalid,
    NotFound,
    ServerUnavailable,
    Unauthorized,
)
from metainfer.kube.kinds import ADAPTATION, CONFIG_MAP, DEPLOYMENT, JOB, NAMESPACE, NODE, POD, Kind
from metainfer.kube.rate import TokenBucket
from metainfer.kube.transport import Call, Transport

pytestmark = pytest.mark.apiserver

Raw = dict[str, Any]
READ_NAMESPACES = [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}]


def _settings(namespace: str, name: str = "settings", **data: str) -> Raw:
    return make(CONFIG_MAP, name, namespace, data=data)


async def test_objects_are_created_read_and_deleted(kube: KubeClient, namespace: str) -> None:
    """Raw objects go in and come out; what is gone is NotFound, and deleting it again is fine."""
    created = await kube.create(CONFIG_MAP, _settings(namespace, a="1"))
    assert (await kube.get(CONFIG_MAP, "settings", namespace)) == created
    assert created["metadata"]["managedFields"][0]["manager"] == "metainfer"
    await kube.delete(CONFIG_MAP, "settings", namespace)
    await kube.delete(CONFIG_MAP, "settings", namespace)
    with pytest.raises(NotFound, match='configmaps "settings" not found'):
        await kube.get(CONFIG_MAP, "settings", namespace)


async def test_a_second_create_is_already_exists(kube: KubeClient, namespace: str) -> None:
    """With names derived from inputs this answer means that the work was done before."""
    await kube.create(CONFIG_MAP, _settings(namespace))
    with pytest.raises(AlreadyExists) as caught:
        await kube.create(CONFIG_MAP, _settings(namespace))
    assert not caught.value.retryable


async def test_delete_takes_only_the_object_that_was_meant(kube: KubeClient, namespace: str) -> None:
    """Another uid means that the object meant is gone: nothing is deleted and nothing raised."""
    created = await kube.create(CONFIG_MAP, _settings(namespace))
    await kube.delete(CONFIG_MAP, "settings", namespace, uid="00000000-0000-0000-0000-000000000000")
    assert (await kube.get(CONFIG_MAP, "settings", namespace))["metadata"]["uid"] == created["metadata"]["uid"]
    await kube.delete(CONFIG_MAP, "settings", namespace, uid=created["metadata"]["uid"])
    with pytest.raises(NotFound):
        await kube.get(CONFIG_MAP, "settings", namespace)


async def test_what_breaks_the_schema_is_invalid_and_names_the_field(kube: KubeClient, namespace: str) -> None:
    """The server's words are kept."""
    with pytest.raises(Invalid, match=r"spec\.template.spec.containers: Required value"):
        await kube.create(DEPLOYMENT, make(DEPLOYMENT, "bad", namespace))


async def test_a_kind_that_is_not_installed_is_not_found(kube: KubeClient) -> None:
    """A missing CRD is told like a missing object."""
    with pytest.raises(NotFound):
        await kube.list(Kind("nobody.example", "v1", "Nothing", "nothings", namespaced=False))


async def test_apply_takes_and_gives_up_our_fields_only(kube: KubeClient, namespace: str) -> None:
    """A field left out of the next apply goes, one of somebody else stays."""
    await kube.create(DEPLOYMENT, make_deployment("ocr", namespace, env={"THEIRS": "1"}))
    entry: Raw = {"name": "server", "env": [{"name": "OURS", "value": "2"}]}
    applied = await kube.apply(DEPLOYMENT, "ocr", {"spec": {"template": {"spec": {"containers": [entry]}}}}, namespace=namespace)
    assert {item["name"] for item in applied["spec"]["template"]["spec"]["containers"][0]["env"]} == {"THEIRS", "OURS"}
    released = await kube.apply(DEPLOYMENT, "ocr", {}, namespace=namespace)
    assert [item["name"] for item in released["spec"]["template"]["spec"]["containers"][0]["env"]] == ["THEIRS"]


async def _apply_as(kube: KubeClient, manager: str, deployment: Raw) -> None:
    path = DEPLOYMENT.path(namespace=deployment["metadata"]["namespace"], name=deployment["metadata"]["name"])
    await kube._transport.send(Call("apply", "PATCH", path, {"fieldManager": manager}, deployment, "application/apply-patch+yaml"))


async def test_apply_never_forces_and_names_who_owns_what(kube: KubeClient, namespace: str) -> None:
    """Each contested field comes with its manager, whatever that one is called."""
    manager = 'team "a" with words'
    await _apply_as(kube, manager, make_deployment("ocr", namespace, env={"A": "1", "B": "1"}))
    entry: Raw = {"name": "server", "env": [{"name": "A", "value": "2"}, {"name": "B", "value": "2"}, {"name": "C", "value": "2"}]}
    with pytest.raises(FieldConflict) as caught:
        await kube.apply(DEPLOYMENT, "ocr", {"spec": {"template": {"spec": {"containers": [entry]}}}}, namespace=namespace)
    path = '.spec.template.spec.containers[name="server"].env[name="{}"].value'
    assert caught.value.causes == (FieldOwner(path.replace("{}", "A"), manager), FieldOwner(path.replace("{}", "B"), manager))
    assert not caught.value.retryable


async def test_status_is_swapped_only_at_the_version_it_was_read_at(kube: KubeClient, namespace: str) -> None:
    """The second of two writers is told so, and may look again."""
    await ensure_kinds(kube)
    read = await kube.create(ADAPTATION, make_adaptation("ocr", namespace))
    version = read["metadata"]["resourceVersion"]
    written = await kube.replace_status(ADAPTATION, "ocr", namespace, {"observedGeneration": 1}, version)
    assert written["status"] == {"observedGeneration": 1}
    with pytest.raises(Conflict) as caught:
        await kube.replace_status(ADAPTATION, "ocr", namespace, {"observedGeneration": 2}, version)
    assert caught.value.retryable
    assert (await kube.get(ADAPTATION, "ocr", namespace))["status"] == {"observedGeneration": 1}


async def test_a_field_that_is_no_longer_set_leaves_the_status(kube: KubeClient, namespace: str) -> None:
    """The status is replaced, not merged: lists, objects and values that are not in the new one are gone."""
    await ensure_kinds(kube)
    read = await kube.create(ADAPTATION, make_adaptation("ocr", namespace))
    run = {"id": "r", "inputsHash": "h", "startedAt": "2026-01-01T00:00:00Z", "step": "Probing"}
    full = {"observedGeneration": 1, "run": run, "rejections": [{"reason": "TooBig", "count": 1, "message": "m"}]}
    first = await kube.replace_status(ADAPTATION, "ocr", namespace, full, read["metadata"]["resourceVersion"])
    assert first["status"]["run"]["step"] == "Probing"
    second = await kube.replace_status(ADAPTATION, "ocr", namespace, {"observedGeneration": 1}, first["metadata"]["resourceVersion"])
    assert second["status"] == {"observedGeneration": 1}
    assert second["spec"] == read["spec"]


async def test_status_of_a_cluster_scoped_object_that_has_none_yet(kube: KubeClient) -> None:
    """The first status of all is written the same way."""
    node = await create_node(kube, "status-node")
    written = await kube.replace_status(NODE, "status-node", None, {"allocatable": {"cpu": "1"}}, node["metadata"]["resourceVersion"])
    assert written["status"]["allocatable"] == {"cpu": "1"}
    assert "conditions" not in written["status"]


async def test_patches(kube: KubeClient, namespace: str) -> None:
    """A JSON patch tests before it writes; a merge patch removes with null, and compares the version when it is given."""
    created = await kube.create(CONFIG_MAP, _settings(namespace, a="1", b="1"))
    await kube.patch_json(CONFIG_MAP, "settings", namespace, [{"op": "test", "path": "/data/a", "value": "1"}, {"op": "remove", "path": "/data/a"}])
    with pytest.raises(Invalid):
        await kube.patch_json(CONFIG_MAP, "settings", namespace, [{"op": "test", "path": "/data/b", "value": "2"}])
    stale = [{"op": "add", "path": "/metadata/resourceVersion", "value": created["metadata"]["resourceVersion"]}]
    with pytest.raises(Conflict):
        await kube.patch_json(CONFIG_MAP, "settings", namespace, [*stale, {"op": "add", "path": "/data/d", "value": "4"}])


async def test_the_log_of_nothing_is_not_found(kube: KubeClient, namespace: str) -> None:
    """A pod that is gone has no log; one that is on no node has none yet, which is another answer."""
    with pytest.raises(NotFound):
        await kube.pod_log(namespace, "gone", "server", tail_lines=1, limit_bytes=1024)
    await kube.create(POD, make(POD, "waiting", namespace, spec={"containers": [{"name": "server", "image": "x"}]}))
    with pytest.raises(Invalid, match="nope"):
        await kube.pod_log(namespace, "waiting", "nope", tail_lines=1, limit_bytes=1024)


async def _create_many(kube: KubeClient, namespace: str, count: int) -> set[str]:
    names = [f"c-{number:04d}" for number in range(count)]
    bodies = [make(CONFIG_MAP, name, namespace, metadata={"labels": {"half": str(index % 2)}}) for index, name in enumerate(names)]
    for start in range(0, count, 100):
        await asyncio.gather(*(kube.create(CONFIG_MAP, body) for body in bodies[start : start + 100]))
    return set(names)


async def test_a_long_list_comes_in_pages_of_one_version(kube: KubeClient, namespace: str) -> None:
    """1,200 objects arrive in three pages that show the same moment, each object once; selectors hold on every page."""
    want = await _create_many(kube, namespace, 1200)
    pages = []
    async for page in kube.list_pages(CONFIG_MAP, Selection(namespace)):
        if not pages:
            await kube.create(CONFIG_MAP, make(CONFIG_MAP, "zzz-late", namespace))
        pages.append(page)
    assert [len(page.items) for page in pages] == [500, 500, 200]
    assert len({page.resource_version for page in pages}) == 1
    assert sorted(raw["metadata"]["name"] for page in pages for raw in page.items) == sorted(want)
    items, version = await kube.list(CONFIG_MAP, namespace=namespace, label_selector="half=1")
    assert len(items) == 600
    assert int(version) > int(pages[0].resource_version)


class ForgetfulTransport(Transport):
    """Answers the n-th request for a further page as a server does that compacted the list away."""

    def __init__(self, expire: int) -> None:
        super().__init__(TokenBucket(1000.0, 1000))
        self.left = expire
        self.limits: list[str | None] = []

    async def send(self, call: Call) -> bytes:
        self.limits.append(call.query.get("limit"))
        if "continue" in call.query and self.left > 0:
            self.left -= 1
            raise Expired(410, "Expired", "the provided continue parameter is too old")
        return await super().send(call)


@pytest.mark.parametrize(("expiries", "want_limits"), [(1, ["3"] * 6), (2, ["3", "3", "3", "3", None])], ids=["once", "every time"])
async def test_a_list_whose_token_expired_starts_again(kube: KubeClient, namespace: str, expiries: int, want_limits: list[str | None]) -> None:
    """No object is there twice or missing; a list that expires again and again is asked for in one piece."""
    want = await _create_many(kube, namespace, 10)
    forgetful = KubeClient(ForgetfulTransport(expiries))
    try:
        items, _ = await forgetful.list(CONFIG_MAP, namespace=namespace, chunk=3)
    finally:
        await forgetful.close()
    assert sorted(raw["metadata"]["name"] for raw in items) == sorted(want)
    assert forgetful._transport.limits == want_limits  # type: ignore[attr-defined] # the transport above


async def test_a_wrong_continue_token_is_a_typed_refusal(kube: KubeClient) -> None:
    """The real server's own words for a bad token are an ApiError as well."""
    with pytest.raises(ApiError):
        await kube._transport.send(Call("list", "GET", NODE.path(), {"continue": "rubbish", "limit": "1"}))


async def test_who_has_no_right_is_forbidden(kube: KubeClient, namespace: str, kubeconfig: Path, tmp_path: Path) -> None:
    """RBAC's answer says who may not do what; it is not tried again."""
    token = await create_identity(kube, namespace, [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}])
    limited = _client_of(write_kubeconfig(kubeconfig, tmp_path / "limited", token=token))
    await kube.create(CONFIG_MAP, _settings(namespace))
    assert (await limited.get(CONFIG_MAP, "settings", namespace))["metadata"]["name"] == "settings"
    with pytest.raises(Forbidden, match="cannot list resource"):
        await limited.list(JOB)
    await limited.close()


def _client_of(kubeconfig: Path) -> KubeClient:
    async def login() -> Any:
        return await read_credentials({"KUBECONFIG": str(kubeconfig)})

    return KubeClient(Transport(TokenBucket(1000.0, 1000), login=login))


async def test_a_token_that_was_replaced_is_read_again(kube: KubeClient, namespace: str, kubeconfig: Path, tmp_path: Path) -> None:
    """A 401 reads the credentials anew and tries once more; when they are still refused, it is Unauthorized."""
    token = await create_identity(kube, namespace, READ_NAMESPACES)
    rotating = write_kubeconfig(kubeconfig, tmp_path / "rotating", token="worn-out")
    client = _client_of(rotating)
    with pytest.raises(Unauthorized) as caught:
        await client.get(NAMESPACE, "default")
    assert caught.value.retryable
    write_kubeconfig(kubeconfig, rotating, token=token)
    assert (await client.get(NAMESPACE, "default"))["metadata"]["name"] == "default"
    await client.close()


async def test_the_service_account_of_a_pod_logs_in(kube: KubeClient, namespace: str, kubeconfig: Path, tmp_path: Path) -> None:
    """Token and CA as the kubelet projects them; the token is read again from the file when it is a minute old."""
    cluster, now = read_cluster(kubeconfig), [0.0]
    (tmp_path / "token").write_text(await create_identity(kube, namespace, READ_NAMESPACES) + "\n")
    (tmp_path / "ca.crt").write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    host, _, port = cluster["server"].removeprefix("https://").rpartition(":")

    async def login() -> Any:
        return await read_credentials({"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}, tmp_path)

    client = KubeClient(Transport(TokenBucket(1000.0, 1000), login=login, clock=lambda: now[0]))
    assert (await client.get(NAMESPACE, "default"))["metadata"]["name"] == "default"
    (tmp_path / "token").write_text("worn-out")
    assert (await client.get(NAMESPACE, "default"))["metadata"]["name"] == "default"
    now[0] = 61.0
    with pytest.raises(Unauthorized):
        await client.get(NAMESPACE, "default")
    await client.close()


async def test_a_server_that_is_not_there_is_unavailable(kubeconfig: Path, tmp_path: Path) -> None:
    """No connection is a typed, retryable error without a trace of the HTTP library's own."""
    client = _client_of(write_kubeconfig(kubeconfig, tmp_path / "nowhere", server="https://127.0.0.1:1"))
    with pytest.raises(ServerUnavailable, match="ClientConnectorError") as caught:
        await client.get(NAMESPACE, "default")
    assert (caught.value.status, caught.value.retryable) == (0, True)
    await client.close()
