from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.make_facts import make_container, make_env_owner, make_managed, make_target, make_template

from metainfer.decide.declared import affinity_declarations, contested_env, find_declaration, reads_setting
from metainfer.decide.environment import env_values, escape, references
from metainfer.decide.facts import ContainerFacts, EnvEntry, EnvFrom, NodeTerm
from metainfer.decide.ownership import PREFERRED_AFFINITY, REQUIRED_AFFINITY

PRECISION = "METAINFER_PRECISION"
BATCH_TIME = "MLSERVER_MODEL_MAX_BATCH_TIME"
VALUE_ONLY: dict[str, object] = {"f:value": {}}


def with_sources(*sources: EnvFrom, **values: str) -> ContainerFacts:
    return replace(make_container(env=values), env_from=sources)


def test_a_name_that_nobody_sets_is_free() -> None:
    """Neither env nor envFrom has it."""
    container = make_container(env={"LOG_LEVEL": "info"})
    assert find_declaration(make_target("ocr", container), container, PRECISION, {}) is None


@pytest.mark.parametrize(
    ("entry", "want_value"),
    [
        pytest.param(EnvEntry(PRECISION), "", id="without any value"),
        pytest.param(EnvEntry(PRECISION, ""), "", id="with an empty value"),
        pytest.param(EnvEntry(PRECISION, "int8"), "int8", id="with a value"),
        pytest.param(EnvEntry(PRECISION, source="field metadata.name"), None, id="from a field"),
        pytest.param(EnvEntry(PRECISION, source="secret tuning/precision"), None, id="from a Secret"),
        pytest.param(EnvEntry(PRECISION, source="configMap tuning/precision"), "bf16", id="from a ConfigMap"),
        pytest.param(EnvEntry(PRECISION, source="configMap other/precision"), None, id="from a ConfigMap that was not read"),
    ],
)
def test_every_entry_of_the_owner_is_declared(entry: EnvEntry, want_value: str | None) -> None:
    """Also an empty one: server-side apply would take it over without a conflict."""
    container = replace(make_container(), env=(entry,))
    target = make_target("ocr", container, managed=(make_env_owner(container, PRECISION, manager="helm", operation="Update"),))
    found = find_declaration(target, container, PRECISION, {"tuning": {"precision": "bf16"}})
    assert found is not None
    assert found.value == want_value
    assert found.manager == "helm"
    assert found.path == 'spec.template.spec.containers[name="server"].env[name="METAINFER_PRECISION"]'
    assert found.source == (entry.source or "")


def test_an_entry_that_our_apply_owns_is_not_declared() -> None:
    """What we wrote is ours to change."""
    container = make_container(env={PRECISION: "int8"})
    target = make_target("ocr", container, managed=(make_env_owner(container, PRECISION),))
    assert find_declaration(target, container, PRECISION, {}) is None
    assert contested_env(target, container) == ()


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param({"manager": "metainfer", "operation": "Update"}, id="our name, but an update"),
        pytest.param({"manager": "metainfer", "leaf": {"f:name": {}}}, id="ours, but not the entry itself"),
    ],
)
def test_only_our_apply_of_the_entry_makes_it_ours(owner: dict[str, Any]) -> None:
    """Anything less than `.` under our Apply item is no ownership."""
    container = make_container(env={PRECISION: "int8"})
    target = make_target("ocr", container, managed=(make_env_owner(container, PRECISION, **owner),))
    assert find_declaration(target, container, PRECISION, {}) is not None


def test_an_entry_without_any_recorded_manager_is_declared() -> None:
    """A backup may have dropped managedFields: what is there is then somebody's, not ours."""
    container = make_container(env={PRECISION: "int8"})
    found = find_declaration(make_target("ocr", container), container, PRECISION, {})
    assert found is not None
    assert found.manager == "unknown"


def test_a_container_of_the_same_name_elsewhere_owns_nothing() -> None:
    """Ownership is looked up in the list in which the container stands."""
    init = make_container(init=True, restartable=True, env={PRECISION: "int8"})
    ordinary = make_container()
    target = make_target(template=make_template(init), managed=(make_env_owner(ordinary, PRECISION),))
    found = find_declaration(target, init, PRECISION, {})
    assert found is not None
    assert "initContainers" in found.path


def test_a_value_taken_over_by_a_client_side_owner_is_declared_and_contested() -> None:
    """The owner has `f:value` under our entry: it wins, and the entry must be released before it is left out."""
    container = make_container(env={PRECISION: "fp32"})
    owners = (make_env_owner(container, PRECISION), make_env_owner(container, PRECISION, manager="argocd-controller", operation="Update", leaf=VALUE_ONLY))
    target = make_target("ocr", container, managed=owners)
    found = find_declaration(target, container, PRECISION, {})
    assert found is not None
    assert (found.manager, found.value) == ("argocd-controller", "fp32")
    assert contested_env(target, container) == (PRECISION,)


def test_an_entry_shared_with_a_server_side_owner_is_declared_and_not_contested() -> None:
    """It owns the entry itself, so leaving it out of our apply keeps the owner's."""
    container = make_container(env={PRECISION: "int8"})
    target = make_target("ocr", container, managed=(make_env_owner(container, PRECISION), make_env_owner(container, PRECISION, manager="helm")))
    assert find_declaration(target, container, PRECISION, {}) is not None
    assert contested_env(target, container) == ()


def test_a_leaf_in_managed_fields_is_the_whole_entry() -> None:
    """Two entries of one name are recorded as a leaf: their owner has more than a part."""
    container = make_container(env={PRECISION: "int8"})
    owners = (make_env_owner(container, PRECISION), make_env_owner(container, PRECISION, manager="helm", operation="Update", leaf={}))
    assert contested_env(make_target("ocr", container, managed=owners), container) == ()


def test_one_owner_of_the_whole_entry_is_enough_to_keep_it() -> None:
    """A human's edit of the value beside the chart's entry contests nothing: the entry stays when we leave it out."""
    container = make_container(env={PRECISION: "int8"})
    edit = make_env_owner(container, PRECISION, manager="kubectl-edit", operation="Update", leaf=VALUE_ONLY)
    owners = (make_env_owner(container, PRECISION), make_env_owner(container, PRECISION, manager="helm"), edit)
    target = make_target("ocr", container, managed=owners)
    found = find_declaration(target, container, PRECISION, {})
    assert found is not None
    assert found.manager == "helm, kubectl-edit"
    assert contested_env(target, container) == ()


def test_of_two_entries_with_one_name_the_last_one_counts() -> None:
    """Charts with two branches write such lists; the container runtime takes the last."""
    container = replace(make_container(), env=(EnvEntry(PRECISION, "fp32"), EnvEntry("A", "x"), EnvEntry(PRECISION, "int8")))
    found = find_declaration(make_target("ocr", container), container, PRECISION, {})
    assert found is not None
    assert found.value == "int8"


def test_the_last_source_wins_and_prefixes_build_the_name() -> None:
    """envFrom: the later ConfigMap beats the earlier one, and the key is what stands behind the prefix."""
    container = with_sources(
        EnvFrom("ConfigMap", "base"),
        EnvFrom("ConfigMap", "site"),
        EnvFrom("ConfigMap", "site", prefix="MLSERVER_MODEL_"),
        EnvFrom("ConfigMap", "absent", optional=True),
    )
    maps = {
        "base": {BATCH_TIME: "0.005", "MLSERVER_MODEL_MAX_BATCH_SIZE": "8"},
        "site": {"MLSERVER_MODEL_MAX_BATCH_SIZE": "16", "MAX_BATCH_TIME": "0.02"},
        "absent": None,
    }
    target = make_target("ocr", container, managed=(make_managed("f:spec", manager="chart"),))
    time = find_declaration(target, container, BATCH_TIME, maps)
    size = find_declaration(target, container, "MLSERVER_MODEL_MAX_BATCH_SIZE", maps)
    assert time is not None
    assert size is not None
    assert (time.value, time.source) == ("0.02", "ConfigMap site, key MAX_BATCH_TIME")
    assert (size.value, size.source) == ("16", "ConfigMap site, key MLSERVER_MODEL_MAX_BATCH_SIZE")
    assert time.path.endswith('containers[name="server"].envFrom')
    assert find_declaration(target, container, PRECISION, maps) is None


def test_a_source_gives_a_name_that_our_entry_shadows() -> None:
    """A ConfigMap that starts to set the name after we wrote it declares it: our entry has to go."""
    container = replace(with_sources(EnvFrom("ConfigMap", "site")), env=(EnvEntry(PRECISION, "int8"),))
    target = make_target("ocr", container, managed=(make_env_owner(container, PRECISION),))
    assert find_declaration(target, container, PRECISION, {"site": {}}) is None
    found = find_declaration(target, container, PRECISION, {"site": {PRECISION: "fp32"}})
    assert found is not None
    assert found.value == "fp32"


def test_a_secret_may_hold_any_name() -> None:
    """It is never read: the setting counts as declared, with a value that nobody knows, and the Secret is named."""
    container = with_sources(EnvFrom("Secret", "keys"))
    found = find_declaration(make_target("ocr", container), container, PRECISION, {})
    assert found is not None
    assert found.value is None
    assert "Secret keys" in found.source


@pytest.mark.parametrize(
    ("sources", "want_declared"),
    [
        pytest.param((EnvFrom("Secret", "keys", prefix="S3_"),), False, id="a prefix rules it out"),
        pytest.param((EnvFrom("Secret", "keys", prefix="META"),), True, id="a prefix that fits does not"),
        pytest.param((EnvFrom("ConfigMap", "forbidden"),), True, id="a ConfigMap that could not be read may hold it"),
        pytest.param((EnvFrom("ConfigMap", "site"),), False, id="a ConfigMap without the key"),
    ],
)
def test_what_a_source_may_hold(sources: tuple[EnvFrom, ...], *, want_declared: bool) -> None:
    """What cannot be seen counts as held, unless the name rules it out."""
    container = with_sources(*sources)
    found = find_declaration(make_target("ocr", container), container, PRECISION, {"site": {"PORT": "1"}})
    assert (found is not None) is want_declared


def test_a_later_source_settles_what_a_secret_may_hold() -> None:
    """The last source that surely holds the name wins over any Secret before it."""
    container = with_sources(EnvFrom("Secret", "keys"), EnvFrom("ConfigMap", "site"))
    found = find_declaration(make_target("ocr", container), container, PRECISION, {"site": {PRECISION: "bf16"}})
    assert found is not None
    assert found.value == "bf16"


def test_both_halves_of_node_affinity_are_told_apart() -> None:
    """The owner's half is named with path and manager; the other one is free, and so is a half that we wrote."""
    owner = make_managed(*REQUIRED_AFFINITY, manager="chart", operation="Update")
    target = make_target(template=make_template(required_terms=(NodeTerm(),), preferred_present=True), managed=(owner, make_managed(*PREFERRED_AFFINITY)))
    halves = affinity_declarations(target)
    assert halves.preferred is None
    assert halves.required is not None
    assert halves.required.path == "spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    assert halves.required.manager == "chart"


def test_absent_affinity_is_free() -> None:
    """Nothing is declared where nothing stands, whatever managedFields say of the past."""
    halves = affinity_declarations(make_target(managed=(make_managed(*REQUIRED_AFFINITY, manager="chart"),)))
    assert (halves.required, halves.preferred) == (None, None)


def test_a_half_shared_with_another_manager_is_the_owners() -> None:
    """Co-ownership means that the owner's manifest has it."""
    owners = (make_managed(*REQUIRED_AFFINITY), make_managed(*REQUIRED_AFFINITY, manager="argocd-controller"))
    target = make_target(template=make_template(required_terms=(NodeTerm(),)), managed=owners)
    assert affinity_declarations(target).required is not None


@pytest.mark.parametrize(
    ("word", "want_read"),
    [
        pytest.param("$(MI_MAX_NUM_SEQS)", True, id="a reference"),
        pytest.param("--max=$(MI_MAX_NUM_SEQS)", True, id="inside a word"),
        pytest.param("$$(MI_MAX_NUM_SEQS)", False, id="escaped"),
        pytest.param("$$$(MI_MAX_NUM_SEQS)", True, id="behind an escaped dollar"),
        pytest.param("$(MI_MAX_NUM_SEQS", False, id="not closed"),
        pytest.param("${MI_MAX_NUM_SEQS}", False, id="the shell's own form"),
        pytest.param("$(MI_MAX_NUM)", False, id="another name"),
    ],
)
def test_what_reads_a_setting(word: str, *, want_read: bool) -> None:
    """Kubernetes expands `$(NAME)` in command and args, and `$$` is a dollar."""
    assert reads_setting(make_container(command=("serve", word)), "MI_MAX_NUM_SEQS") is want_read
    assert reads_setting(make_container(args=(word,)), "MI_MAX_NUM_SEQS") is want_read


def test_values_may_refer_to_earlier_entries_and_sources() -> None:
    """As the kubelet does it: in order, envFrom known from the start, unknown names left as they stand."""
    container = with_sources(EnvFrom("ConfigMap", "site"), EnvFrom("Secret", "keys", prefix="SECRET_"))
    entries = (
        EnvEntry("A", "$(FROM_SITE)-$(LATER)"),
        EnvEntry("LATER", "x"),
        EnvEntry("B", "$(A)/$(LATER)/$$(A)"),
        EnvEntry("C", "$(SECRET_KEY)"),
        EnvEntry("D", "$(C)"),
    )
    values = env_values(replace(container, env=entries), {"site": {"FROM_SITE": "s"}})
    assert values == {"A": "s-$(LATER)", "LATER": "x", "B": "s-$(LATER)/x/$(A)", "C": None, "D": None}


@given(st.text(alphabet="$()AB-", max_size=12))
def test_an_escaped_value_reaches_the_process_unchanged(text: str) -> None:
    """Whatever is in it."""
    container = replace(make_container(), env=(EnvEntry("A", "a"), EnvEntry("OUT", escape(text))))
    assert env_values(container, {})["OUT"] == text


@given(st.text(alphabet="$()AB", max_size=10))
def test_expansion_is_that_of_the_kubelet(text: str) -> None:
    """Against the kubelet's own loop over characters."""
    container = replace(make_container(), env=(EnvEntry("A", "<a>"), EnvEntry("OUT", text)))
    assert env_values(container, {})["OUT"] == expand_slowly(text, {"A": "<a>"})
    assert all(re.fullmatch(r"[^)]*", name) for name in references(text))


def expand_slowly(text: str, known: dict[str, str]) -> str:
    out, index = "", 0
    while index < len(text):
        rest = text[index + 1 :]
        if text[index] != "$" or not rest:
            out, index = out + text[index], index + 1
        elif rest[0] == "$":
            out, index = out + "$", index + 2
        elif rest[0] == "(" and ")" in rest:
            name = rest[1 : rest.index(")")]
            out, index = out + known.get(name, f"$({name})"), index + len(name) + 3
        else:
            out, index = out + "$" + rest[0], index + 2
    return out
