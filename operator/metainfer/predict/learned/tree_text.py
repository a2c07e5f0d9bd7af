"""Whether a text holds trees that LightGBM can walk: its reader trusts indices, and a wrong one reads or writes beyond its memory.

A checksum says that a document was not damaged; it says nothing about who wrote it. Format: the text of ``Booster.model_to_string`` of
LightGBM 4 (``Tree::ToString`` in src/io/tree.cpp), one section of ``key=value`` lines per tree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

SIZE_LIMIT_BYTES = 64 << 20
TREE_LIMIT, LEAF_LIMIT = 10_000, 4_096
CATEGORICAL = 1
"""Bit of a decision type: the threshold is then the index of a set of categories."""
_SECTION = re.compile(r"^Tree=(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Tree:
    """One section. Every reader raises ValueError naming the key."""

    number: int
    fields: Mapping[str, str]

    def whole(self, key: str) -> tuple[int, ...]:
        """Whole numbers."""
        return tuple(int(word) for word in self._words(key))

    def real(self, key: str) -> tuple[float, ...]:
        """Finite numbers."""
        values = tuple(float(word) for word in self._words(key))
        self.require(all(map(math.isfinite, values)), key)
        return values

    def require(self, holds: bool, key: str) -> None:  # noqa: FBT001 - a sentence: require(this, of that)
        """Refuse the tree where something does not hold."""
        if not holds:
            raise ValueError(f"tree {self.number}: {key} does not fit the tree")

    def _words(self, key: str) -> list[str]:
        self.require(key in self.fields, key)
        return self.fields[key].split()


def check_trees(text: str, features: int) -> None:
    """Raises ValueError where the text is not that of regression trees over so many features."""
    if len(text) > SIZE_LIMIT_BYTES:
        raise ValueError(f"trees of {len(text)} characters, at most {SIZE_LIMIT_BYTES}")
    marks = list(_SECTION.finditer(text))
    end = text.find("\nend of trees")
    if not marks or end < marks[-1].start() or len(marks) > TREE_LIMIT:
        raise ValueError(f"{len(marks)} trees, 1 to {TREE_LIMIT} are possible")
    starts = [mark.start() for mark in marks]
    header = _Tree(-1, _fields(text[: starts[0]]))
    for key, want in (("num_class", 1), ("num_tree_per_iteration", 1), ("max_feature_idx", features - 1)):
        header.require(header.whole(key) == (want,), key)
    # The reader jumps by these sizes.
    header.require(header.whole("tree_sizes") == tuple(after - start for start, after in zip(starts, [*starts[1:], end + 1], strict=True)), "tree_sizes")
    for number, (mark, start, after) in enumerate(zip(marks, starts, [*starts[1:], end], strict=True)):
        header.require(int(mark.group(1)) == number, "Tree")
        _check_tree(_Tree(number, _fields(text[start:after])), features)


def _fields(section: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in section.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            if key in found:
                raise ValueError(f"{key} is there twice")
            found[key] = value
    return found


def _check_tree(tree: _Tree, features: int) -> None:
    (leaves,) = tree.whole("num_leaves")
    tree.require(1 <= leaves <= LEAF_LIMIT and len(tree.real("leaf_value")) == leaves, "num_leaves")
    tree.require(tree.whole("is_linear") == (0,), "is_linear")
    if leaves == 1:
        return
    nodes = leaves - 1
    tree.require(_within(tree.whole("split_feature"), nodes, 0, features), "split_feature")
    for key in ("left_child", "right_child"):
        children = tree.whole(key)
        tree.require(len(children) == nodes, key)
        # A child node has a larger number than its parent (so no walk goes in circles); a leaf is written as -1 - number.
        tree.require(all(parent < child < nodes or 0 <= -1 - child < leaves for parent, child in enumerate(children)), key)
    _check_decisions(tree, nodes)


def _check_decisions(tree: _Tree, nodes: int) -> None:
    thresholds, kinds, (sets,) = tree.real("threshold"), tree.whole("decision_type"), tree.whole("num_cat")
    tree.require(len(thresholds) == nodes, "threshold")
    tree.require(_within(kinds, nodes, 0, 16), "decision_type")
    tree.require(0 <= sets <= nodes, "num_cat")
    if sets == 0:
        tree.require(not any(kind & CATEGORICAL for kind in kinds), "decision_type")
        return
    bounds, words = tree.whole("cat_boundaries"), tree.whole("cat_threshold")
    tree.require(len(bounds) == sets + 1 and bounds[0] == 0 and list(bounds) == sorted(bounds) and bounds[-1] == len(words), "cat_boundaries")
    tree.require(_within(words, len(words), 0, 1 << 32), "cat_threshold")
    chosen = [threshold for threshold, kind in zip(thresholds, kinds, strict=True) if kind & CATEGORICAL]
    tree.require(all(threshold.is_integer() and 0 <= threshold < sets for threshold in chosen), "threshold")


def _within(values: tuple[int, ...], count: int, low: int, high: int) -> bool:
    return len(values) == count and all(low <= value < high for value in values)
