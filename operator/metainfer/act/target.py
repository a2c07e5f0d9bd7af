"""Our fields on the target Deployment: applied, or given back. The only file that writes to somebody else's workload.

Never forces: who owns what was decided before, and a conflict that comes all the same is reported with its path and manager.
"""

from __future__ import annotations

from metainfer.act.ports import ClusterWriter, Raw
from metainfer.act.release import build_release
from metainfer.decide.plan import ApplyTarget
from metainfer.kube.errors import Conflict
from metainfer.kube.kinds import DEPLOYMENT


async def apply_target(client: ClusterWriter, action: ApplyTarget) -> Raw:
    """Release what is contested, then apply the full set of our fields. Returns the Deployment.

    Raises NotFound, FieldConflict, Invalid or Forbidden (nothing was applied), Conflict (somebody wrote since it was judged).
    """
    live = await _read(client, action)
    release = build_release(live, action.release_env)
    if release:
        live = await client.patch_json(DEPLOYMENT, action.name, action.namespace, release)
    return await _apply(client, action, live)


async def preview_target(client: ClusterWriter, action: ApplyTarget) -> Raw:
    """What ``apply_target`` would make of the Deployment where nothing is contested, by the API server's own dry run. Raises the same."""
    return await _apply(client, action, await _read(client, action), dry_run=True)


async def _read(client: ClusterWriter, action: ApplyTarget) -> Raw:
    live: Raw = await client.get(DEPLOYMENT, action.name, action.namespace)
    if action.resource_version not in ("", live["metadata"]["resourceVersion"]):
        raise Conflict(409, "Conflict", f"Deployment {action.namespace}/{action.name} has changed since it was looked at")
    return live


async def _apply(client: ClusterWriter, action: ApplyTarget, live: Raw, *, dry_run: bool = False) -> Raw:
    # The UID turns 'it was deleted meanwhile' into a conflict: an apply would otherwise create half a Deployment. The version does so
    # with an apply that was held up on its way: it may arrive when it was sent again, or when something else was decided.
    version = {key: live["metadata"][key] for key in ("uid", "resourceVersion")}
    metadata = dict(action.body.get("metadata") or {}) | {"name": action.name, "namespace": action.namespace} | version
    return await client.apply(DEPLOYMENT, action.name, {**action.body, "metadata": metadata}, namespace=action.namespace, dry_run=dry_run)
