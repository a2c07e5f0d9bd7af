"""The pods run another build of the same image name than when the decision was made: somebody pushed a tag again. Pure.

The name in the pod template is an input of the run (``ImageChanged``); what a tag stands for is only seen in the status of running pods,
and only as a repository digest can it be compared: a runtime that reports its own image id tells nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from metainfer.decide.draft import Draft
from metainfer.decide.keeping.suspicion import Suspicion
from metainfer.decide.scene import Scene

LISTED_DIGESTS: Final = 8
SHOWN: Final = len("sha256:") + 12


def find_image_change(draft: Draft, scene: Scene) -> Suspicion | None:
    """``RuntimeChanged``: a run, because no check of ours can tell what the server's own build does."""
    present = _digests(draft, scene)
    known = draft.status.image_digests
    if not known:
        if present:
            draft.put(image_digests=tuple(present[:LISTED_DIGESTS]))
        return None
    fresh = [digest for digest in present if digest not in known]
    if not fresh or len(known) >= LISTED_DIGESTS:
        return None
    words = f"pods run another build of image {scene.container.image}: {fresh[0][:SHOWN]}…, not {known[0][:SHOWN]}…"
    return Suspicion("RuntimeChanged", words, "Run", settle_seconds=draft.snapshot.limits.driver_settle_seconds)


def _digests(draft: Draft, scene: Scene) -> Sequence[str]:
    """Of the serving container in ready pods that are not about to go, each once."""
    ready = [pod for pod in draft.snapshot.target_pods if pod.ready and not pod.deleting]
    states = [state for pod in ready for state in pod.states if state.name == scene.container.name]
    return sorted({state.image_digest for state in states if state.image_digest})
