"""Leaves a Deployment as its owner declares it: release what the owner has come to declare, apply nothing, compare with the pre-image.

Shared by the operator and ``metainfer restore``. Each step is a whole in itself and guarded by the version it was judged on, so that a
second try after a crash or a conflict ends in the same place.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from metainfer.act.ports import ClusterWriter, Raw
from metainfer.act.release import build_forgetting, build_patch_back, build_release, find_contested_env, owns_fields
from metainfer.decide.pre_image import read_pre_image
from metainfer.decide.restored import Left, find_empty_parents, find_left
from metainfer.kube.errors import Conflict
from metainfer.kube.kinds import DEPLOYMENT


@dataclass(frozen=True, slots=True)
class Restored:
    """The Deployment afterwards."""

    deployment: Raw
    changed: bool
    left: tuple[Left, ...]
    """Fields of ours that are still on it, because they are not recorded as ours any more."""


async def restore_target(client: ClusterWriter, namespace: str, name: str, *, uid: str = "", resource_version: str = "") -> Restored:
    """Give up every field that our server-side apply owns. Writes nothing where nothing is ours.

    ``uid`` and ``resource_version`` bind it to the object that was judged. Raises NotFound, Conflict (somebody wrote in between: judge
    again) and other ApiErrors.
    """
    before = await client.get(DEPLOYMENT, name, namespace)
    _check_version(before, uid, resource_version)
    pre_image = read_pre_image(before["metadata"].get("annotations") or {})
    if not owns_fields(before):
        return Restored(before, changed=False, left=find_left(before, pre_image))
    after = await (_patch_back(client, before) if find_empty_parents(before) else _apply_nothing(client, before))
    return Restored(after, changed=True, left=find_left(after, pre_image))


async def _apply_nothing(client: ClusterWriter, live: Raw) -> Raw:
    """The server takes away what is ours; what the owner has come to declare is released before."""
    released = await _patch(client, live, build_release(live, find_contested_env(live)))
    return await _apply(client, released)


async def _patch_back(client: ClusterWriter, live: Raw) -> Raw:
    """The same as one patch, because every apply drops empty maps, the owner's too, and a second write would be a second rollout."""
    wanted = await preview_restored(client, live)
    after = await _patch(client, live, build_patch_back(live, wanted))
    return await _patch(client, after, build_forgetting(after))


async def preview_restored(client: ClusterWriter, live: Raw) -> Raw:
    """What ``restore_target`` would make of the Deployment, by the API server's own dry run. Raises ApiErrors."""
    if not owns_fields(live):
        return live
    after = copy.deepcopy(await _apply(client, live, dry_run=True))
    # Restoring keeps these; a dry run of the apply alone does not.
    for container, name in find_contested_env(live):
        kept, entries = (_container(item, container) for item in (live, after))
        if name not in {entry["name"] for entry in entries.get("env", ())}:
            entries.setdefault("env", []).extend(entry for entry in kept["env"] if entry["name"] == name)
    for path in find_empty_parents(live):
        place: Any = after
        for step in path:
            place = place.setdefault(step.removeprefix("f:"), {})
    return after


def _container(deployment: Raw, name: str) -> dict[str, Any]:
    pod = deployment["spec"]["template"]["spec"]
    found: dict[str, Any] = next(item for item in (*pod["containers"], *pod.get("initContainers", ())) if item["name"] == name)
    return found


def _check_version(live: Raw, uid: str, resource_version: str) -> None:
    metadata = live["metadata"]
    if uid not in ("", metadata["uid"]) or resource_version not in ("", metadata["resourceVersion"]):
        raise Conflict(409, "Conflict", f"Deployment {metadata['namespace']}/{metadata['name']} has changed since it was looked at")


async def _patch(client: ClusterWriter, live: Raw, operations: list[dict[str, Any]]) -> Raw:
    metadata = live["metadata"]
    return await client.patch_json(DEPLOYMENT, metadata["name"], metadata["namespace"], operations) if operations else live


async def _apply(client: ClusterWriter, live: Raw, *, dry_run: bool = False) -> Raw:
    """Apply no field. The UID keeps it from making half a Deployment anew, the version from undoing a newer write."""
    identity = {key: live["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
    return await client.apply(DEPLOYMENT, identity["name"], {"metadata": identity}, namespace=identity["namespace"], dry_run=dry_run)
