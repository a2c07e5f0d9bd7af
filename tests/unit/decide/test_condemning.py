"""A verdict about a card marks its node as a probe would, until there is a probe."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.decide.make_facts import make_adaptation
from tests.unit.decide.make_lab import Lab, make_lab

from metainfer.decide.condemning import find_condemned
from metainfer.decide.conditions import format_time
from metainfer.decide.facts import AdaptationFacts


def make_judged(node: str, judged_at: str, verdict: str = "Card", **fields: str) -> AdaptationFacts:
    """An adaptation whose last check came to this."""
    found = {"reason": "P99Drift", "verdict": verdict, "node": node, "judgedAt": judged_at}
    return make_adaptation(fields.get("name", "ocr"), status={"check": {"verdict": found}})


def condemn(lab: Lab, node: str, verdict: str = "Card") -> None:
    """A check finds the node's card slow just now."""
    lab.snapshot = replace(lab.snapshot, adaptations=(make_judged(node, format_time(lab.now), verdict),))


def test_a_verdict_marks_the_node_at_once_and_has_it_measured() -> None:
    """Before the pods are placed anew. The probe asks for the reason why: the message names the adaptation."""
    lab = make_lab(lambda node, hours: 0.6 if node == "n2" and hours > 0.4 else 1.0)
    lab.play(25)
    assert lab.labelled() == []
    condemn(lab, "n2")
    probes = len(lab.probes)
    lab.play(1)
    assert lab.labelled() == ["n2"]
    wanted = lab.status("n2").probe_wanted
    assert wanted is not None
    assert wanted.value == "a check of default/ocr found its card slower"
    assert [node for _, node in lab.probes[probes:]] == ["n2"]


def test_a_card_recovers_from_a_verdict_as_from_a_probe() -> None:
    """Two good probes; the same old verdict does not mark it again."""
    lab = make_lab(lambda _node, _hours: 1.0)
    lab.play(25)
    condemn(lab, "n2")
    lab.play(1)
    assert lab.labelled() == ["n2"]
    lab.play(60)
    assert lab.labelled() == []
    assert [node for _, node in lab.probes].count("n2") == 3


def test_other_verdicts_say_nothing_about_the_card() -> None:
    """Load, model and driver are no fault of a node's."""
    lab = make_lab(lambda _node, _hours: 1.0)
    lab.play(25)
    for verdict in ("Load", "Model", "Driver", "Nothing", "CheckFailed"):
        condemn(lab, "n2", verdict)
        lab.play(1)
    assert lab.labelled() == []


def test_of_several_verdicts_about_a_node_the_newest_counts() -> None:
    """Two adaptations with pods on it."""
    older, newer = make_judged("n1", "2026-03-01T12:00:00Z", name="a"), make_judged("n1", "2026-03-01T13:00:00Z", name="b")
    assert {node: who for node, (who, _) in find_condemned((newer, older)).items()} == {"n1": "default/b"}
