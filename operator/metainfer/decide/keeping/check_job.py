"""The Job of a check: on which node, by which name, and what it waits for. Pure.

It belongs on the node of a pod that serves, best the slowest one's. Where no card is free there, a family whose cards can be shared is
measured beside the server (always, so that the first check and the later ones share alike), any other on another card of it.
"""

from __future__ import annotations

from metainfer.api.v1alpha1.checks import CheckClaim
from metainfer.decide.conditions import format_time
from metainfer.decide.configs import candidate_of
from metainfer.decide.draft import Draft
from metainfer.decide.measuring import Site, build_measuring_job, check_assignment, closed_nodes, disturbed_nodes, pool_allows
from metainfer.decide.names import job_name
from metainfer.decide.own_jobs import jobs_of_run
from metainfer.decide.plan import CreateJob
from metainfer.decide.profiling import TURN_SECONDS
from metainfer.decide.refusal import refusal_words, retry_at, seconds_to_retry, standing_refusal
from metainfer.decide.scene import Scene
from metainfer.decide.waiting import find_waiting


def start_check(draft: Draft, scene: Scene, reason: str, node: str, *, attempt: int) -> CheckClaim | str:
    """The claim of a check, whose Job is among the actions; or what it waits for, in words."""
    refused = _refused(draft)
    if refused:
        return refused
    site = find_check_site(draft, scene, node)
    if site is None:
        draft.look_again(TURN_SECONDS)
        return "waiting for a card to check it on"
    claimed_at = format_time(draft.now)
    claim = CheckClaim(job=_name(draft, reason, claimed_at, attempt), node=site.node.name, reason=reason, claimed_at=claimed_at, attempt=attempt)
    draft.act(_build(draft, scene, site, claim))
    return claim


def find_check_job(draft: Draft, scene: Scene, claim: CheckClaim) -> str | None:
    """What the claimed Job is doing, in words; started again where it is not there. None = it can never be: its node is gone."""
    job = next((item for item in jobs_of_run(draft, "check") if item.name == claim.job), None)
    if job is not None:
        waiting = find_waiting(job, draft.now)
        return f"being checked on node {claim.node}{f': {waiting.words}' if waiting is not None and waiting.reason else ''}"
    refused = _refused(draft)
    if refused:
        return refused
    option = scene.option(draft.recommended)
    node = next((item for item in option.nodes if item.name == claim.node), None) if option is not None else None
    if option is None or node is None:
        return None
    draft.act(_build(draft, scene, Site(option, node, beside_server=option.family.shareable), claim))
    return f"being checked on node {claim.node}"


def _refused(draft: Draft) -> str:
    """What the API server says to a check that it did not take, until it is time to try again; empty = nothing stands against it."""
    run = draft.status.run
    refusal = standing_refusal(run.refusal if run is not None else None, jobs_of_run(draft, "check"))
    if refusal is None or draft.now >= retry_at(refusal):
        return ""
    draft.look_again(seconds_to_retry(refusal, draft.now))
    return refusal_words(refusal)


def find_check_site(draft: Draft, scene: Scene, wanted: str) -> Site | None:
    """Where a check can start now: ``wanted``, else where pods serve, else (not beside a server) any free card of the family."""
    option = scene.option(draft.recommended)
    if option is None or not pool_allows(draft.snapshot, option.pool):
        return None
    shared = option.family.shareable
    closed = disturbed_nodes(draft.snapshot, option) if shared else closed_nodes(draft.snapshot, option)
    homes = sorted({pod.node for pod in draft.snapshot.target_pods if pod.ready and pod.node is not None}, key=lambda name: (name != wanted, name))
    others = [] if shared else sorted(node.name for node in option.nodes if node.name not in homes)
    nodes = {node.name: node for node in option.nodes if node.name not in closed}
    name = next((item for item in (*homes, *others) if item in nodes), None)
    return Site(option, nodes[name], beside_server=shared) if name is not None else None


def _build(draft: Draft, scene: Scene, site: Site, claim: CheckClaim) -> CreateJob:
    config, run = draft.recommended, draft.status.run
    if config is None or run is None:
        msg = "a check without a decision"
        raise ValueError(msg)
    inputs = (run.id, claim.reason, claim.claimed_at, str(claim.attempt))
    return build_measuring_job(draft.snapshot, scene, site, check_assignment(draft.snapshot, run.id, candidate_of(config), inputs))


def _name(draft: Draft, reason: str, claimed_at: str, attempt: int) -> str:
    run_id = draft.status.run.id if draft.status.run is not None else ""
    return job_name("check", draft.snapshot.adaptation.uid, run_id, reason, claimed_at, str(attempt))
