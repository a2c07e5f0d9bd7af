"""Our fields on the target Deployment: applied, or given back. The only file that writes to somebody else's workload.

Never forces: who owns what was decided before, and a conflict that comes all the same is reported with its path and manager.
"""

from __future__ import annotations

from metainfer.act.ports import ClusterWriter, Raw
from metainfer.act.release import build_release
from metainfer.decide.plan import ApplyTarget
from metainfer.kube.kinds import DEPLOYMENT


async def apply_target(client: ClusterWriter, action: ApplyTarget) -> Raw:
    """Release what is contested, then apply the full set of our fields. Returns the Deployment.

    Raises NotFound, FieldConflict, Invalid or Forbidden (nothing was applied), Conflict (somebody wrote in between).
    """
    live = await client.get(DEPLOYMENT, action.name, action.namespace)
    release = build_release(live, action.release_env)
    if release:
        await client.patch_json(DEPLOYMENT, action.name, action.namespace, release)
    # The UID turns 'it was deleted meanwhile' into a conflict: an apply would otherwise create half a Deployment.
    metadata = {"uid": live["metadata"]["uid"]} | dict(action.body.get("metadata") or {}) | {"name": action.name, "namespace": action.namespace}
    return await client.apply(DEPLOYMENT, action.name, {**action.body, "metadata": metadata}, namespace=action.namespace)
