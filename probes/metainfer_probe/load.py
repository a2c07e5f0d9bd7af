"""The server as a candidate would run it, in this process, under a closed loop of clients.

Why not the real server over the network: a Job has no port to offer, and HTTP and JSON cost the same for every candidate.
What differs between candidates is kept exactly as MLServer 1.7 (the demo's server) does it:

* one collector joins requests when ``dynamic_batching`` is on, ``batch_size`` > 1 **and** ``max_batch_delay_us`` > 0 (any of
  them missing switches batching off, there as here). It takes the first waiting request, then more until the batch is full
  or the delay since the first one is over, and hands the batch on *without* waiting for a free worker;
* ``concurrency`` workers execute, one batch (or single request) each at a time.

Knows nothing of runtimes: a ``Session`` and a function that joins feeds are given.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from metainfer_probe.backends.base import Feeds, ProbeError, Session
from metainfer_probe.contract import ServingConfig

JoinFeeds = Callable[[Sequence[Feeds]], Feeds]

GIVE_UP_AFTER_ERRORS = 3
"""A client stops after this many refusals in a row: a broken candidate would otherwise spin through thousands."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One call of the session. ``new_shape``: the first one with these input shapes since the server started."""

    requests: int
    service_us: float
    new_shape: bool


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """What the clients of one window saw; ``latencies_us`` of answered requests only, in no particular order."""

    latencies_us: npt.NDArray[np.float64]
    seconds: float
    cpu_seconds: float
    """Processor time of the whole process meanwhile: stays meaningful on a busy machine."""
    executions: tuple[Execution, ...]
    errors: int
    first_error: ProbeError | None

    @property
    def throughput_per_second(self) -> float:
        """Answered requests per second."""
        return self.latencies_us.size / self.seconds if self.seconds > 0 else 0.0

    @property
    def mean_batch(self) -> float:
        """Requests per execution; 0 when nothing was executed."""
        return sum(done.requests for done in self.executions) / len(self.executions) if self.executions else 0.0


def joins_requests(config: ServingConfig) -> bool:
    """Whether a server with these settings joins requests at all (the rule at the top of this module)."""
    return config.dynamic_batching and config.batch_size > 1 and config.max_batch_delay_us > 0


@dataclass(frozen=True, slots=True)
class _Request:
    feeds: Feeds
    replies: queue.SimpleQueue[ProbeError | None]


class InProcessServer:
    """Collector and workers around one session; a context manager. ``ask`` may be called from any thread."""

    def __init__(self, session: Session, config: ServingConfig, join: JoinFeeds) -> None:
        self._session, self._config, self._join = session, config, join
        self._arrivals: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._batches: queue.SimpleQueue[list[_Request] | None] = queue.SimpleQueue()
        self._executions: list[Execution] = []
        self._seen_shapes: set[tuple[tuple[str, tuple[int, ...]], ...]] = set()
        self._workers = [threading.Thread(target=self._work, daemon=True) for _ in range(config.concurrency)]
        self._collector = threading.Thread(target=self._collect, daemon=True) if joins_requests(config) else None

    def __enter__(self) -> Self:
        for thread in (*self._workers, *([self._collector] if self._collector else [])):
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._collector:
            self._arrivals.put(None)
            self._collector.join()
        for _ in self._workers:
            self._batches.put(None)
        for worker in self._workers:
            worker.join()

    def ask(self, feeds: Feeds, replies: queue.SimpleQueue[ProbeError | None]) -> ProbeError | None:
        """Send one request and wait for its answer: None, or the error. ``replies`` is the caller's own mailbox."""
        request = _Request(feeds, replies)
        if self._collector:
            self._arrivals.put(request)
        else:
            self._batches.put([request])
        return replies.get()

    def executions_since(self, start: int) -> tuple[Execution, ...]:
        """Executions after the first ``start`` ones."""
        return tuple(self._executions[start:])

    def execution_count(self) -> int:
        """Executions so far."""
        return len(self._executions)

    def _collect(self) -> None:
        while (first := self._arrivals.get()) is not None:
            batch = [first]
            deadline = time.perf_counter() + self._config.max_batch_delay_us / 1e6
            closing = False
            while len(batch) < self._config.batch_size:
                try:
                    request = self._arrivals.get(timeout=max(0.0, deadline - time.perf_counter()))
                except queue.Empty:
                    break
                if request is None:
                    closing = True
                    break
                batch.append(request)
            self._batches.put(batch)
            if closing:
                return

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None:
            error = self._execute(batch)
            for request in batch:
                request.replies.put(error)

    def _execute(self, batch: list[_Request]) -> ProbeError | None:
        try:
            start = time.perf_counter_ns()
            feeds = batch[0].feeds if len(batch) == 1 else self._join([request.feeds for request in batch])
            shapes = tuple((name, np.shape(array)) for name, array in feeds.items())
            self._session.run(feeds)
            service_us = (time.perf_counter_ns() - start) / 1e3
        except ProbeError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a client that never gets its answer would hang the whole window
            return ProbeError("RequestFailed", f"{type(error).__name__}: {error}")
        new_shape = shapes not in self._seen_shapes
        self._seen_shapes.add(shapes)
        self._executions.append(Execution(len(batch), service_us, new_shape))
        return None


@dataclass(slots=True)
class _Client:
    """One caller with one request in flight."""

    server: InProcessServer
    samples: Sequence[Feeds]
    tickets: Iterator[int]
    latencies_ns: list[int]
    errors: int = 0
    first_error: ProbeError | None = None

    def ask_until(self, stop: float, limit: int | None) -> None:
        replies: queue.SimpleQueue[ProbeError | None] = queue.SimpleQueue()
        refused_in_a_row = 0
        for ticket in self.tickets:
            if limit is not None and ticket >= limit:
                return
            start = time.perf_counter_ns()
            error = self.server.ask(self.samples[ticket % len(self.samples)], replies)
            if error is None:
                self.latencies_ns.append(time.perf_counter_ns() - start)
                refused_in_a_row = 0
            else:
                self.errors += 1
                self.first_error = self.first_error or error
                refused_in_a_row += 1
            if time.perf_counter() >= stop or refused_in_a_row >= GIVE_UP_AFTER_ERRORS:
                return


def run_window(server: InProcessServer, samples: Sequence[Feeds], *, clients: int, seconds: float, limit: int | None = None) -> LoadWindow:
    """Closed loop: each client sends its next request when the last one is answered.

    Samples are taken in order, round and round, over all clients together. Ends after ``seconds`` (requests in flight are
    still answered and counted, so every client gets at least one) or after ``limit`` requests, whichever comes first.
    """
    first_execution, tickets = server.execution_count(), itertools.count()  # next() on count is atomic in CPython
    callers = [_Client(server, samples, tickets, []) for _ in range(clients)]
    start, cpu_start = time.perf_counter(), time.process_time()
    threads = [threading.Thread(target=caller.ask_until, args=(start + seconds, limit), daemon=True) for caller in callers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return LoadWindow(
        latencies_us=np.concatenate([np.array(caller.latencies_ns, np.float64) for caller in callers]) / 1e3,
        seconds=time.perf_counter() - start,
        cpu_seconds=time.process_time() - cpu_start,
        executions=server.executions_since(first_execution),
        errors=sum(caller.errors for caller in callers),
        first_error=next((caller.first_error for caller in callers if caller.first_error), None),
    )
