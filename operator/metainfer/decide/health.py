"""Whether a card is slower than its siblings: one probe raises a doubt, its repeats decide, two good ones end it. Pure.

What has to be told apart: a card that is 10 % slower than its family, and the noise of a probe, which differs by up to 3 % between two
runs on the same card. One probe cannot do both (a bound that finds 95 % of slow cards then cries wolf at every twentieth), so the
first bound is loose and what it costs is another probe of 30 s, never a label. The bounds follow from simulation of the rule below with
normal noise of 3 % per probe, siblings included (200,000 cards each; ``tests/unit/decide/test_health.py`` repeats it):

    nodes of the family     a card 10 % slower is found     a good card is labelled, per regular probe     repeats of a good card
    3                       95.7 %                          1.4 %                                          0.33
    5                       97.4 %                          0.6 %                                          0.27
    20                      99.1 %                          0.04 %                                         0.21

Half the noise makes that 99.9 % and 0.01 %; 2 % were measured
(ten probes of 10 s on one core, ``hack/bench/probe``). In a family of three the siblings' own noise is a third of the doubt, and no repeat of the
suspect takes it away; in a family of two nobody can say which of the two is typical, and only one that is 11 % behind the other counts.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Final, Literal

from metainfer.api.v1alpha1.node_portrait import HealthTrial, NodePortraitStatus
from metainfer.decide.conditions import parse_time

Health = Literal["Healthy", "Degraded", "Unknown"]

SUSPECT_BELOW_PERMILLE: Final = 970
"""Of the siblings' median: a card below it is measured again. One noise width, which a slow card misses once in a hundred times."""
CLEARED_FROM_PERMILLE: Final = 960
"""Of the mean of all probes of a trial, before its last one."""
DEGRADED_BELOW_PERMILLE: Final = 945
"""Of the mean of ``TRIAL_PROBES`` probes: half way between a good card and one that is 10 % slower, in noise widths of that mean."""
SURELY_BELOW_PERMILLE: Final = 900
"""Of the mean of two: five noise widths away from a good card, so that what is plainly broken is not measured four times."""
TRIAL_PROBES: Final = 4
HEALTHY_FROM_PERMILLE: Final = 950
"""A good probe of a degraded card; a card still 10 % slower has two in a row once in two hundred pairs."""
GOOD_PROBES: Final = 2

CONFIRM_AFTER: Final = timedelta(minutes=1)
"""Between two probes of a trial: a neighbour's burst should not be in both."""
RECOVERY_AFTER: Final = timedelta(minutes=30)
RECOVERY_LIMIT: Final = timedelta(hours=12)
"""A degraded card is measured again after 30, 60, ... minutes, at last twice a day; after a good probe in five minutes."""
SECOND_GOOD_AFTER: Final = timedelta(minutes=5)
_DOUBLINGS: Final = 5


def judge_health(status: NodePortraitStatus, speed_permille: int) -> NodePortraitStatus:
    """The status after a look at how fast the card is against its siblings; the very same where nothing follows.

    Called in every pass: a probe counts once, by the name of its Job.
    """
    if status.health == "Degraded":
        return _judge_degraded(status, speed_permille)
    trial = status.trial
    if trial is not None and trial.probes > 0:
        return status if trial.job == status.probe_job else _judge_trial(status, trial, speed_permille)
    is_news = trial is None or trial.job != status.probe_job
    if speed_permille < SUSPECT_BELOW_PERMILLE and is_news:
        return _with(status, "Healthy", HealthTrial(job=status.probe_job, probes=1, mean_permille=speed_permille))
    return _with(status, "Healthy", None if is_news else trial)


def _judge_trial(status: NodePortraitStatus, trial: HealthTrial, speed_permille: int) -> NodePortraitStatus:
    probes = trial.probes + 1
    mean = round(math.exp((trial.probes * math.log(max(1, trial.mean_permille)) + math.log(max(1, speed_permille))) / probes))
    if mean < SURELY_BELOW_PERMILLE or (probes >= TRIAL_PROBES and mean < DEGRADED_BELOW_PERMILLE):
        return _with(status, "Degraded", HealthTrial(job=status.probe_job, mean_permille=mean))
    if mean >= CLEARED_FROM_PERMILLE or probes >= TRIAL_PROBES:
        return _with(status, "Healthy", HealthTrial(job=status.probe_job, mean_permille=mean))
    return _with(status, "Healthy", HealthTrial(job=status.probe_job, probes=probes, mean_permille=mean))


def _judge_degraded(status: NodePortraitStatus, speed_permille: int) -> NodePortraitStatus:
    trial = status.trial or HealthTrial(job="")
    if trial.job == status.probe_job:
        return status
    if speed_permille < HEALTHY_FROM_PERMILLE:
        return _with(status, "Degraded", HealthTrial(job=status.probe_job, mean_permille=speed_permille, bad=trial.bad + 1))
    if trial.good + 1 >= GOOD_PROBES:
        return _with(status, "Healthy", HealthTrial(job=status.probe_job, mean_permille=speed_permille))
    return _with(status, "Degraded", HealthTrial(job=status.probe_job, mean_permille=speed_permille, good=trial.good + 1))


def _with(status: NodePortraitStatus, health: Health, trial: HealthTrial | None) -> NodePortraitStatus:
    if (status.health, status.trial) == (health, trial):
        return status
    return status.model_copy(update={"health": health, "trial": trial})


def next_look(status: NodePortraitStatus) -> tuple[str, datetime] | None:
    """Why and when the card's health needs another probe; None while it is beyond doubt."""
    if status.measured_at is None:
        return None
    measured_at, trial = parse_time(status.measured_at), status.trial
    if status.health == "Degraded":
        good, bad = (trial.good, trial.bad) if trial is not None else (0, 0)
        pause = SECOND_GOOD_AFTER if good else min(RECOVERY_LIMIT, RECOVERY_AFTER * (1 << min(bad, _DOUBLINGS)))
        return "it is degraded and may have recovered", measured_at + pause
    if trial is not None and trial.probes > 0:
        return f"probe {trial.probes + 1} of {TRIAL_PROBES} at most: it is slower than its siblings", measured_at + CONFIRM_AFTER
    return None
