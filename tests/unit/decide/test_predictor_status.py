from __future__ import annotations

from dataclasses import replace

from metainfer.decide.learned import FamilyRecord, LearnedState
from metainfer.decide.predictor_status import VERDICT_LENGTH, build_predictor_status, find_predictor

HOME = FamilyRecord(rows=100, held_out_regret_permille=20, base_regret_permille=90)
STATE = LearnedState(version=3, rows=200, held_out_regret_permille=20, base_regret_permille=90, families={"lab/fast": HOME}, serves_others=False)


def test_a_model_that_ranks_none_of_the_pools_families_says_so() -> None:
    """The one that ships knows other cards: its figures would promise what nobody gets here."""
    found = find_predictor(STATE, ["shop/cpu", "shop/gpu"])
    assert (found.status, found.reason) == ("False", "OtherFamilies")
    assert "model 3" in found.message


def test_a_model_that_ranks_some_families_names_them() -> None:
    """In the others the roofline ranks."""
    found = find_predictor(STATE, ["lab/fast", "lab/slow"])
    assert (found.status, found.reason) == ("True", "Learned")
    assert found.message.endswith("it ranks in fast, the roofline in the others")


def test_a_model_that_won_elsewhere_too_ranks_everywhere_but_where_it_lost() -> None:
    """Families in which it was judged count by that."""
    lost = replace(STATE, serves_others=True, families={"lab/fast": replace(HOME, serves=False)})
    assert find_predictor(lost, ["shop/cpu"]).message.endswith("the roofline's 9.0 %")
    assert find_predictor(lost, ["lab/fast"]).reason == "OtherFamilies"


def test_a_problem_stands_above_all() -> None:
    """Nothing ranks but the roofline, whatever the record says."""
    broken = replace(STATE, problem=("Corrupted", "no checksum"))
    assert find_predictor(broken, ["lab/fast"]).reason == "ModelCorrupted"
    assert not broken.serves("lab/fast")


def test_a_long_verdict_is_cut_to_what_the_status_holds() -> None:
    """Whatever a training process says."""
    status = build_predictor_status(replace(STATE, newest_version=4, newest_verdict="x" * 999))
    assert (status.version, status.newest_version, len(status.newest_verdict)) == (3, 4, VERDICT_LENGTH)
