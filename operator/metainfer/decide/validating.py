"""The sequential benchmarks of one run: which one next, where, or that enough is known. Pure.

``validation.next_step`` chooses by what is measured; this file adds what the cluster allows now: free cards, caps, retries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from metainfer.api.durations import parse_duration_us
from metainfer.api.v1alpha1 import reasons
from metainfer.decide.choosing import Ranking
from metainfer.decide.conditions import parse_time
from metainfer.decide.draft import Draft
from metainfer.decide.facts import Candidate, RunResult
from metainfer.decide.inputs import trigger_reason
from metainfer.decide.measuring import Site, bench_assignment, bench_seconds, build_measuring_job, closed_nodes, pool_allows
from metainfer.decide.own_jobs import start_job, unreported_jobs, wait_for_job
from metainfer.decide.plan import AdaptationPlan
from metainfer.decide.predictor import Prediction
from metainfer.decide.profiling import RETRY_SECONDS, TURN_SECONDS
from metainfer.decide.room import NO_ROOM_FOR_SURGE
from metainfer.decide.scene import Scene
from metainfer.decide.validation import Measure, Situation, next_step, pick_node

RETRIES = 1
"""A benchmark that failed for a passing cause (node gone, evicted, not started) is tried once more, elsewhere if there is an elsewhere."""
UNASKED_SIGMAS = 3.0
"""Of a difference, where nobody asked and nothing was found wrong. Each week all candidates get another chance to be lucky: with three as
good as the current one and one standard deviation, one week in eight would end with a rollout for nothing (``hack/bench/damping``)."""
LEAST_CANDIDATES = 2
"""The present configuration and one other."""
TYPICAL_START_SECONDS = 15.0
"""Scheduling, start and imports of a Job whose image is on the node; only used to say how long the rest will take."""


def build_situation(draft: Draft, scene: Scene, ranking: Ranking) -> Situation:
    """What ``next_step`` and ``judge`` look at."""
    snapshot = draft.snapshot
    return Situation(
        predictions=ranking.predictions,
        runs=settled_runs(snapshot.runs),
        portraits=snapshot.portraits,
        objective=ranking.objective,
        accuracy=snapshot.adaptation.spec.accuracy,
        costs=ranking.costs,
        current=ranking.current,
        top_k=snapshot.adaptation.spec.validation.top_k,
        seconds_left=seconds_left(draft),
        seconds_per_run=bench_seconds(snapshot) + TYPICAL_START_SECONDS,
        change_sigmas=UNASKED_SIGMAS if trigger_reason(draft.status.run) == "FreshnessExpired" else 1.0,
        current_slowdown=find_slowdown(draft, scene, ranking.current),
    )


def find_slowdown(draft: Draft, scene: Scene, current: Candidate | None) -> float:
    """How many times slower the target serves than its benchmark says, while its family has no other card for it; 1 = as measured.

    The check found the card slower by so much; of several pods only those on it are. A benchmark that ran on that very card has it in its
    figures. Where only the pod that a rollout starts first has no place, other cards are free: that is for its owner's strategy to solve.
    """
    run, check, option = draft.status.run, draft.status.check, scene.option(scene.current)
    verdict = check.verdict if check is not None else None
    if run is None or not run.avoid or verdict is None or (verdict.verdict, verdict.node) != ("Card", run.avoid):
        return 1.0
    if option is None or option.no_room is None or option.no_room.reason == NO_ROOM_FOR_SURGE:
        return 1.0
    if any((item.candidate, item.node) == (current, run.avoid) for item in draft.snapshot.runs):
        return 1.0
    homes = [pod.node for pod in draft.snapshot.target_pods if pod.node is not None and not pod.deleting]
    share = homes.count(run.avoid) / len(homes) if homes else 0.0
    return 1.0 + share * max(0.0, verdict.slowdown_permille / 1000 - 1.0)


def settled_runs(runs: tuple[RunResult, ...]) -> tuple[RunResult, ...]:
    """Runs that count: without those that failed for a passing cause and may be tried again."""
    failed = Counter(run.candidate for run in runs if _passing(run))
    return tuple(run for run in runs if not _passing(run) or failed[run.candidate] > RETRIES)


def _passing(run: RunResult) -> bool:
    return run.failure is not None and run.failure.retryable


def seconds_left(draft: Draft) -> float:
    """Of ``validation.budget``, which counts from the claim of the run to its decision."""
    run = draft.status.run
    budget = parse_duration_us(draft.snapshot.adaptation.spec.validation.budget) / 1e6
    left = budget if run is None else budget - (draft.now - parse_time(run.started_at)).total_seconds()
    # Waiting for a turn may use the budget up; a decision on the baseline alone would be none, so the least comparison is always made.
    compared = len({item.candidate for item in draft.snapshot.runs})
    return left if compared >= LEAST_CANDIDATES else max(left, bench_seconds(draft.snapshot) + TYPICAL_START_SECONDS)


def next_benchmark(draft: Draft, scene: Scene, ranking: Ranking) -> AdaptationPlan | None:
    """The plan that waits for (or starts) the next benchmark; None = enough is known."""
    situation = build_situation(draft, scene, ranking)
    active = unreported_jobs(draft, "bench", {run.job_uid: run.finished_at for run in draft.snapshot.runs})
    if active:
        return wait_for_job(draft, active[0], "Validating", _progress(situation, running=True))
    open_now = _open_now(draft, scene, situation)
    step = next_step(open_now)
    if isinstance(step, Measure):
        return _start(draft, scene, situation, step)
    later = next_step(situation)
    if isinstance(later, Measure) and later.candidate not in open_now.predictions:
        words = f"{_progress(situation, running=False)}; waiting for a free card of family {later.candidate.family}"
        draft.step("Validating", words)
        return draft.wait("Validating", words, seconds=TURN_SECONDS)
    draft.find(reasons.VALIDATED, "True", "Validated", f"{len({run.candidate for run in situation.runs})} candidates measured: {step.because}")
    return None


def _open_now(draft: Draft, scene: Scene, situation: Situation) -> Situation:
    """The same without what cannot be measured at this moment because every card of its family is held."""
    closed = {(option.pool, option.family.name) for option in scene.options if {node.name for node in option.nodes} <= closed_nodes(draft.snapshot, option)}
    tried = {run.candidate for run in situation.runs}
    kept: Mapping[Candidate, Prediction] = {
        item: prediction for item, prediction in situation.predictions.items() if item in tried or (item.pool, item.family) not in closed
    }
    return replace(situation, predictions=kept)


def _start(draft: Draft, scene: Scene, situation: Situation, step: Measure) -> AdaptationPlan:
    run, candidate = draft.status.run, step.candidate
    option = scene.option(candidate)
    if run is None or option is None:
        msg = f"{candidate.key} is measured without a run or a family"
        raise ValueError(msg)
    words = _progress(situation, running=True)
    draft.find(reasons.VALIDATED, "False", "Validating", words)
    draft.step("Validating", words)
    earlier = [item for item in draft.snapshot.runs if item.candidate == candidate]
    name = pick_node(option, closed_nodes(draft.snapshot, option), (*(item.node for item in earlier), run.avoid))
    node = next((item for item in option.nodes if item.name == name), None)
    if node is None or not pool_allows(draft.snapshot, candidate.pool):
        return draft.wait("Validating", f"{words}: waiting for a turn on a card of family {candidate.family}", seconds=TURN_SECONDS)
    pause = RETRY_SECONDS - (draft.now - earlier[-1].finished_at).total_seconds() if earlier and earlier[-1].node == node.name else 0.0
    failure = earlier[-1].failure if earlier else None
    if failure is not None and pause > 0:
        # Elsewhere it is tried at once; here the cause needs time to pass.
        return draft.wait(failure.reason, f"{words}: tried again in a minute: {failure.message}", seconds=pause)
    assignment = bench_assignment(draft.snapshot, run.id, candidate, attempt=len(earlier))
    return start_job(draft, build_measuring_job(draft.snapshot, scene, Site(option, node), assignment), "Validating", words)


def _progress(situation: Situation, *, running: bool) -> str:
    done = len({run.candidate for run in situation.runs})
    feasible = len(situation.predictions)
    total = max(done, min(situation.top_k + (situation.current is not None), feasible))
    left = min(max(0.0, situation.seconds_left), (total - done) * situation.seconds_per_run)
    return f"validating {min(done + running, total)} of {total}, about {max(1, round(left / 60))} min left"
