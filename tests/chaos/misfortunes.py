"""Arms a plan's strokes and faults in the proxy while a run goes on. Decides nothing: what happens, and at which moment, is the plan's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.apiserver.fault_proxy import FaultProxy
from tests.apiserver.faults import Entry, Fault
from tests.chaos.operator_process import OperatorProcess
from tests.chaos.plan import Plan, Stroke

ARMED_FAULTS = 10
STROKE_SECONDS = 4.0
"""A stroke whose moment does not come in that time is replaced by a kill at no moment in particular."""


@dataclass
class Misfortunes:
    """Rare strokes are armed from the beginning, the others one after the other, faults a few at a time."""

    proxy: FaultProxy
    operator: OperatorProcess
    plan: Plan
    _strokes: list[Stroke] = field(default_factory=list)
    _faults: list[Fault] = field(default_factory=list)
    _stroke: Fault | None = None
    _single: list[Fault] = field(default_factory=list)
    _seen: int = 0
    """Requests before the present process."""

    def __post_init__(self) -> None:
        self._strokes, self._faults = list(self.plan.strokes), list(self.plan.faults)
        self.proxy.faults += [stroke.arm(self._spring(stroke)) for stroke in self.plan.rare]
        self.operator.on_start = self.arm_next_stroke

    async def run(self) -> None:
        """Until all strokes fell; what is armed then is taken away."""
        left, since = len(self._strokes), time.monotonic()
        while self._strokes or self._is_armed(self._stroke):
            await asyncio.sleep(0.05)
            self._arm_faults()
            if len(self._strokes) != left or len(self.proxy.journal) == self._seen:
                # A process that has not said anything yet is still starting, however long that takes here.
                left, since = len(self._strokes), time.monotonic()
            elif time.monotonic() - since > STROKE_SECONDS:
                since = time.monotonic()
                self.proxy.faults = [fault for fault in self.proxy.faults if fault is not self._stroke]
                self.operator.kill()
        self.proxy.faults.clear()

    def arm_next_stroke(self) -> None:
        """The operator runs (again): the next stroke may fall."""
        self._seen = len(self.proxy.journal)
        if self._is_armed(self._stroke) or not self._strokes:
            return
        stroke = self._strokes.pop(0)
        self._stroke = stroke.arm(self._spring(stroke))
        self.proxy.faults.insert(0, self._stroke)

    def _spring(self, stroke: Stroke) -> Callable[[Entry], None]:
        def spring(_: Entry) -> None:
            if stroke.sort == "killed":
                if not self.operator.kill():
                    self._strokes.append(stroke)  # a request of a process that is dead already: it falls on a later one
                return
            (self.operator.freeze if stroke.sort == "frozen" else self.proxy.sever)(stroke.seconds)
            # The operator is not started anew, so that nothing else would arm the next one.
            asyncio.get_running_loop().call_later(stroke.seconds, self.arm_next_stroke)

        return spring

    def _is_armed(self, fault: Fault | None) -> bool:
        return any(item is fault for item in self.proxy.faults)

    def _arm_faults(self) -> None:
        self._single = [fault for fault in self._single if self._is_armed(fault)]
        while self._faults and len(self._single) < ARMED_FAULTS:
            fault = self._faults.pop(0)
            self._single.append(fault)
            self.proxy.faults.append(fault)
