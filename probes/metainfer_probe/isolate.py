"""Runs one function in a child process, so that a runtime that dies does not take the Job's report with it.

Loading an untrusted model may end in a signal, hang, or eat all memory. The child gets its arguments and returns its
result over pipes (its standard output belongs to the runtime's chatter); the parent watches the clock and the child's
resident memory, because an out-of-memory kill of the whole container would lose the report. What the child sent with
``send_partial`` before it died is handed to ``on_partial``. This file must not import a runtime.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.contract import Failure

POLL_SECONDS = 0.02
"""How often the child's memory is read: at the 2 GB/s in which a process can touch new memory, 40 MB late at most."""
MESSAGE_LIMIT_BYTES = 1 << 30
_PR_SET_PDEATHSIG = 1
_RESULT_ENVIRONMENT = "METAINFER_RESULT_FD"

_result_pipe: BinaryIO | None = None


@dataclass(frozen=True, slots=True)
class _Message:
    """What travels from child to parent: kind is ``partial``, ``result`` or ``error``; an error comes as a Failure."""

    kind: str
    value: object


def run_in_child(
    function_ref: Callable[..., object] | str,
    args: tuple[object, ...],
    *,
    timeout_seconds: float,
    memory_limit_bytes: int,
    on_partial: Callable[[object], None] | None = None,
) -> object:
    """Call ``function_ref`` (an importable function, or ``"module:name"``) with ``args`` in a fresh process.

    ``memory_limit_bytes`` limits the child's resident memory; 0 = no limit of ours.
    Raises ProbeError: whatever the function raised, ``RuntimeCrashed`` naming the signal, ``TimedOut``,
    ``OutOfMemory``, or ``InternalError`` for other exceptions (type and message; the traceback goes to stderr).
    """
    reference = function_ref if isinstance(function_ref, str) else f"{function_ref.__module__}:{function_ref.__qualname__}"
    read_end, write_end = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", "from metainfer_probe.isolate import child_main; child_main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=(write_end,),
        env=os.environ | {_RESULT_ENVIRONMENT: str(write_end), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    os.close(write_end)
    try:
        _send_call(child, reference, args)
        watch = _Watch(child, time.monotonic() + timeout_seconds, timeout_seconds, memory_limit_bytes)
        with os.fdopen(read_end, "rb", buffering=0) as results:
            return _collect(watch, results, on_partial)
    finally:
        with suppress(ProcessLookupError):
            child.kill()
        child.wait()


def send_partial(value: object) -> None:
    """In a child: hand a picklable intermediate result to the parent's ``on_partial``. Elsewhere: does nothing."""
    if _result_pipe is not None:
        _write(_result_pipe, _Message("partial", value))


def child_main() -> None:
    """Entry of the child: read the call from stdin, run it, write the outcome to the pipe named in the environment."""
    global _result_pipe  # noqa: PLW0603 - one pipe per process, set once, before anything of ours runs
    _die_with_parent()
    _result_pipe = os.fdopen(int(os.environ.pop(_RESULT_ENVIRONMENT)), "wb", buffering=0)
    reference, args = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by our own parent process
    module_name, _, function_name = reference.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
        message = _Message("result", function(*args))
    except ProbeError as error:
        message = _Message("error", error.failure())
    except MemoryError:
        message = _Message("error", Failure(reason="OutOfMemory", message="the runtime could not get the memory it asked for"))
    except Exception as error:  # noqa: BLE001 - the boundary of the process: everything becomes a reason
        sys.excepthook(type(error), error, error.__traceback__)
        message = _Message("error", Failure(reason="InternalError", message=f"{type(error).__name__}: {error}"[:512]))
    _write(_result_pipe, message)
    sys.stderr.flush()
    os._exit(0)  # runtimes that crash in their own destructors have already answered


@dataclass(frozen=True, slots=True)
class _Watch:
    child: subprocess.Popen[bytes]
    deadline: float
    timeout_seconds: float
    memory_limit_bytes: int

    def check(self) -> None:
        """Raise when the child is past its time or memory."""
        if time.monotonic() > self.deadline:
            raise ProbeError("TimedOut", f"not finished after {self.timeout_seconds:.0f} s: too large for the time there is, or it never ends", retryable=True)
        used = resident_bytes(self.child.pid)
        if 0 < self.memory_limit_bytes < used:
            raise ProbeError("OutOfMemory", f"needs more than {used / 2**30:.2f} GiB of memory, the limit here is {self.memory_limit_bytes / 2**30:.2f} GiB")


def resident_bytes(pid: int) -> int:
    """Resident memory of a process from /proc; 0 when it is gone."""
    try:
        with Path(f"/proc/{pid}/statm").open(encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _send_call(child: subprocess.Popen[bytes], reference: str, args: tuple[object, ...]) -> None:
    if child.stdin is None:
        msg = "the child was started without a pipe"
        raise RuntimeError(msg)
    with suppress(BrokenPipeError), child.stdin as stdin:
        pickle.dump((reference, args), stdin)


def _collect(watch: _Watch, results: BinaryIO, on_partial: Callable[[object], None] | None) -> object:
    buffer = bytearray()
    while True:
        ready, _, _ = select.select([results], [], [], POLL_SECONDS)
        chunk = results.read(1 << 20) if ready else None
        if chunk:
            buffer += chunk
        for message in _take_messages(buffer):
            if message.kind == "partial":
                if on_partial is not None:
                    on_partial(message.value)
                continue
            return _outcome(message)
        if chunk == b"":
            raise _death(watch.child.wait())
        watch.check()


def _outcome(message: _Message) -> object:
    if isinstance(message.value, Failure) and message.kind == "error":
        raise ProbeError(message.value.reason, message.value.message, retryable=message.value.retryable)
    return message.value


def _death(exit_code: int) -> ProbeError:
    if exit_code == -signal.SIGKILL:
        return ProbeError("OutOfMemory", "killed with SIGKILL while running: the machine or its memory limit ran out of memory")
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        return ProbeError("RuntimeCrashed", f"the runtime died with {name} (signal {-exit_code}); the model may be one it cannot read")
    return ProbeError("RuntimeCrashed", f"the runtime ended its process with exit code {exit_code}")


def _write(pipe: BinaryIO, message: _Message) -> None:
    body = pickle.dumps((message.kind, message.value))
    view = memoryview(len(body).to_bytes(8, "little") + body)
    while view:
        view = view[pipe.write(view) :]


def _take_messages(buffer: bytearray) -> list[_Message]:
    messages = []
    while len(buffer) >= 8:
        length = int.from_bytes(buffer[:8], "little")
        if length > MESSAGE_LIMIT_BYTES:
            raise ProbeError("RuntimeCrashed", "the child's answer is garbled")
        if len(buffer) < 8 + length:
            break
        kind, value = pickle.loads(bytes(buffer[8 : 8 + length]))  # noqa: S301 - written by our own child process
        messages.append(_Message(kind, value))
        del buffer[: 8 + length]
    return messages


def _die_with_parent() -> None:
    """Linux: be killed when the parent ends, so that no measurement outlives its Job; be the first victim of a memory shortage."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError), Path("/proc/self/oom_score_adj").open("w", encoding="ascii") as file:
        file.write("1000")
