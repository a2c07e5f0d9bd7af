"""``metainfer-probe load``: requests to a running server for a bounded time, and what they saw of it.

Two ways, because they answer two questions. *Closed loop* (``clients``): each client sends its next request when the last one is
answered, so a slower server gets fewer. *Open loop* (``rate``): requests begin at random moments of a fixed average rate
(Poisson; or at equal distances), whatever became of the earlier ones, as those of many independent callers do; their latency
counts from the moment they were due, so that a server that stalls is not asked less just then.

Prints one JSON line per report interval and one for all of it at the end.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.http_target import AnswerError, Connection, Target

MAX_SECONDS = 3600.0
MAX_CLIENTS = 1024
MAX_RATE = 5000.0
"""Every latency of a run is kept: 144 MB at the most."""
DATATYPES = {
    "bool": "BOOL", "uint8": "UINT8", "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64",
    "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip
"""Of the Open Inference Protocol."""

Say = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Offer:
    """How much is asked, and for how long. Exactly one of ``clients`` and ``rate``."""

    seconds: float
    clients: int = 0
    rate: float = 0.0
    """Requests per second."""
    even: bool = False
    """Open loop at equal distances instead of random ones: every window has the same number of requests."""
    reconnect: bool = False
    """A connection of its own for each request. A Service chooses a pod per connection: on kept ones, a pod that comes later is asked nothing."""
    timeout_seconds: float = 10.0
    report_seconds: float = 5.0
    max_in_flight: int = 256
    """Open loop only: requests that come due beyond these are counted as ``held_back`` and not sent."""

    def check(self) -> None:
        """Raises ProbeError ``RequestInvalid``: everything here has a bound."""
        if (self.clients > 0) == (self.rate > 0):
            raise ProbeError("RequestInvalid", "give either the clients of a closed loop or the rate of an open one")
        for name, value, most in (("seconds", self.seconds, MAX_SECONDS), ("clients", self.clients, MAX_CLIENTS), ("rate", self.rate, MAX_RATE)):
            if not 0 <= value <= most:
                raise ProbeError("RequestInvalid", f"{name} is {value:g}, not from 0 to {most:g}")
        if not (self.seconds and self.timeout_seconds > 0 and self.report_seconds > 0 and 0 < self.max_in_flight <= MAX_CLIENTS):
            raise ProbeError("RequestInvalid", "times must be above 0, and at most 1024 requests in flight")


@dataclass(slots=True)
class Tally:
    """What the requests of some time came to."""

    began: float
    latencies_us: array[float] = field(default_factory=lambda: array("d"))
    errors: int = 0
    held_back: int = 0
    first_error: str = ""

    def describe(self, until: float) -> dict[str, Any]:
        """Figures of one line; latencies of answered requests only, in microseconds."""
        seconds = until - self.began
        line: dict[str, Any] = {"seconds": round(seconds, 3), "requests": len(self.latencies_us), "errors": self.errors}
        line["throughput_per_second"] = round(len(self.latencies_us) / seconds, 2) if seconds > 0 else 0.0
        if self.latencies_us:
            p50, p90, p99 = np.percentile(self.latencies_us, (50, 90, 99))
            line |= {"p50_us": round(float(p50)), "p90_us": round(float(p90)), "p99_us": round(float(p99)), "mean_us": round(float(np.mean(self.latencies_us)))}
        if self.held_back:
            line["held_back"] = self.held_back
        return line | ({"first_error": self.first_error} if self.errors else {})


@dataclass(slots=True)
class Load:
    """One run against one target. ``bodies`` are sent in order, round and round."""

    target: Target
    bodies: Sequence[bytes]
    offer: Offer
    say: Say
    _sent: int = 0
    _all: Tally = field(default_factory=lambda: Tally(time.perf_counter()))
    _lately: Tally = field(default_factory=lambda: Tally(time.perf_counter()))

    async def run(self) -> Tally:
        """Until the time is over or the task is cancelled; requests in flight are still answered."""
        self._all, self._lately = Tally(time.perf_counter()), Tally(time.perf_counter())
        stop = self._all.began + self.offer.seconds
        reports = asyncio.create_task(self._report())
        try:
            await (self._run_closed(stop) if self.offer.clients else self._run_open(stop))
        except asyncio.CancelledError:
            pass  # SIGTERM: what was seen so far is still said
        finally:
            reports.cancel()
        self.say({"kind": "all", **self._all.describe(time.perf_counter())})
        return self._all

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self.offer.report_seconds)
            now = time.perf_counter()
            self.say({"kind": "interval", **self._lately.describe(now)})
            self._lately = Tally(now)

    async def _run_closed(self, stop: float) -> None:
        async def ask() -> None:
            connection = Connection(self.target)
            try:
                while (start := time.perf_counter()) < stop:
                    if not await self._send(connection, start):
                        await asyncio.sleep(0.1)  # a server that refuses everything is not asked a thousand times a second
            finally:
                connection.close()

        async with asyncio.TaskGroup() as clients:
            for _ in range(self.offer.clients):
                clients.create_task(ask())

    async def _run_open(self, stop: float) -> None:
        chance, idle, in_flight = random.Random(1), [Connection(self.target)], 0  # noqa: S311 - moments of requests, nothing secret

        async def ask(due: float) -> None:
            nonlocal in_flight
            connection = idle.pop() if idle else Connection(self.target)
            await self._send(connection, due)
            idle.append(connection)
            in_flight -= 1

        due = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as requests:
                while (due := due + (1.0 / self.offer.rate if self.offer.even else chance.expovariate(self.offer.rate))) < stop:
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                    if in_flight >= self.offer.max_in_flight:
                        self._count(lambda tally: setattr(tally, "held_back", tally.held_back + 1))
                        continue
                    in_flight += 1
                    requests.create_task(ask(due))
        finally:
            for connection in idle:
                connection.close()

    async def _send(self, connection: Connection, since: float) -> bool:
        body = self.bodies[self._sent % len(self.bodies)]
        self._sent += 1
        try:
            await connection.post(body, self.offer.timeout_seconds)
        except AnswerError as error:
            words = str(error)
            self._count(lambda tally: _fail(tally, words))
            return False
        finally:
            if self.offer.reconnect:
                connection.close()
        latency_us = (time.perf_counter() - since) * 1e6
        self._count(lambda tally: tally.latencies_us.append(latency_us))
        return True

    def _count(self, note: Callable[[Tally], None]) -> None:
        for tally in (self._all, self._lately):
            note(tally)


def _fail(tally: Tally, words: str) -> None:
    tally.errors += 1
    tally.first_error = tally.first_error or words


def read_bodies(path: Path, limit: int = 32) -> list[bytes]:
    """Requests from a calibration file (``INPUT/INDEX``, as Open Inference Protocol bodies) or one ready JSON body. Raises ProbeError."""
    try:
        if path.suffix == ".json":
            return [json.dumps(json.loads(path.read_bytes())).encode()]
        samples: dict[str, list[dict[str, Any]]] = {}
        with np.load(path, allow_pickle=False) as arrays:
            for name in arrays.files:
                input_name, _, index = name.rpartition("/")
                samples.setdefault(index, []).append(_input(input_name, arrays[name]))
    except (OSError, ValueError, KeyError) as error:
        raise ProbeError("InputsInvalid", f"{path}: {type(error).__name__}: {error}"[:300]) from None
    bodies = [json.dumps({"inputs": inputs}).encode() for _, inputs in sorted(samples.items())[:limit]]
    if not bodies:
        raise ProbeError("InputsInvalid", f"{path} holds no INPUT/INDEX array")
    return bodies


def _input(name: str, value: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"name": name, "shape": list(value.shape), "datatype": DATATYPES[str(value.dtype)], "data": value.ravel().tolist()}


def send_load(url: str, inputs: Path, offer: Offer) -> Tally:
    """Send until the time is over or SIGTERM comes. Raises ProbeError before anything is sent."""
    offer.check()
    target, bodies = Target.read(url), read_bodies(inputs)

    async def run() -> Tally:
        load = asyncio.create_task(Load(target, bodies, offer, _say).run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, load.cancel)
        return await load

    return asyncio.run(run())


def _say(line: dict[str, Any]) -> None:
    print(json.dumps({"at": round(time.time(), 3), **line}), flush=True)
