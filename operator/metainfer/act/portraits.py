"""NodePortraits and our labels on nodes. Compares with what is there before it writes.

A portrait has its node's name and is owned by it, so that it goes when the node goes.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from metainfer.act.ports import ClusterWriter, Raw
from metainfer.act.status import dump_status
from metainfer.api.v1alpha1.common import FAMILY_LABEL, HEALTH_LABEL
from metainfer.api.v1alpha1.node_portrait import NodePortraitStatus
from metainfer.decide.ownership import is_ours, read_managed
from metainfer.decide.plan import WriteNodeLabels, WritePortrait
from metainfer.kube.errors import Conflict, Invalid, NotFound
from metainfer.kube.kinds import NODE, PORTRAIT

OUR_LABELS = (FAMILY_LABEL, HEALTH_LABEL)


async def write_portrait(client: ClusterWriter, action: WritePortrait) -> Raw | None:
    """Create or update the portrait; returns it, or None when nothing had to be written. Raises Conflict and other ApiErrors."""
    try:
        found = await client.get(PORTRAIT, action.node)
    except NotFound:
        found = None
    if found is not None and _owner_uid(found) != action.spec.node_uid:
        # Of a node that is gone: its garbage collection is only a matter of time, and would take our update along.
        await client.delete(PORTRAIT, action.node, uid=found["metadata"]["uid"])
        found = None
    written = await _write_spec(client, action, found)
    current = written or found
    if current is None:
        return None
    if _status_of(current) == action.status:
        return written
    return await client.replace_status(PORTRAIT, action.node, None, dump_status(action.status), current["metadata"]["resourceVersion"])


async def _write_spec(client: ClusterWriter, action: WritePortrait, found: Raw | None) -> Raw | None:
    spec = dump_status(action.spec)
    if found is None:
        return await client.create(PORTRAIT, build_portrait(action))
    if found.get("spec") == spec:
        return None
    operations = [
        {"op": "add", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]},
        {"op": "replace", "path": "/spec", "value": spec},
    ]
    return await client.patch_json(PORTRAIT, action.node, None, operations)


async def delete_portrait(client: ClusterWriter, node: str, pool: str) -> bool:
    """Remove the portrait of a node that left the pool; returns whether it was removed. One that another pool has taken over is left alone."""
    try:
        found = await client.get(PORTRAIT, node)
    except NotFound:
        return False
    if (found.get("spec") or {}).get("pool") != pool:
        return False
    await client.delete(PORTRAIT, node, uid=found["metadata"]["uid"])
    return True


def build_portrait(action: WritePortrait) -> dict[str, Any]:
    """The portrait without its status. Pure."""
    owner = {"apiVersion": NODE.api_version, "kind": NODE.kind, "name": action.node, "uid": action.spec.node_uid}
    metadata = {"name": action.node, "ownerReferences": [owner | {"controller": False, "blockOwnerDeletion": False}]}
    return {"apiVersion": PORTRAIT.api_version, "kind": PORTRAIT.kind, "metadata": metadata, "spec": dump_status(action.spec)}


def _owner_uid(portrait: Raw) -> str | None:
    owners = portrait["metadata"].get("ownerReferences") or ()
    return next((owner["uid"] for owner in owners if owner["kind"] == NODE.kind), None)


def _status_of(portrait: Raw) -> NodePortraitStatus | None:
    try:
        return NodePortraitStatus.model_validate(portrait.get("status") or {})
    except ValidationError:
        return None  # of another version: replaced as a whole


async def write_node_labels(client: ClusterWriter, action: WriteNodeLabels) -> Raw | None:
    """Apply the full set of our labels; returns the node, or None when it has them (or is gone). Raises Conflict and FieldConflict.

    A node whose UID was judged is not read again before it is labelled: with thousands of nodes every call counts.
    """
    uid = (action.uid if action.labels else "") or await _find_unlabelled(client, action)
    if uid is None:
        return None
    # The UID keeps an apply to a node that was deleted meanwhile from creating one.
    metadata: dict[str, Any] = {"name": action.node, "uid": uid}
    if action.labels:  # an empty map would be a field of ours too
        metadata["labels"] = dict(action.labels)
    try:
        return await client.apply(NODE, action.node, {"metadata": metadata})
    except (Conflict, Invalid):  # of a node that is gone, or is another one by now
        if action.uid and not await _is_there(client, action):
            return None
        raise


async def _find_unlabelled(client: ClusterWriter, action: WriteNodeLabels) -> str | None:
    """UID of the node, unless it is gone or has these labels."""
    try:
        node = await client.get(NODE, action.node)
    except NotFound:
        return None
    have = {key: value for key, value in (node["metadata"].get("labels") or {}).items() if key in OUR_LABELS}
    if have == dict(action.labels) or not (action.labels or any(map(is_ours, read_managed(node)))):
        return None  # labels that somebody else has set are not ours to take off
    return str(node["metadata"]["uid"])


async def _is_there(client: ClusterWriter, action: WriteNodeLabels) -> bool:
    """Whether the node that was judged still is; another one of its name is not ours to label yet."""
    try:
        node = await client.get(NODE, action.node)
    except NotFound:
        return False
    return bool(node["metadata"]["uid"] == action.uid)
