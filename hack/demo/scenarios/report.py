"""What a scenario found: times, and expectations that did not hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scenarios.watched import say


@dataclass(slots=True)
class Report:
    """One scenario's."""

    name: str
    on_disturb: Callable[[], None] = lambda: None
    times_seconds: dict[str, float] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    _since: float = field(default_factory=time.monotonic, repr=False)

    def disturb(self, what: str) -> None:
        """Times count from here."""
        self._since = time.monotonic()
        self.on_disturb()
        say(f"--- {self.name}: {what}")

    def mark(self, what: str) -> None:
        """It happened now."""
        self.times_seconds[what] = round(time.monotonic() - self._since, 1)
        say(f"--- {self.name}: {what} after {self.times_seconds[what]:.1f} s")

    def note(self, what: str, value: Any) -> None:
        """A figure besides the times."""
        self.figures[what] = value
        say(f"--- {self.name}: {what} = {value}")

    def expect(self, holds: bool, what: str) -> None:  # noqa: FBT001 - a condition
        """A problem where it does not hold; the scenario goes on."""
        if not holds:
            self.problems.append(what)
            say(f"--- {self.name}: PROBLEM: {what}")

    def line(self) -> str:
        """One row of the table at the end."""
        times = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in self.times_seconds.items())
        return f"{self.name:<22} {'FAILED' if self.problems else 'ok':<7} {times}"
