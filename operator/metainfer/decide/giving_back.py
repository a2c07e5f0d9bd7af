"""A decision that is taken back where nothing of ours was before it: the Deployment becomes what its owner declares. Pure.

The same restore as for an adaptation that goes (``leaving``), but the adaptation stays and says how far it is.
"""

from __future__ import annotations

from metainfer.api.v1alpha1 import reasons
from metainfer.decide.draft import Draft
from metainfer.decide.facts import TargetFacts
from metainfer.decide.keeping.taking_back import taken_back_words, tell_taken_back
from metainfer.decide.lasting import APPLY_REFUSED, find_refusal
from metainfer.decide.leaving import is_marked, owns_fields
from metainfer.decide.plan import AdaptationPlan, RestoreTarget
from metainfer.decide.pre_image import read_pre_image
from metainfer.decide.readback import is_rolled_out
from metainfer.decide.restored import find_left
from metainfer.decide.rollout import ROLLOUT_POLL_SECONDS, interruption
from metainfer.decide.scene import Scene
from metainfer.decide.target import TargetProblem


def give_back(draft: Draft, scene: Scene, problem: TargetProblem | None) -> AdaptationPlan:
    """Restore, wait for the owner's own pods, and stay there."""
    target = scene.target
    draft.find(reasons.SETTINGS_EFFECTIVE, "Unknown", "NotApplied", "")
    if is_marked(target):
        return _restore(draft, target, problem)
    draft.put(placement=None, apply_refusal=None)
    words = f"the Deployment is what its owner declares; {taken_back_words(draft.status)}"
    draft.find(reasons.APPLIED, "False", "GivenBack", words)
    if not is_rolled_out(target) and not target.paused:
        waiting = f"waiting for the rollout{interruption(target) if target.available_replicas == 0 else ''}: {words}"
        draft.step("RollingOut", waiting[:256])
        return draft.wait("GoingBack", waiting, seconds=None)  # the Deployment's next event wakes the pass
    return draft.done("GivenBack", words)


def _restore(draft: Draft, target: TargetFacts, problem: TargetProblem | None) -> AdaptationPlan:
    words = taken_back_words(draft.status)
    draft.find(reasons.APPLIED, "False", "GoingBack", words)
    if not owns_fields(target):
        left = "; ".join(str(item) for item in find_left(target.raw, read_pre_image(target.annotations))[:8])
        return draft.stall("FieldsLeft", f"{words}; no longer recorded as the operator's, hence left as they are: {left or 'marks of the operator'}")
    if draft.snapshot.adaptation.spec.update_policy.mode == "Off":
        draft.find(reasons.APPLIED, "False", "RecommendOnly", f"updatePolicy.mode is Off: nothing is written; {words}")
        return draft.done("Recommended", f"updatePolicy.mode is Off: nothing is written; {words}")
    refused = find_refusal(draft)
    if refused is not None:
        return draft.stall(APPLY_REFUSED, f"{refused.message}; {words}", seconds=refused.seconds)
    if problem is not None:
        return draft.wait(problem.reason, f"{problem.message}; {words}", seconds=None)
    tell_taken_back(draft)
    draft.act(RestoreTarget(target.namespace, target.name, target.uid, target.resource_version))
    waiting = f"giving the Deployment back to its owner{interruption(target)}: {words}"
    draft.step("Applying", waiting[:256])
    return draft.wait("GoingBack", waiting, seconds=ROLLOUT_POLL_SECONDS)
