from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.decide.make_facts import CARD, LONG_AGO, make_adaptation, make_container, make_family, make_pool, make_snapshot, make_target, make_template

from metainfer.decide.facts import PodTemplateFacts
from metainfer.decide.target import SEVERITY, check_target, find_container, find_target_problems

GPU = "nvidia.com/gpu"


def native_sidecar_template() -> PodTemplateFacts:
    return make_template(
        make_container("fetch", init=True),
        make_container("onnx", init=True, restartable=True, limits={CARD: 1}),
        make_container("app"),
    )


def test_a_plain_deployment_has_no_problem() -> None:
    """One container, one card, running: nothing is in the way."""
    assert check_target(make_snapshot()) is None


def test_a_missing_deployment_is_named_with_its_namespace() -> None:
    """TargetNotFound says which name was looked for, and where."""
    problem = check_target(make_snapshot(target=None, adaptation=make_adaptation(target="ocr-v2", namespace="shop")))
    assert problem is not None
    assert (problem.reason, problem.blocks) == ("TargetNotFound", "everything")
    assert "ocr-v2" in problem.message
    assert "shop" in problem.message


def test_the_older_of_two_adaptations_wins_the_target() -> None:
    """The younger one is told who has the target; the older one is not disturbed."""
    elder = make_adaptation("elder", target="ocr")
    younger = make_adaptation("younger", target="ocr", created_at=LONG_AGO + timedelta(days=1))
    problem = check_target(make_snapshot(adaptation=younger, peers=(elder,)))
    assert problem is not None
    assert (problem.reason, problem.blocks) == ("TargetTaken", "everything")
    assert "elder" in problem.message
    assert check_target(make_snapshot(adaptation=elder, peers=(younger,))) is None


def test_two_adaptations_of_the_same_second_are_told_apart_by_name() -> None:
    """Creation times have whole seconds; exactly one of two must win."""
    first, second = make_adaptation("a", target="ocr"), make_adaptation("b", target="ocr")
    assert check_target(make_snapshot(adaptation=first, peers=(second,))) is None
    assert check_target(make_snapshot(adaptation=second, peers=(first,))) is not None


@pytest.mark.parametrize(
    "peer",
    [
        pytest.param(make_adaptation("elder", target="other"), id="another target"),
        pytest.param(make_adaptation("elder", target="ocr", deleting=True), id="being deleted"),
        pytest.param(make_adaptation("elder", target="ocr", namespace="elsewhere"), id="another namespace"),
    ],
)
def test_an_older_adaptation_without_a_claim_is_no_obstacle(peer: object) -> None:
    """Only a living adaptation of the same Deployment takes it."""
    mine = make_adaptation("ocr", created_at=LONG_AGO + timedelta(days=1))
    assert check_target(make_snapshot(adaptation=mine, peers=(peer,))) is None


def test_a_deployment_with_a_controlling_owner_gets_recommendations_only() -> None:
    """Its controller writes the whole template, so only writing is blocked and the owner is named."""
    problem = check_target(make_snapshot(target=make_target(controller="InferenceService/reader")))
    assert problem is not None
    assert (problem.reason, problem.blocks) == ("UnsupportedTarget", "writing")
    assert "InferenceService/reader" in problem.message


def test_several_containers_must_be_told_apart_by_name() -> None:
    """ContainerAmbiguous lists the names to choose from; the named one is found."""
    target = make_target("ocr", make_container("server"), make_container("proxy"))
    problem = check_target(make_snapshot(target=target))
    assert problem is not None
    assert (problem.reason, problem.blocks) == ("ContainerAmbiguous", "everything")
    assert "server, proxy" in problem.message
    assert check_target(make_snapshot(target=target, adaptation=make_adaptation(container="server"))) is None


def test_an_unknown_container_is_answered_with_those_that_exist() -> None:
    """ContainerNotFound names what was asked for and what there is."""
    problem = check_target(make_snapshot(adaptation=make_adaptation(container="model")))
    assert problem is not None
    assert problem.reason == "ContainerNotFound"
    assert problem.message == "there is no container model in Deployment ocr; it has server"


def test_a_restartable_init_container_serves_when_it_is_named() -> None:
    """A model server may be a native sidecar; unnamed, the one ordinary container is taken."""
    template = native_sidecar_template()
    found = find_container(template, "onnx")
    assert found is not None
    assert found.init
    only = find_container(template, None)
    assert only is not None
    assert only.name == "app"


def test_an_init_container_that_ends_cannot_serve() -> None:
    """It is found in the template, yet the message says why it is not taken."""
    target = make_target(template=native_sidecar_template())
    problem = check_target(make_snapshot(target=target, adaptation=make_adaptation(container="fetch")))
    assert problem is not None
    assert problem.reason == "ContainerNotFound"
    assert "ends before" in problem.message
    assert "onnx, app" in problem.message


@pytest.mark.parametrize(
    ("limits", "want_words"),
    [
        pytest.param({GPU: 2}, "2 nvidia.com/gpu", id="two of a kind"),
        pytest.param({GPU: 1, CARD: 1}, "1 metainfer.dev/card and 1 nvidia.com/gpu", id="one of two kinds"),
    ],
)
def test_several_cards_per_pod_are_not_supported(limits: dict[str, int], want_words: str) -> None:
    """Counted are the resources that pools know as cards."""
    pools = (make_pool("gpus", make_family("l4", resource=GPU)), make_pool())
    problem = check_target(make_snapshot(target=make_target("ocr", make_container(limits=limits)), pools=pools))
    assert problem is not None
    assert (problem.reason, problem.blocks) == ("MultiCardUnsupported", "everything")
    assert want_words in problem.message


def test_devices_that_no_pool_calls_a_card_do_not_count() -> None:
    """A network device beside the card is no second card."""
    target = make_target("ocr", make_container(limits={CARD: 1, "rdma/hca": 2}))
    assert check_target(make_snapshot(target=target)) is None


def test_a_paused_deployment_is_decided_for_but_not_written() -> None:
    """Nothing would roll out; the message has the command that resumes it."""
    problem = check_target(make_snapshot(target=make_target(paused=True)))
    assert problem is not None
    assert (problem.reason, problem.blocks) == ("TargetPaused", "writing")
    assert "rollout resume deployment ocr" in problem.message


def test_no_benchmark_is_started_for_a_deployment_without_replicas() -> None:
    """TargetScaledToZero blocks benchmarks, and says so."""
    problem = check_target(make_snapshot(target=make_target(replicas=0)))
    assert problem is not None
    assert (problem.reason, problem.blocks) == ("TargetScaledToZero", "benchmarks")


def test_the_chain_is_asked_in_order() -> None:
    """All problems are found at once, the most basic first."""
    target = make_target("ocr", make_container("a", limits={CARD: 2}), make_container("b"), controller="Rollout/ocr", paused=True, replicas=0)
    mine = make_adaptation("ocr", created_at=LONG_AGO + timedelta(days=1))
    found = find_target_problems(make_snapshot(target=target, adaptation=mine, peers=(make_adaptation("elder", target="ocr"),)))
    assert [problem.reason for problem in found] == [
        "TargetTaken",
        "UnsupportedTarget",
        "ContainerAmbiguous",
        "MultiCardUnsupported",
        "TargetPaused",
        "TargetScaledToZero",
    ]


def test_without_a_target_nothing_else_is_said() -> None:
    """Rules about the Deployment are silent when there is none."""
    assert [problem.reason for problem in find_target_problems(make_snapshot(target=None))] == ["TargetNotFound"]


@given(
    controller=st.sampled_from([None, "Rollout/ocr"]),
    paused=st.booleans(),
    replicas=st.integers(0, 2),
    cards=st.integers(0, 2),
    containers=st.integers(1, 2),
)
def test_what_blocks_most_is_reported(*, controller: str | None, paused: bool, replicas: int, cards: int, containers: int) -> None:
    """A problem that blocks everything is never hidden behind one that blocks only writing."""
    parts = [make_container(f"c{index}", limits={CARD: cards if index == 0 else 0}) for index in range(containers)]
    snapshot = make_snapshot(target=make_target("ocr", *parts, controller=controller, paused=paused, replicas=replicas))
    problems = find_target_problems(snapshot)
    reported = check_target(snapshot)
    assert (reported is None) == (not problems)
    if reported is not None:
        assert SEVERITY.index(reported.blocks) == min(SEVERITY.index(problem.blocks) for problem in problems)
        assert reported == next(problem for problem in problems if problem.blocks == reported.blocks)
