"""Served windows as rows, and back: training samples of what ran, by natural key, aggregates only. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import RowMapping

from metainfer.decide.facts import Candidate
from metainfer.decide.latency.served import NodeLatency
from metainfer.decide.names import canonical_json
from metainfer.decide.plan import RecordServed
from metainfer.store.rows import Row
from metainfer_probe.contract import ServingConfig


@dataclass(frozen=True, slots=True)
class ServedSample:
    """One window of one target under one decision."""

    adaptation_uid: str
    ended_at: datetime
    decision_id: str
    run_id: str
    candidate: Candidate
    digest: str
    """Of the model file; empty = not known."""
    metric: str
    seconds: float
    requests: int
    p99_us: float | None
    """None = not to be compared, as the mean below."""
    mean_us: float | None
    requests_per_second: float
    in_flight: float | None
    replicas: float | None
    nodes: Mapping[str, NodeLatency] = field(default_factory=dict)


def served_row(adaptation_uid: str, served: RecordServed) -> Row:
    """One row of ``served``."""
    reading, candidate = served.window.reading, served.candidate
    nodes = {node: [item.requests, item.mean_us, item.p99_us] for node, item in served.window.nodes.items()}
    return candidate.config.model_dump() | {
        "adaptation_uid": adaptation_uid,
        "ended_at": served.window.ended_at,
        "decision_id": served.decision_id,
        "run_id": served.run_id,
        "digest": served.digest,
        "pool": candidate.pool,
        "family": candidate.family,
        "metric": reading.metric[:256],
        "seconds": reading.seconds,
        "requests": reading.requests,
        "p99_us": reading.p99.value_us if reading.p99 is not None and reading.supports("p99") else None,
        "mean_us": reading.mean_us if reading.supports("mean") else None,
        "requests_per_second": reading.load.requests_per_second,
        "in_flight": reading.load.in_flight,
        "replicas": reading.load.replicas,
        "nodes": canonical_json(nodes),
    }


def read_served(row: RowMapping) -> ServedSample:
    """A row of ``served``."""
    config = ServingConfig(**{name: row[name] for name in ServingConfig.model_fields})
    nodes = {node: NodeLatency(int(requests), mean, p99) for node, (requests, mean, p99) in json.loads(row["nodes"]).items()}
    figures = {name: row[name] for name in ("metric", "seconds", "requests", "p99_us", "mean_us", "requests_per_second", "in_flight", "replicas")}
    return ServedSample(
        adaptation_uid=row["adaptation_uid"],
        ended_at=row["ended_at"],
        decision_id=row["decision_id"],
        run_id=row["run_id"],
        candidate=Candidate(row["pool"], row["family"], config),
        digest=row["digest"],
        nodes=nodes,
        **figures,
    )
