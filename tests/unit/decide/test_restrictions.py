from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.decide.make_facts import CARD, GIB, make_container, make_node, make_template

from metainfer.decide.facts import NodeFacts, NodeTerm, PodTemplateFacts, Requirement, RuntimeClassFacts, Spread, Taint, Toleration
from metainfer.decide.restrictions import eligible_nodes

GPU = "nvidia.com/gpu"
ZONE = "topology.kubernetes.io/zone"


def excluded(template: PodTemplateFacts, *nodes: NodeFacts, **more: Any) -> dict[str, str]:
    """Excluded nodes with their reasons."""
    found = eligible_nodes(template, nodes, **({"runtime_class": None, "claim_terms": {}} | more))
    return {name: exclusion.reason for name, exclusion in found.items()}


def message(template: PodTemplateFacts, node: NodeFacts, **more: Any) -> str:
    found = eligible_nodes(template, [node], **({"runtime_class": None, "claim_terms": {}} | more))
    return found[node.name].message


def any_of(*terms: NodeTerm) -> PodTemplateFacts:
    return make_template(required_terms=terms)


def term(key: str, operator: str, *values: str) -> NodeTerm:
    return NodeTerm(expressions=(Requirement(key, operator, values),))


def test_a_plain_pod_may_run_on_a_plain_node() -> None:
    """Nothing is restricted where nobody restricts anything."""
    assert excluded(make_template(), make_node()) == {}


def test_node_selector_needs_every_label() -> None:
    """The message names the label that is missing, and what the node has instead."""
    template = make_template(node_selector={"disk": "ssd", "room": "a"})
    assert excluded(template, make_node("n1", labels={"disk": "ssd", "room": "a"}), make_node("n2", labels={"disk": "hdd", "room": "a"})) == {
        "n2": "NodeSelectorMismatch"
    }
    assert "needs label disk=ssd, node n2 has disk=hdd" in message(template, make_node("n2", labels={"disk": "hdd", "room": "a"}))


def test_node_name_pins_to_one_node() -> None:
    """A pod with nodeName runs there and nowhere else."""
    assert excluded(make_template(node_name="n2"), make_node("n1"), make_node("n2")) == {"n1": "NodeNameDiffers"}


def test_node_name_passes_by_the_scheduler() -> None:
    """NoSchedule taints and a cordon are the scheduler's; NoExecute is the node's own and still counts."""
    template = make_template(node_name="n1")
    assert excluded(template, make_node("n1", unschedulable=True, taints=(Taint("k", "v", "NoSchedule"),))) == {}
    assert excluded(template, make_node("n1", taints=(Taint("k", "v", "NoExecute"),))) == {"n1": "TaintNotTolerated"}


def test_required_terms_are_alternatives() -> None:
    """One matching term is enough; within a term all expressions must hold."""
    both = NodeTerm(expressions=(Requirement("card", "In", ("t4",)), Requirement(ZONE, "NotIn", ("c",))))
    template = any_of(both, term("card", "In", "l4"))
    nodes = [
        make_node("t4-a", labels={"card": "t4", ZONE: "a"}),
        make_node("t4-c", labels={"card": "t4", ZONE: "c"}),
        make_node("l4-c", labels={"card": "l4", ZONE: "c"}),
        make_node("none"),
    ]
    assert excluded(template, *nodes) == {"t4-c": "NodeAffinityMismatch", "none": "NodeAffinityMismatch"}


def test_an_affinity_message_says_what_each_alternative_misses() -> None:
    """The user sees the expression and what the node has."""
    text = message(any_of(term("card", "In", "t4"), term("memory", "Gt", "20000")), make_node("n1", labels={"memory": "16000"}))
    assert "card In t4 (here no such label); or memory Gt 20000 (here memory=16000)" in text


@pytest.mark.parametrize(
    ("operator", "values", "have", "want_match"),
    [
        pytest.param("NotIn", ("a",), None, True, id="NotIn holds without the label"),
        pytest.param("DoesNotExist", (), None, True, id="DoesNotExist"),
        pytest.param("Exists", (), "", True, id="Exists with an empty value"),
        pytest.param("Gt", ("20000",), "23034", True, id="Gt compares integers"),
        pytest.param("Gt", ("20000",), "23028MiB", False, id="Gt with a unit in the label"),
        pytest.param("Gt", ("20000",), None, False, id="Gt without the label"),
        pytest.param("Lt", ("9",), "10", False, id="Lt is not alphabetical"),
        pytest.param("Lt", ("x",), "1", False, id="Lt with a bound that is no integer"),
    ],
)
def test_operators_of_affinity(operator: str, values: tuple[str, ...], have: str | None, *, want_match: bool) -> None:
    """Absent labels and values that are no integers follow Kubernetes' rules."""
    node = make_node("n1", labels={} if have is None else {"key": have})
    assert (excluded(any_of(term("key", operator, *values)), node) == {}) is want_match


def test_an_empty_term_selects_nothing() -> None:
    """Neither does a list without terms."""
    assert excluded(any_of(NodeTerm()), make_node("n1")) == {"n1": "NodeAffinityMismatch"}
    assert excluded(any_of(), make_node("n1")) == {"n1": "NodeAffinityMismatch"}
    assert excluded(any_of(NodeTerm(), term("kubernetes.io/hostname", "Exists")), make_node("n1")) == {}


def test_a_term_may_name_the_node_by_its_field() -> None:
    """matchFields look at metadata.name, which need not be the hostname label."""
    template = any_of(NodeTerm(fields=(Requirement("metadata.name", "In", ("n2",)),)))
    assert excluded(template, make_node("n1", labels={"kubernetes.io/hostname": "n2"}), make_node("n2")) == {"n1": "NodeAffinityMismatch"}


def test_a_runtime_class_brings_its_own_selector_and_tolerations() -> None:
    """They add to those of the pod."""
    runtime_class = RuntimeClassFacts("sandbox", node_selector={"sandbox": "yes"}, tolerations=(Toleration("sandboxed", "Exists", effect="NoSchedule"),))
    taint = Taint("sandboxed", "", "NoSchedule")
    nodes = [make_node("n1", labels={"sandbox": "yes"}, taints=(taint,)), make_node("n2", taints=(taint,))]
    assert excluded(make_template(runtime_class="sandbox"), *nodes, runtime_class=runtime_class) == {"n2": "RuntimeClassMismatch"}


def test_a_runtime_class_that_does_not_exist_keeps_the_pod_from_every_node() -> None:
    """Admission refuses such pods; the name is in the message."""
    assert "RuntimeClass sandbox does not exist" in message(make_template(runtime_class="sandbox"), make_node("n1"))


@pytest.mark.parametrize(
    ("toleration", "want_tolerated"),
    [
        pytest.param(Toleration("gpu", "Equal", "true", "NoSchedule"), True, id="the same"),
        pytest.param(Toleration("gpu", "", "true", "NoSchedule"), True, id="no operator means Equal"),
        pytest.param(Toleration("gpu", "Equal", "present", "NoSchedule"), False, id="another value"),
        pytest.param(Toleration("gpu", "Exists", "", "NoSchedule"), True, id="any value"),
        pytest.param(Toleration("gpu", "Exists", "", ""), True, id="any effect"),
        pytest.param(Toleration("gpu", "Exists", "", "NoExecute"), False, id="another effect"),
        pytest.param(Toleration("", "Exists", "", ""), True, id="everything"),
        pytest.param(Toleration("fpga", "Exists", "", ""), False, id="another key"),
        pytest.param(Toleration("gpu", "Gt", "1", ""), False, id="a comparison with no number"),
    ],
)
def test_tolerations_follow_kubernetes(toleration: Toleration, *, want_tolerated: bool) -> None:
    """Effect, key and value must fit; empty ones fit all."""
    node = make_node("n1", taints=(Taint("gpu", "true", "NoSchedule"),))
    assert (excluded(make_template(tolerations=(toleration,)), node) == {}) is want_tolerated


def test_numeric_tolerations_compare_the_taint_with_their_own_value() -> None:
    """Lt tolerates taints whose value is below the toleration's."""
    low, high = make_node("low", taints=(Taint("sla", "700", "NoSchedule"),)), make_node("high", taints=(Taint("sla", "950", "NoSchedule"),))
    assert excluded(make_template(tolerations=(Toleration("sla", "Lt", "800"),)), low, high) == {"high": "TaintNotTolerated"}


def test_a_taint_that_only_discourages_excludes_nothing() -> None:
    """PreferNoSchedule leaves the node in."""
    assert excluded(make_template(), make_node("n1", taints=(Taint("old", "", "PreferNoSchedule"),))) == {}


def test_a_taint_is_named_in_the_message() -> None:
    """Key, value and effect, as kubectl writes them."""
    assert "taint gpu=true:NoExecute of node n1" in message(make_template(), make_node("n1", taints=(Taint("gpu", "true", "NoExecute"),)))


def test_volumes_bind_to_their_nodes() -> None:
    """The claim and the label that its volume needs are named; a volume for everywhere restricts nothing."""
    template = make_template(claims=("cache", "models"))
    terms = {"cache": None, "models": (term(ZONE, "In", "a"),)}
    nodes = [make_node("n1", labels={ZONE: "a"}), make_node("n2", labels={ZONE: "b"})]
    assert excluded(template, *nodes, claim_terms=terms) == {"n2": "VolumeElsewhere"}
    text = message(template, nodes[1], claim_terms=terms)
    assert "claim models" in text
    assert f"{ZONE} In a" in text


@pytest.mark.parametrize(
    ("node", "want_reason"),
    [
        pytest.param(make_node("n1", ready=False), "NodeNotReady", id="not ready"),
        pytest.param(make_node("n1", unschedulable=True), "NodeUnschedulable", id="cordoned"),
        pytest.param(make_node("n1", conditions={"DiskPressure": "True"}), "NodeUnderPressure", id="disk pressure"),
        pytest.param(make_node("n1", conditions={"PIDPressure": "True"}), "NodeUnderPressure", id="process pressure"),
        pytest.param(
            make_node("n1", taints=(Taint("node.kubernetes.io/memory-pressure", "", "NoSchedule"),)), "TaintNotTolerated", id="memory pressure, by its taint"
        ),
    ],
)
def test_nodes_that_start_no_new_pods_are_out(node: NodeFacts, want_reason: str) -> None:
    """Nothing is chosen that could not start."""
    assert excluded(make_template(), node) == {"n1": want_reason}


def test_pressure_that_is_over_excludes_nothing() -> None:
    """Only status True counts."""
    assert excluded(make_template(), make_node("n1", conditions={"DiskPressure": "False", "PIDPressure": "Unknown"})) == {}


def test_who_tolerates_everything_may_run_on_a_cordoned_node() -> None:
    """As the scheduler has it; disk pressure is the kubelet's word and stands."""
    template = make_template(tolerations=(Toleration(operator="Exists"),))
    assert excluded(template, make_node("n1", unschedulable=True), make_node("n2", conditions={"DiskPressure": "True"})) == {"n2": "NodeUnderPressure"}


def test_a_node_smaller_than_the_request_is_out() -> None:
    """Even when it is empty; the message has both amounts."""
    template = make_template(make_container(requests={"cpu": 6000, "memory": 8 * GIB}))
    assert excluded(template, make_node("small"), make_node("large", allocatable={"cpu": 8000})) == {"small": "NodeTooSmall"}
    assert "asks for 6000m cpu, node small has 4000m cpu" in message(template, make_node("small"))
    assert "8192Mi memory" in message(make_template(make_container(requests={"memory": 8 * GIB})), make_node("n1", allocatable={"memory": 4 * GIB}))


def test_what_the_runtime_takes_for_itself_counts() -> None:
    """Four processors asked for on a node that has four: with a sandbox's share they do not fit."""
    template = make_template(make_container(requests={"cpu": 4000}))
    sandbox = RuntimeClassFacts("sandbox", overhead={"cpu": 250})
    assert excluded(replace(template, runtime_class="plain"), make_node("n1"), runtime_class=RuntimeClassFacts("plain")) == {}
    sandboxed = replace(template, runtime_class="sandbox")
    assert excluded(sandboxed, make_node("n1"), runtime_class=sandbox) == {"n1": "NodeTooSmall"}
    assert "4250m cpu" in message(sandboxed, make_node("n1"), runtime_class=sandbox)


def test_a_node_without_the_label_that_pods_spread_over_is_out() -> None:
    """The scheduler passes it over; anti-affinity by that label does not mind."""
    spread = make_template(spreads=(Spread(ZONE),))
    assert excluded(spread, make_node("n1"), make_node("n2", labels={ZONE: "a"})) == {"n1": "TopologyLabelMissing"}
    assert ZONE in message(spread, make_node("n1"))
    assert excluded(make_template(spreads=(Spread(ZONE, one_per_domain=True),)), make_node("n1")) == {}


def test_a_node_without_the_asked_card_is_out() -> None:
    """Cards are found from what the node allocates, never from its labels."""
    assert excluded(make_template(make_container(limits={GPU: 1})), make_node("n1", allocatable={GPU: 0}), make_node("n2", allocatable={GPU: 4})) == {
        "n1": "NodeTooSmall"
    }


def test_an_image_is_not_taken_to_run_on_another_architecture() -> None:
    """Nobody said that it does."""
    node = make_node("gh-1", architecture="arm64")
    assert excluded(make_template(), node) == {"gh-1": "ArchitectureUnknown"}
    assert "image not known to run on arm64" in message(make_template(), node)


def test_the_architecture_is_what_the_kubelets_label_says() -> None:
    """It is what the scheduler goes by; nodes exist that report nothing else, and nodes that report nothing at all count as amd64."""
    assert excluded(make_template(), make_node("gh-1", architecture="", labels={"kubernetes.io/arch": "arm64"})) == {"gh-1": "ArchitectureUnknown"}
    assert excluded(make_template(), make_node("n1", architecture="", labels={"kubernetes.io/arch": ""})) == {}


@pytest.mark.parametrize(
    ("template", "running"),
    [
        pytest.param(make_template(node_selector={"kubernetes.io/arch": "arm64"}), (), id="nodeSelector"),
        pytest.param(any_of(term("card", "In", "h100"), term("kubernetes.io/arch", "In", "amd64", "arm64")), (), id="the affinity term that lets it in"),
        pytest.param(make_template(), ("arm64",), id="pods run there already"),
    ],
)
def test_an_architecture_counts_as_known_when_somebody_vouches_for_it(template: PodTemplateFacts, running: Sequence[str]) -> None:
    """The owner's own rules, or pods that run."""
    assert excluded(template, make_node("gh-1", architecture="arm64"), running_architectures=running) == {}


def test_an_affinity_term_for_other_nodes_vouches_for_nothing() -> None:
    """Only the alternative that lets the node in counts, and only when it lists architectures."""
    node = make_node("gh-1", architecture="arm64", labels={"card": "gh200"})
    assert excluded(any_of(term("kubernetes.io/arch", "In", "amd64"), term("card", "In", "gh200")), node) == {"gh-1": "ArchitectureUnknown"}
    assert excluded(any_of(term("kubernetes.io/arch", "NotIn", "s390x")), node) == {"gh-1": "ArchitectureUnknown"}


def test_the_owners_restriction_is_named_before_a_passing_state() -> None:
    """A node that is not allowed anyway is not reported as 'not ready' now and then: each step takes the first obstacle away."""
    big = make_container(requests={"cpu": 64_000})
    bound = make_template(big, node_selector={"room": "a"}, required_terms=(), claims=("c",), runtime_class="r")
    narrow, roomy = make_template(big, required_terms=(), claims=("c",)), make_template(big, claims=("c",))
    taints = (Taint("k", "", "NoSchedule"),)
    down = make_node("n1", ready=False, unschedulable=True, architecture="arm64", taints=taints)
    steps: list[tuple[PodTemplateFacts, NodeFacts, dict[str, Any]]] = [
        (bound, down, {}),
        (bound, down, {"runtime_class": RuntimeClassFacts("r", {"x": "y"})}),
        (bound, down, {"runtime_class": RuntimeClassFacts("r")}),
        (narrow, down, {}),
        (roomy, down, {}),
        (roomy, down, {"claim_terms": {}}),
        (roomy, down, {"claim_terms": {}, "running_architectures": ("arm64",)}),
        (roomy, make_node("n1", unschedulable=True, conditions={"DiskPressure": "True"}, taints=taints), {"claim_terms": {}}),
        (roomy, make_node("n1", unschedulable=True, taints=taints), {"claim_terms": {}}),
        (roomy, make_node("n1", taints=taints), {"claim_terms": {}}),
        (roomy, make_node("n1"), {"claim_terms": {}}),
    ]
    order = [excluded(template, node, **({"claim_terms": {"c": ()}} | more))["n1"] for template, node, more in steps]
    assert order == [
        "RuntimeClassMissing",
        "RuntimeClassMismatch",
        "NodeSelectorMismatch",
        "NodeAffinityMismatch",
        "VolumeElsewhere",
        "ArchitectureUnknown",
        "NodeNotReady",
        "NodeUnderPressure",
        "NodeUnschedulable",
        "TaintNotTolerated",
        "NodeTooSmall",
    ]


def test_restrictions_of_every_form_at_once() -> None:
    """Two alternatives, NotIn, Gt, DoesNotExist, a toleration by value, and a runtime class with selector and toleration."""
    runtime_class = RuntimeClassFacts("cc", node_selector={"cc": "false"}, tolerations=(Toleration("site/cards-only", "Exists", effect="NoSchedule"),))
    small_cards = NodeTerm((Requirement("product", "In", ("T4",)), Requirement(ZONE, "NotIn", ("c",))))
    large_cards = NodeTerm((Requirement("memory", "Gt", ("20000",)), Requirement("site/reserved", "DoesNotExist")))
    template = make_template(
        make_container(limits={CARD: 1}),
        tolerations=(Toleration(GPU, "Equal", "true", "NoSchedule"),),
        required_terms=(small_cards, large_cards),
        runtime_class="cc",
    )
    true, present, only = Taint(GPU, "true", "NoSchedule"), Taint(GPU, "present", "NoSchedule"), Taint("site/cards-only", "", "NoSchedule")
    plain = {"cc": "false"}
    nodes = [
        make_node("t4-a", labels=plain | {"product": "T4", ZONE: "a"}, taints=(true,)),
        make_node("t4-c", labels=plain | {"product": "T4", ZONE: "c"}, taints=(true,)),
        make_node("l4-c", labels=plain | {"product": "L4", ZONE: "c", "memory": "23034"}, taints=(true,)),
        make_node("l4-reserved", labels=plain | {"product": "L4", "memory": "23034", "site/reserved": ""}),
        make_node("l40s-cc", labels={"cc": "true", "product": "L40S", "memory": "46068"}),
        make_node("a10-unit", labels=plain | {"product": "A10", "memory": "23028MiB"}),
        make_node("l4-present", labels=plain | {"product": "L4", "memory": "23034"}, taints=(present,)),
        make_node("l4-only", labels=plain | {"product": "L4", "memory": "23034"}, taints=(only,)),
    ]
    assert excluded(template, *nodes, runtime_class=runtime_class) == {
        "t4-c": "NodeAffinityMismatch",
        "l4-reserved": "NodeAffinityMismatch",
        "l40s-cc": "RuntimeClassMismatch",
        "a10-unit": "NodeAffinityMismatch",
        "l4-present": "TaintNotTolerated",
    }


# --- against a slow oracle that shares no code with the rules ---

KEYS, VALUES = ("a", "b"), ("1", "2", "x")
labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))
requirements = st.builds(
    Requirement,
    st.sampled_from(KEYS),
    st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")),
    st.lists(st.sampled_from(VALUES), min_size=1, max_size=2).map(tuple),
)
fields = st.builds(Requirement, st.just("metadata.name"), st.sampled_from(("In", "NotIn")), st.lists(st.sampled_from(("n1", "n2")), min_size=1).map(tuple))
terms = st.builds(NodeTerm, st.lists(requirements, max_size=2).map(tuple), st.lists(fields, max_size=1).map(tuple))
term_lists = st.none() | st.lists(terms, max_size=2).map(tuple)
taints = st.lists(st.builds(Taint, st.sampled_from(KEYS), st.sampled_from(("", "1", "2")), st.sampled_from(("NoSchedule", "NoExecute", "PreferNoSchedule"))))
tolerations = st.lists(
    st.builds(
        Toleration,
        st.sampled_from(("", *KEYS)),
        st.sampled_from(("Equal", "Exists", "")),
        st.sampled_from(("", "1", "2")),
        st.sampled_from(("", "NoSchedule", "NoExecute")),
    ),
    max_size=2,
).map(tuple)
templates = st.builds(
    lambda cpu, **more: make_template(make_container(requests={"cpu": cpu}), **more),
    st.sampled_from((1000, 5000)),
    node_selector=st.just({}) | labels,
    node_name=st.sampled_from((None, "n1")),
    tolerations=tolerations,
    required_terms=term_lists,
    claims=st.just(("c",)),
)
nodes = st.builds(
    lambda **more: make_node("n1", **more),
    labels=labels,
    taints=taints.map(tuple),
    ready=st.sampled_from((True, True, False)),
    unschedulable=st.booleans(),
)


@given(template=templates, node=nodes, claim=term_lists)
@example(template=make_template(required_terms=(NodeTerm(),), claims=("c",)), node=make_node("n1"), claim=None)
def test_rules_agree_with_a_slow_oracle(template: PodTemplateFacts, node: NodeFacts, claim: tuple[NodeTerm, ...] | None) -> None:
    """Whether a node is excluded at all is what a naive reading of the Kubernetes documentation says."""
    found = eligible_nodes(template, [node], runtime_class=None, claim_terms={"c": claim})
    assert (node.name in found) == (not allowed(template, node, claim))


def allowed(template: PodTemplateFacts, node: NodeFacts, claim: tuple[NodeTerm, ...] | None) -> bool:
    if not node.ready or (template.node_name is not None and template.node_name != node.name):
        return False
    if any(node.labels.get(key) != value for key, value in template.node_selector.items()):
        return False
    if any(alternatives is not None and not any(selects(item, node) for item in alternatives) for alternatives in (template.required_terms, claim)):
        return False
    extra = [Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")] if node.unschedulable else []
    for taint in [*node.taints, *extra]:
        if taint.effect == "PreferNoSchedule" or (taint.effect == "NoSchedule" and template.node_name is not None):
            continue
        if not [item for item in template.tolerations if forgives(item, taint)]:
            return False
    return sum(container.requests["cpu"] for container in template.containers) <= 4000


def selects(item: NodeTerm, node: NodeFacts) -> bool:
    wanted = [(requirement, node.labels) for requirement in item.expressions] + [(requirement, {"metadata.name": node.name}) for requirement in item.fields]
    return bool(wanted) and not [1 for requirement, have in wanted if not holds(requirement, have)]


def holds(requirement: Requirement, have: Mapping[str, str]) -> bool:
    present = requirement.key in have
    value = have.get(requirement.key, "")
    if requirement.operator in ("Gt", "Lt"):
        first = requirement.values[0]
        if not (present and value.isdigit() and first.isdigit()):
            return False
        return int(value) > int(first) if requirement.operator == "Gt" else int(value) < int(first)
    return {
        "In": present and value in requirement.values,
        "NotIn": not (present and value in requirement.values),
        "Exists": present,
        "DoesNotExist": not present,
    }[requirement.operator]


def forgives(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value
