"""A serving configuration as the status shows it, and back. Pure."""

from __future__ import annotations

from metainfer.api.durations import format_duration_us, parse_duration_us
from metainfer.api.v1alpha1.model_adaptation import ConfigStatus
from metainfer.decide.facts import Candidate
from metainfer_probe.contract import ServingConfig


def config_status(candidate: Candidate) -> ConfigStatus:
    """A candidate as the status shows it."""
    config = candidate.config
    return ConfigStatus(
        pool=candidate.pool,
        family=candidate.family,
        execution_provider=config.execution_provider,
        precision=config.precision,
        batch_size=config.batch_size,
        concurrency=config.concurrency,
        dynamic_batching=config.dynamic_batching,
        max_batch_delay=format_duration_us(config.max_batch_delay_us),
    )


def candidate_of(status: ConfigStatus) -> Candidate:
    """Inverse of ``config_status``."""
    config = ServingConfig(
        execution_provider=status.execution_provider,
        precision=status.precision,
        batch_size=status.batch_size,
        concurrency=status.concurrency,
        dynamic_batching=status.dynamic_batching,
        max_batch_delay_us=parse_duration_us(status.max_batch_delay),
    )
    return Candidate(status.pool, status.family, config)
