"""What the status of a ModelAdaptation says about keeping its decision true: what is suspected, checked and found."""

from __future__ import annotations

from pydantic import Field

from metainfer.api.v1alpha1.common import ApiModel, Timestamp


class SuspicionStatus(ApiModel):
    """What speaks against the decision just now."""

    reason: str = Field(max_length=64, description="reason is the trigger in one word; docs/conditions.md explains each.")
    message: str = Field(default="", max_length=512, description="message names what was found when it was noticed.")
    noticed_at: Timestamp = Field(description="noticedAt is since when it stands without a break.")


class CheckClaim(ApiModel):
    """A check under way: claimed here before its Job is created."""

    job: str = Field(max_length=63, description="job is the name of its Job.")
    node: str = Field(max_length=253, description="node that it runs on.")
    reason: str = Field(max_length=64, description="reason is the trigger that wants it, or Baseline.")
    claimed_at: Timestamp = Field(description="claimedAt is when it was claimed.")
    attempt: int = Field(default=0, ge=0, description="attempt counts from 0.")


class CheckFigures(ApiModel):
    """What a check of the present configuration found."""

    job: str = Field(default="", max_length=63, description="job that measured it; empty = the benchmark of the decision and the node's portrait.")
    decision_id: str = Field(max_length=32, description="decisionId of the decision that was checked.")
    node: str = Field(max_length=253, description="node that it ran on.")
    beside_server: bool = Field(default=False, description="besideServer says that it shared the card with the pod that serves.")
    digest: str = Field(default="", max_length=64, description="digest is the SHA-256 of the model file.")
    driver_version: str = Field(default="", max_length=128, description="driverVersion of the node at that time; empty = unknown.")
    mean: str = Field(default="", max_length=32, description="mean latency under spec.load.")
    p99: str = Field(default="", max_length=32, description="p99 latency under spec.load.")
    micro_megaflops: int = Field(default=0, description="microMegaflops is what the card's micro-probe calculated per second, in millions.")
    micro_megabytes_per_second: int = Field(default=0, description="microMegabytesPerSecond is what the card's micro-probe copied per second.")
    measured_at: Timestamp = Field(description="measuredAt is when it was measured.")


class VerdictStatus(ApiModel):
    """What the last check came to."""

    reason: str = Field(max_length=64, description="reason is the trigger that wanted the check.")
    verdict: str = Field(max_length=64, description="verdict is Model, Driver, Card, Load, Nothing or CheckFailed.")
    node: str = Field(default="", max_length=253, description="node that was looked at.")
    message: str = Field(default="", max_length=512, description="message has the figures, and what follows.")
    slowdown_permille: int = Field(default=0, ge=0, description="slowdownPermille is how many times slower its checks found it; 1000 = as before, 0 = unknown.")
    judged_at: Timestamp = Field(description="judgedAt is when.")


class TrialStatus(ApiModel):
    """A card that one check found slower: the next ones decide."""

    reason: str = Field(max_length=64, description="reason is the trigger that the checks are for.")
    node: str = Field(max_length=253, description="node of the card.")
    slowdowns_permille: tuple[int, ...] = Field(max_length=8, description="slowdownsPermille is how many times slower each check found it; 1000 = as before.")
    checked_at: Timestamp = Field(description="checkedAt is when the last one was judged.")


class CheckStatus(ApiModel):
    """How what runs is kept true."""

    baseline: CheckFigures | None = Field(default=None, description="baseline is the check made once the placement had settled, for comparison.")
    suspicion: SuspicionStatus | None = Field(default=None, description="suspicion is what speaks against the decision just now.")
    claim: CheckClaim | None = Field(default=None, description="claim is the check under way.")
    trial: TrialStatus | None = Field(default=None, description="trial is set between the checks of a card that one found slower.")
    verdict: VerdictStatus | None = Field(default=None, description="verdict is what the last check came to.")
    in_vain: int = Field(default=0, ge=0, description="inVain is how many checks and runs in a row changed nothing; each doubles the pause after it.")
    acted_at: Timestamp | None = Field(default=None, description="actedAt is when the last of them was started or judged.")
    acted_on: str = Field(default="", max_length=64, description="actedOn is the trigger that it was for.")
    avoid: str = Field(default="", max_length=253, description="avoid is the node that the run that is due is to get the pods off.")
    due: str = Field(default="", max_length=512, description="due is why a run is to be started at the next pass; empty = none is.")
