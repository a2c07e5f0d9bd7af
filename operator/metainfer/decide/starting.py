"""The start of a run: what triggers it, when it may begin, and what of the former one it may use. Pure.

A run is claimed in the status before anything is started for it, and its Jobs carry its id.
"""

from __future__ import annotations

from typing import Final

from metainfer.api.v1alpha1 import reasons
from metainfer.api.v1alpha1.checks import CheckStatus
from metainfer.api.v1alpha1.model_adaptation import RunStatus
from metainfer.decide.conditions import find_condition
from metainfer.decide.deciding import decided_candidate
from metainfer.decide.draft import Draft
from metainfer.decide.inputs import Inputs, list_inputs, read_inputs, start_run
from metainfer.decide.keeping.turns import AUTOMATIC
from metainfer.decide.known_families import note_families
from metainfer.decide.names import ADAPTATION_UID_LABEL, RUN_LABEL
from metainfer.decide.plan import AdaptationPlan, DeleteJob
from metainfer.decide.profiling import may_inherit, profile_key
from metainfer.decide.scene import Scene
from metainfer.decide.standing import note_standing
from metainfer.decide.triggers import Trigger, find_trigger, seconds_to_calm

PORTRAIT_POLL_SECONDS: Final = 15.0


def claim_run(draft: Draft, scene: Scene) -> AdaptationPlan | None:
    """One run per set of inputs. None = there is one and it goes on; else the plan that waits for its start."""
    inputs = read_inputs(draft.snapshot, scene)
    trigger = find_trigger(draft, inputs)
    if trigger is None:
        _go_on(draft, inputs)
        return None
    calm = seconds_to_calm(draft, scene, trigger, inputs)
    if calm > 0:
        words = f"{trigger}; a new run starts when this has stood still for {trigger.calm_seconds:.0f} s"
        return draft.wait("Settling", words, seconds=max(1.0, calm))
    unprobed = _unprobed_families(scene)
    if unprobed:
        return draft.wait("WaitingForProbes", f"families {', '.join(unprobed)} have no portrait yet", seconds=PORTRAIT_POLL_SECONDS)
    _start(draft, scene, trigger, inputs)
    return None


def _go_on(draft: Draft, inputs: Inputs) -> None:
    """Whatever was about to start has been taken back. Parts that a former version did not know are taken as they are."""
    run = draft.status.run
    known = {item.name for item in run.inputs} if run is not None else set()
    if run is not None and known != set(inputs):
        draft.put(run=run.model_copy(update={"inputs": list_inputs(inputs)}))
    if draft.status.next_run is not None:
        draft.put(next_run=None)
    _end_former_jobs(draft)


def _start(draft: Draft, scene: Scene, trigger: Trigger, inputs: Inputs) -> None:
    former, key = draft.status.run, profile_key(draft.snapshot, scene)
    run, check = start_run(draft.snapshot, inputs, str(trigger), draft.now), draft.status.check
    if check is not None and check.due == run.trigger:
        run = run.model_copy(update={"avoid": check.avoid})
    same = former is not None and trigger.reason in ("TriedAgain", "ModelChanged") and decided_candidate(draft) is None
    run = run.model_copy(update={"profile_key": key, "attempt": former.attempt + 1 if former is not None and same else 0})
    if former is not None and trigger.reason != "ModelChanged" and may_inherit(draft, former, key):
        run = run.model_copy(update={"profile_run": _source_run(draft, former)})
    # What was measured for the former inputs says nothing about these.
    kept = draft.snapshot.profile if run.profile_run else None
    draft.forget_runs(profile=kept)
    draft.put(check=_kept_check(draft, trigger))
    draft.put(run=run, next_run=None, recommendation=None, baseline=None, candidates=(), candidate_count=0, rejections=())
    note_families(draft, scene)
    note_standing(draft)  # what is on the Deployment is an earlier decision from here on
    draft.announce("Normal", "AdaptationStarted", str(trigger))
    _end_former_jobs(draft)


def _kept_check(draft: Draft, trigger: Trigger) -> CheckStatus | None:
    """What is remembered of suspicions: nothing once somebody has changed what is asked; else what came of them, and not what is under way."""
    check = draft.status.check
    if check is None or trigger.reason not in AUTOMATIC:
        return None
    baseline = check.baseline if trigger.reason == "FreshnessExpired" else None
    return check.model_copy(update={"baseline": baseline, "suspicion": None, "claim": None, "trial": None, "due": "", "avoid": ""})


def _source_run(draft: Draft, former: RunStatus) -> str:
    """The run that made the portrait there is: the former one, or the one from which that had it."""
    profile = draft.snapshot.profile
    return (profile.run_id if profile is not None else "") or former.profile_run or former.id


def _end_former_jobs(draft: Draft) -> None:
    """Jobs of an earlier run hold cards and places for an answer that nobody asks for any more."""
    adaptation, run = draft.snapshot.adaptation, draft.status.run
    for job in draft.snapshot.jobs:
        own = job.labels.get(ADAPTATION_UID_LABEL) == adaptation.uid and job.namespace == adaptation.namespace
        if run is not None and own and not job.finished and not job.deleting and job.labels.get(RUN_LABEL) != run.id:
            draft.act(DeleteJob(job.namespace, job.name, "it belongs to an earlier run", job.uid))


def _unprobed_families(scene: Scene) -> tuple[str, ...]:
    """Families that have nodes for the target but no portrait, while their pool is still measuring."""
    measuring = set()
    for pool in scene.pools:
        state = find_condition(pool.status.conditions, reasons.PROBES_COMPLETED)
        if state is None or (state.status == "False" and state.reason == "Probing"):
            measuring.add(pool.name)
    return tuple(option.family.name for option in scene.options if option.nodes and not option.portraits and option.pool in measuring)
