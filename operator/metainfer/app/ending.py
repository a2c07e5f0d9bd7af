"""The end of the process, whatever hangs: a thread that waits a while and then exits. Knows nothing of what it ends.

Needed because kopf 1.45.2 does not always end: a watch that is connecting when another one dies is left waiting for a new login
that nobody gives any more (seen in about one of five such deaths on a busy machine). Such a process looks healthy and sees nothing.
"""

from __future__ import annotations

import logging
import os
import threading

EXIT_SECONDS = 15.0
"""The 2 s that kopf gives its handlers, our own grace (3 s), the 5 s that kopf gives left-over tasks, and a margin; within a pod's 30 s."""
_NAME = "exit deadline"

_log = logging.getLogger(__name__)


def start_exit_deadline(_: object = None) -> None:
    """End the process in a while, with status 1, if it has not ended by then. Safe to call again."""
    if any(thread.name == _NAME for thread in threading.enumerate()):
        return
    deadline = threading.Timer(EXIT_SECONDS, _exit_now)
    deadline.name, deadline.daemon = _NAME, True
    deadline.start()


def _exit_now() -> None:
    _log.error("did not end in time, exiting at once", extra={"seconds": EXIT_SECONDS})
    os._exit(1)
