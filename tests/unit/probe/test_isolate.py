"""A child process that dies, hangs or swells costs its answer, never the parent."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.isolate import run_in_child, send_partial

MIB = 1 << 20


def answer(left: int, right: int) -> dict[str, int]:
    print("chatter on standard output")
    return {"sum": left + right, "pid": os.getpid()}


def refuse() -> None:
    raise ProbeError("NodeFailed", "node x", retryable=True)


def break_down() -> None:
    raise KeyError("lost")


def die(number: int) -> None:
    send_partial("before")
    os.kill(os.getpid(), number)
    time.sleep(10)


def leave() -> None:
    os._exit(7)


def hang() -> None:
    time.sleep(60)


def swell() -> None:
    kept = []
    while True:
        kept.append(bytearray(os.urandom(1) * (16 * MIB)))
        time.sleep(0.005)


def ask_too_much() -> None:
    raise MemoryError


def large() -> bytes:
    return bytes(5 * MIB)


def call(function: object, *args: object, timeout_seconds: float = 60.0, memory_limit_bytes: int = 0, partials: list[object] | None = None) -> object:
    """Run a function of this module in a child, which finds it through the same sys.path."""
    folder = str(Path(__file__).parent)
    if folder not in sys.path:
        sys.path.append(folder)
    name = f"test_isolate:{function.__name__}"  # type: ignore[attr-defined]
    collect = (lambda value: None) if partials is None else partials.append
    return run_in_child(name, args, timeout_seconds=timeout_seconds, memory_limit_bytes=memory_limit_bytes, on_partial=collect)


def reason_of(function: object, *args: object, **named: object) -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        call(function, *args, **named)  # type: ignore[arg-type]
    return caught.value


def test_a_result_comes_back_from_another_process() -> None:
    """What the function prints does not disturb it."""
    result = call(answer, 2, 3)
    assert isinstance(result, dict)
    assert result["sum"] == 5
    assert result["pid"] != os.getpid()


def test_a_large_result_comes_back_whole() -> None:
    """More than a pipe holds."""
    assert call(large) == bytes(5 * MIB)


def test_a_refusal_keeps_its_reason() -> None:
    """Reason, message and whether a retry helps cross the border."""
    error = reason_of(refuse)
    assert (error.reason, error.message, error.retryable) == ("NodeFailed", "node x", True)


def test_a_defect_of_ours_is_named() -> None:
    """Type and message, so that it can be reported."""
    error = reason_of(break_down)
    assert error.reason == "InternalError"
    assert "KeyError" in error.message


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGILL])
def test_a_death_by_signal_names_the_signal(number: signal.Signals) -> None:
    """The report survives a runtime that crashes, with what was sent before."""
    partials: list[object] = []
    error = reason_of(die, int(number), partials=partials)
    assert error.reason == "RuntimeCrashed"
    assert number.name in error.message
    assert not error.retryable
    assert partials == ["before"]


def test_a_kill_is_taken_for_lack_of_memory() -> None:
    """Nobody else kills the child of a measuring Job."""
    assert reason_of(die, int(signal.SIGKILL)).reason == "OutOfMemory"


def test_a_silent_exit_is_a_crash() -> None:
    """Libraries that call exit() answer nothing either."""
    error = reason_of(leave)
    assert error.reason == "RuntimeCrashed"
    assert "7" in error.message


def test_a_child_that_hangs_is_ended() -> None:
    """The clock of the parent decides."""
    start = time.monotonic()
    error = reason_of(hang, timeout_seconds=0.5)
    assert (error.reason, error.retryable) == ("TimedOut", True)
    assert time.monotonic() - start < 30


def test_a_child_over_its_memory_is_ended_before_the_container_is() -> None:
    """The message gives the limit."""
    error = reason_of(swell, memory_limit_bytes=200 * MIB)
    assert error.reason == "OutOfMemory"
    assert "0.20 GiB" in error.message


def test_a_failed_allocation_is_lack_of_memory() -> None:
    """Not an internal error."""
    assert reason_of(ask_too_much).reason == "OutOfMemory"
