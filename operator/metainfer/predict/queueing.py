"""From the time of one execution to what a client sees: a closed loop of ``clients`` requests in flight, without think time.

Source: Little's law, latency = requests in flight / throughput; Denning and Buzen, The Operational Analysis of Queueing Network
Models (1978). The server is the one that the benchmark runs: a collector that fills a batch or waits ``max_batch_delay_us`` from
the first request on, and ``concurrency`` workers that share one card.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from metainfer.decide.candidates import joins_requests
from metainfer_probe.contract import ServingConfig


@dataclass(frozen=True, slots=True)
class Loop:
    """How the requests in flight group themselves, once the loop has settled."""

    clients: int
    groups: int
    """Batches in flight: clients that were answered together ask again together."""
    workers: int
    """Executions that really run in parallel."""
    delay_us: float
    """Wait for a batch that cannot fill, as far as no other execution hides it."""

    @property
    def batch(self) -> float:
        """Mean samples per execution."""
        return self.clients / self.groups

    @property
    def turns(self) -> float:
        """Executions one after the other between a request and its answer."""
        return self.groups / self.workers

    def latency_us(self, service_us: float) -> float:
        """Mean latency when one execution of ``batch`` takes ``service_us`` while ``workers`` run."""
        return self.turns * (service_us + self.delay_us)

    def throughput_per_second(self, service_us: float) -> float:
        """Answered requests per second, by Little's law."""
        return 1e6 * self.clients / self.latency_us(service_us)


def settle(config: ServingConfig, clients: int) -> Loop:
    """With room for b per batch, n clients travel in ceil(n / b) groups.

    A group that is not full waits for the delay; that costs time only while no other group is waiting for the card.
    """
    clients = max(1, clients)
    room = config.batch_size if joins_requests(config) else 1
    groups = math.ceil(clients / room)
    workers = min(config.concurrency, groups)
    waits = joins_requests(config) and clients < groups * room and groups <= workers
    return Loop(clients, groups, workers, config.max_batch_delay_us / groups if waits else 0.0)
