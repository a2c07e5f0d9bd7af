"""Sessions whose behaviour is known, for tests of what is built on sessions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from metainfer_probe.backends.base import Feeds, KernelTime, ProbeError
from metainfer_probe.contract import Readback, TensorSpec

Answer = Callable[[Feeds], list[object]]


def echo(feeds: Feeds) -> list[object]:
    """Answers the input ``x``."""
    return [np.asarray(feeds["x"])]


class FakeSession:
    """Takes ``service_seconds`` per run and remembers what it was asked, and how many runs there were at once."""

    def __init__(self, *, service_seconds: float = 0.0, answer: Answer = echo, refuse_above: int | None = None) -> None:
        self.service_seconds, self.answer, self.refuse_above = service_seconds, answer, refuse_above
        self.batches: list[int] = []
        self.first_values: list[float] = []
        self.most_at_once = 0
        self._running = 0
        self._lock = threading.Lock()

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        return [TensorSpec(name="x", dtype="float32", shape=(-1, 4))]

    def run(self, feeds: Feeds) -> list[object]:
        x = np.asarray(feeds["x"])
        with self._lock:
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
            self.batches.append(x.shape[0])
            self.first_values += [float(row.flat[0]) for row in x]
        try:
            if self.service_seconds:
                time.sleep(self.service_seconds)
            if self.refuse_above is not None and x.shape[0] > self.refuse_above:
                raise ProbeError("RunFailed", f"node Reshape_9 takes {self.refuse_above} rows")
            return self.answer(feeds)
        finally:
            with self._lock:
                self._running -= 1

    def readback(self) -> Readback:
        return Readback(provider="CPUExecutionProvider", precision="fp32", coverage_permille=1000, assigned_nodes=1)

    def kernel_times(self) -> list[KernelTime]:
        return []

    def activation_bytes(self) -> int:
        return 0

    def close(self) -> None:
        pass


def requests(count: int, width: int = 4) -> tuple[Feeds, ...]:
    """Requests that can be told apart by their first value."""
    return tuple({"x": np.full((1, width), index, np.float32)} for index in range(count))
