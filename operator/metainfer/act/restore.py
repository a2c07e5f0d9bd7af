"""Leaves the target as its owner declares it: release of contested entries, then an apply of nothing.

What an empty apply cannot know (ownership lost through a backup or ``rollout undo``, empty parents that were there before) is for the
comparison with the pre-image, which belongs to whoever calls this.
"""

from __future__ import annotations

from metainfer.act.ports import ClusterWriter, Raw
from metainfer.act.release import build_release, find_contested_env, owns_fields
from metainfer.kube.kinds import DEPLOYMENT


async def restore_target(client: ClusterWriter, namespace: str, name: str) -> Raw:
    """Give up every field that our server-side apply owns; returns the Deployment as it is then.

    Writes nothing where nothing is ours. Raises NotFound, Conflict (somebody wrote in between: try again) and other ApiErrors.
    """
    live = await client.get(DEPLOYMENT, name, namespace)
    if not owns_fields(live):
        return live
    release = build_release(live, find_contested_env(live))
    if release:
        live = await client.patch_json(DEPLOYMENT, name, namespace, release)
    return await client.apply(DEPLOYMENT, name, {"metadata": {"name": name, "namespace": namespace, "uid": live["metadata"]["uid"]}}, namespace=namespace)
