"""Documents with something at one place that nobody meant: for reports, specs and whatever else comes from outside as JSON."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

Step = str | int


def nested(levels: int) -> list[Any]:
    """A list in a list in a list."""
    inner: list[Any] = []
    for _ in range(levels):
        inner = [inner]
    return inner


ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**62, 2**63, -(2**63), 10**30, 0.0, -0.5, 1e-300, 1e12, 1e300, math.nan, math.inf, -math.inf, "", "0", "-1",
    "NaN", "x" * 5000, "\x00", "\x1b[2J", "\u202egnp.exe", "a\nb: c\n", "$(HOME)", "$$(HOME)", "../../etc/passwd", "{{ .Values }}", "ﬀ①Ⅷ", "İ", "\ud800",
    "fp32", "CPUExecutionProvider", [], {}, [None], [[]], {"": None}, {"$ref": "#"}, nested(50), nested(100),
)  # fmt: skip
"""Types, bounds and texts that a reader may not have thought of."""


def paths_of(document: Any, here: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """Every place of a document, the whole one excepted."""
    items: Any = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    for step, below in items:
        yield (*here, step)
        yield from paths_of(below, (*here, step))


def with_value(document: Any, path: tuple[Step, ...], value: Any) -> Any:
    """A copy with another value at one place; places that an earlier change took away are left alone."""
    changed = copy.deepcopy(document)
    parent = changed
    try:
        for step in path[:-1]:
            parent = parent[step]
        parent[path[-1]] = value
    except (KeyError, IndexError, TypeError):
        return document
    return changed


@st.composite
def spoilt(draw: st.DrawFn, document: Any, *, changes: int = 3) -> Any:
    """The document with up to ``changes`` odd values in it, an entry doubled or left out."""
    places = list(paths_of(document))
    for _ in range(draw(st.integers(1, changes))):
        path = draw(st.sampled_from(places))
        value = draw(st.sampled_from(ODD_VALUES) | st.integers(-(2**65), 2**65) | st.floats() | st.text(max_size=20))
        document = with_value(document, path, value)
    return document
