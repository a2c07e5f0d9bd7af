"""The target, its restrictions and the families open to it, worked out once per pass. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from metainfer.api.v1alpha1.common import CANARY_LABEL, HEALTH_LABEL
from metainfer.api.v1alpha1.model_adaptation import ConfigStatus
from metainfer.decide.cards import count_free
from metainfer.decide.declared import affinity_declarations, owners_template
from metainfer.decide.drivers import is_leading, leading_driver
from metainfer.decide.facts import AdaptationSnapshot, Candidate, ContainerFacts, NodeFacts, PodFacts, PoolFacts, Portrait, TargetFacts
from metainfer.decide.families import Exclusion, FamilyOption, Membership, assign_nodes, cards_used, selector_matches
from metainfer.decide.measurable import find_unmeasurable
from metainfer.decide.names import PURPOSE_LABEL
from metainfer.decide.portraits import DEGRADED_LABEL_VALUE
from metainfer.decide.restrictions import NEVER_SELECTED, eligible_nodes
from metainfer.decide.room import cards_requested, find_no_room, target_resource_allows
from metainfer.decide.settings_mapping import Baseline, SettingsMapping, read_baseline, resolve_mapping
from metainfer.decide.target import find_container

HOST_PROVIDERS = frozenset({"CPUExecutionProvider", "OpenVINOExecutionProvider"})
"""Run on the host's own processor: a pod needs no card to be served by them."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What the rules of one pass look at."""

    target: TargetFacts
    container: ContainerFacts
    mapping: SettingsMapping | None
    baseline: Baseline
    pools: tuple[PoolFacts, ...]
    """Those that spec.poolSelector picks."""
    options: tuple[FamilyOption, ...]
    reachable: tuple[tuple[str, str, str], ...]
    """(pool, family, node) of every node on which the target may run by its owner's own rules."""
    current: Candidate | None
    """The present configuration where the pods run now; None while no pod runs on a card of a pool."""

    def option(self, place: Candidate | ConfigStatus | None) -> FamilyOption | None:
        """The family of a candidate or a configuration, as the target sees it; None where it is not open to it, or nothing is asked for."""
        if place is None:
            return None
        return next((item for item in self.options if (item.pool, item.family.name) == (place.pool, place.family)), None)


def build_scene(snapshot: AdaptationSnapshot, target: TargetFacts) -> Scene | None:
    """None when the container cannot be told (``target.check_target`` says why)."""
    container = find_container(target.template, snapshot.adaptation.spec.target_ref.container)
    if container is None:
        return None
    spec = snapshot.adaptation.spec
    mapping = resolve_mapping(spec.settings, spec.config_space.execution_providers)
    baseline = read_baseline(mapping, target, container, snapshot.config_maps)
    chosen = [pool for pool in snapshot.pools if not pool.deleting and selector_matches(spec.pool_selector, pool.labels)]
    pools = tuple(sorted(chosen, key=lambda pool: pool.name))  # the cache has no order of its own
    options = _options(snapshot, target, pools)
    reachable = tuple((option.pool, option.family.name, node.name) for option in options for node in option.nodes)
    here = _family_of_pods(options, snapshot.target_pods)
    if here is not None and affinity_declarations(target).required is not None:
        # The owner's own affinity decides where pods run: another family could be reached only by chance.
        options = tuple(option for option in options if (option.pool, option.family.name) == here)
    current = _current(options, here, baseline, mapping)
    return Scene(target, container, mapping, baseline, pools, options, reachable, current)


def _options(snapshot: AdaptationSnapshot, target: TargetFacts, pools: Sequence[PoolFacts]) -> tuple[FamilyOption, ...]:
    ready_on = {pod.node for pod in snapshot.target_pods if pod.ready}
    excluded = eligible_nodes(
        owners_template(target),
        snapshot.nodes,
        runtime_class=snapshot.runtime_class,
        claim_terms=snapshot.claim_terms,
        running_architectures={node.architecture for node in snapshot.nodes if node.name in ready_on},
    )
    options: list[FamilyOption] = []
    for pool in pools:
        places = assign_nodes(pool, snapshot.pools, snapshot.nodes)
        for family in pool.spec.families:
            nodes = tuple(node for node in snapshot.nodes if isinstance(place := places.get(node.name), Membership) and place.family.name == family.name)
            options.append(_option(snapshot, target, FamilyOption(pool.name, family, nodes, excluded)))
    return tuple(options)


def _option(snapshot: AdaptationSnapshot, target: TargetFacts, raw: FamilyOption) -> FamilyOption:
    resource = raw.family.resource
    closed = _closed(target, resource, raw.family.execution_providers)
    if closed is not None:
        return FamilyOption(raw.pool, raw.family, (), {node.name: closed for node in raw.nodes})
    nodes = tuple(node for node in raw.nodes if node.name not in raw.excluded)
    own = {pod.uid for pod in snapshot.target_pods}
    mine = [pod for pod in snapshot.card_pods if pod.uid in own or pod.labels.get(CANARY_LABEL) == snapshot.adaptation.uid]  # a trial ends before the rollout
    others = [pod for pod in snapshot.card_pods if pod not in mine and PURPOSE_LABEL not in pod.labels]
    used = cards_used(others, resource)
    free = {node.name: count_free(node, resource, used[node.name]) for node in nodes}
    places = tuple(node for node in nodes if node.labels.get(HEALTH_LABEL) != DEGRADED_LABEL_VALUE)  # what is applied keeps pods off the others
    closed_now = tuple(node for node in raw.nodes if node.name in raw.excluded and raw.excluded[node.name].reason not in NEVER_SELECTED)
    return FamilyOption(
        pool=raw.pool,
        family=raw.family,
        nodes=nodes,
        excluded={node.name: raw.excluded[node.name] for node in raw.nodes if node.name in raw.excluded},
        portraits=_typical_first(nodes, snapshot),
        free_cards=free,
        no_room=_without_degraded(find_no_room(target, places, free, resource, closed=closed_now), len(nodes) - len(places)) if nodes else None,
        unmeasurable=find_unmeasurable(snapshot, nodes),
    )


def _without_degraded(no_room: Exclusion | None, degraded: int) -> Exclusion | None:
    """The same with the words that tell where the family's other nodes are."""
    return replace(no_room, message=f"{no_room.message} (without {degraded} degraded)") if no_room is not None and degraded else no_room


def _closed(target: TargetFacts, resource: str, providers: Sequence[str]) -> Exclusion | None:
    """Requests are the owner's: we add none and change none, so a family of another resource would leave the pods without a card."""
    if not cards_requested(target.template):
        if set(providers) <= HOST_PROVIDERS:
            return None
        return Exclusion("NoCardRequested", f"the target's containers request no {resource}: without a request they get no card")
    if not target_resource_allows(target.template, resource):
        return Exclusion("OtherResource", f"the target asks for another accelerator resource than {resource}")
    return None


def _typical_first(nodes: Sequence[NodeFacts], snapshot: AdaptationSnapshot) -> tuple[Portrait, ...]:
    known = [snapshot.portraits[node.name] for node in nodes if node.name in snapshot.portraits and snapshot.portraits[node.name].spec.node_uid == node.uid]
    mine = [portrait for portrait in known if portrait.status.measured_at is not None]
    spec = mine[0].spec if mine else None
    leading = leading_driver(snapshot.adaptation.status.families, spec.pool, spec.family) if spec is not None else ""

    def order(item: Portrait) -> tuple[bool, bool, int, str]:
        return item.status.health == "Degraded", not is_leading(item.status, leading), abs(item.status.correction_factor_permille - 1000), item.node

    return tuple(sorted(mine, key=order))


def _current(options: Sequence[FamilyOption], here: tuple[str, str] | None, baseline: Baseline, mapping: SettingsMapping | None) -> Candidate | None:
    if here is None:
        return None
    offered = next(option.family.execution_providers for option in options if (option.pool, option.family.name) == here)
    config, known = baseline.config, mapping is not None and mapping.documented
    if not known and config.execution_provider not in offered and "execution_providers" not in baseline.fixed:
        # Nobody says which provider the server uses: one that the cards under it offer is the better guess.
        config = config.model_copy(update={"execution_provider": offered[0]})
    return Candidate(here[0], here[1], config)


def why_no_node(scene: Scene) -> Exclusion | None:
    """Why no node of any family is open to the target, the commonest reason first; None when one is."""
    if any(option.nodes for option in scene.options):
        return None
    found = Counter((item.reason, item.message) for option in scene.options for item in option.excluded.values())
    if not found:
        return Exclusion("NoNodes", "the families of the pools have no nodes")
    words = "; ".join(f"{count} x {reason}: {message}" for (reason, message), count in found.most_common(4))
    return Exclusion(found.most_common(1)[0][0][0], f"no node is open to the target: {words}")


def _family_of_pods(options: Sequence[FamilyOption], pods: Sequence[PodFacts]) -> tuple[str, str] | None:
    """The family on which most of the target's pods run."""
    # A node that is cordoned or not ready is still where the pods run.
    home = {name: (option.pool, option.family.name) for option in options for name in (*option.excluded, *(node.name for node in option.nodes))}
    votes = Counter(home[pod.node] for pod in pods if pod.node in home and pod.holds_resources and not pod.deleting)
    return max(sorted(votes), key=lambda key: votes[key]) if votes else None


def occupied_nodes(snapshot: AdaptationSnapshot, option: FamilyOption) -> frozenset[str]:
    """Nodes of the family without a card that is really free now, whoever holds it: nothing can be measured there."""
    used = cards_used(snapshot.card_pods, option.family.resource)
    return frozenset(node.name for node in option.nodes if count_free(node, option.family.resource, used[node.name]) == 0)
