from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.unit.predict.make_samples import NOON, Fleet, make_probe, make_profile

from metainfer.decide.learning import join_samples

MATERIAL = Fleet(models=2, families=("slow",), nodes=2).build()


def test_every_run_becomes_a_question_with_its_answer() -> None:
    """Candidate, load, model and both portraits as they were."""
    samples = join_samples(MATERIAL.runs, MATERIAL.profiles, MATERIAL.probes)
    assert len(samples) == len(MATERIAL.runs) == 32
    first, (digest, run) = samples[0], MATERIAL.runs[0]
    assert (first.digest, first.node, first.question.candidate, first.question.load_clients) == (digest, run.node, run.candidate, 4)
    assert first.question.profile.digest == digest
    assert first.question.card is not None
    assert (first.question.card.node, first.question.card.spec.pool, first.question.card.spec.family) == (run.node, "lab", "slow")
    assert first.question.profiled_on is not None
    assert first.question.profiled_on.node == "slow-0"


def test_one_probe_is_one_portrait_object() -> None:
    """Predictors tell cards apart by identity: thousands of samples of one card must not be thousands of cards."""
    samples = join_samples(MATERIAL.runs, MATERIAL.profiles, MATERIAL.probes)
    assert len({id(sample.question.card) for sample in samples}) == 2


def test_a_run_takes_the_portrait_its_card_had_then() -> None:
    """A card that was replaced or throttled since is another card."""
    later = make_probe("slow-0", 3.0, finished_at=NOON + timedelta(days=5))
    samples = join_samples(MATERIAL.runs, MATERIAL.profiles, [*MATERIAL.probes, replace(later, job_uid="later")])
    assert {sample.question.card.status.micro_megaflops for sample in samples if sample.question.card} == {50_000}
    only_later = join_samples(MATERIAL.runs, MATERIAL.profiles, [later])
    assert {sample.question.card.status.micro_megaflops for sample in only_later if sample.question.card} == {150_000}


def test_without_a_probe_the_card_is_unknown_but_the_run_teaches() -> None:
    """The base then rests on constants, and says so by its doubt."""
    samples = join_samples(MATERIAL.runs, MATERIAL.profiles, ())
    assert len(samples) == 32
    assert {sample.question.card for sample in samples} == {None}


def test_what_is_no_result_teaches_nothing() -> None:
    """Failed runs, models that were never profiled, and profiles that failed."""
    (digest, run), *others = MATERIAL.runs
    assert run.report is not None
    broken = replace(run, report=run.report.model_copy(update={"candidate": None}))
    assert len(join_samples([(digest, broken), *others], MATERIAL.profiles, MATERIAL.probes)) == 31
    assert len(join_samples(MATERIAL.runs, MATERIAL.profiles[:1], MATERIAL.probes)) == 16
    assert join_samples(MATERIAL.runs, (), MATERIAL.probes) == ()


def test_the_last_good_profile_of_a_file_counts() -> None:
    """A later one that failed does not take the model away."""
    failed = make_profile(0, "slow-0", finished_at=NOON + timedelta(days=1))
    assert failed.report is not None
    failed = replace(failed, report=failed.report.model_copy(update={"digest": ""}))
    assert len(join_samples(MATERIAL.runs, [*MATERIAL.profiles, failed], MATERIAL.probes)) == 32
