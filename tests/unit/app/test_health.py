"""/healthz, /readyz and /metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import time

import aiohttp
import pytest

from metainfer.app.health import HealthServer, LagWatch
from metainfer.app.logs import JsonFormatter


async def test_each_path_says_what_is_not_well() -> None:
    """200 and ok, or 503 and one line per trouble."""
    troubles: dict[str, str] = {}
    server = HealthServer(dict, lambda: troubles, port=0, host="127.0.0.1")
    port = await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

            async def read(path: str) -> tuple[int, str]:
                async with session.get(path) as answer:
                    return answer.status, await answer.text()

            assert await read("/readyz") == (200, "ok\n")
            troubles |= {"Node": "not listed yet", "Pod": "forbidden"}
            assert await read("/readyz") == (503, "Node: not listed yet\nPod: forbidden\n")
            assert await read("/healthz") == (200, "ok\n")
            status, figures = await read("/metrics")
            assert status == 200
            assert "# TYPE metainfer_queue_depth gauge" in figures
            assert (await read("/"))[0] == 404
    finally:
        await server.stop()


async def test_a_blocked_event_loop_shows() -> None:
    """Code that does not give way is found by how late a sleeper wakes."""
    watch = LagWatch()
    task = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    time.sleep(1.2)  # noqa: ASYNC251 - the offence itself
    while not watch.lag_seconds:  # noqa: ASYNC110 - set by a task that signals nothing
        await asyncio.sleep(0.05)
    task.cancel()
    assert watch.lag_seconds > 0.1


def _record(**extra: object) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": "metainfer.x", "levelname": "WARNING", "msg": "said %s", "args": ("this",), "created": 0.0})
    record.__dict__ |= extra
    return record


def test_a_log_line_is_one_json_object() -> None:
    """Message, key-values, and what JSON does not know as text."""
    line = JsonFormatter().format(_record(object="apps/ocr", error=ValueError("no\nnewline")))
    assert "\n" not in line
    have = json.loads(line)
    assert (have["message"], have["level"], have["logger"], have["time"]) == ("said this", "WARNING", "metainfer.x", "1970-01-01T00:00:00.000+00:00")
    assert (have["object"], have["error"]) == ("apps/ocr", "no\nnewline")
    assert set(have) == {"time", "level", "logger", "message", "object", "error"}


def test_a_trace_stays_on_the_line() -> None:
    """One record is one line whatever happened."""
    with pytest.raises(KeyError) as caught:
        {}["bug"]
    line = JsonFormatter().format(_record(exc_info=(caught.type, caught.value, caught.tb)))
    assert "\n" not in line
    assert "KeyError: 'bug'" in json.loads(line)["trace"]
