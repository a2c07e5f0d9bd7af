"""Which values an integer input may take, read from the tables it indexes.

Random integers outside a table end a run ("indices element out of data bounds") or, worse, silently answer rubbish on
runtimes that do not check. So requirements are walked backwards from every look-up to the graph's inputs: through casts
and reshapes unchanged, through arithmetic with constants inverted. Where the path cannot be inverted, the input is
limited to 0 and 1, which every table with two rows accepts. Pure; static.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from onnx import ModelProto, NodeProto

from metainfer_probe.graph import Constants, attribute_value, iter_graphs, read_constants

_STEP_LIMIT = 20_000
"""A graph with many joins has exponentially many paths; past this many steps inputs keep what was found so far."""

_PASS_FIRST = frozenset(
    "Identity Cast Reshape Unsqueeze Squeeze Flatten Transpose Slice Expand Tile Dropout Gather GatherND Pad Split "
    "ReduceMax ReduceMin Floor Ceil Round".split()
)  # fmt: skip
"""Operators whose result holds values of their first input and no others (padding with 0 is inside every table)."""
_SAME_SHAPE = frozenset(("Cast", "DequantizeLinear", "Identity"))
_PASS_ALL = frozenset(("Concat", "Max", "SequenceConstruct"))


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Inclusive bounds of an input; ``choices`` are constants the graph compares it with (sample rates, modes)."""

    low: int
    high: int
    choices: tuple[int, ...] = ()

    def intersect(self, low: int, high: int) -> ValueRange:
        """Both requirements at once."""
        return ValueRange(max(self.low, low), min(self.high, high), self.choices)


_Inverse = Callable[[float, float, float, float], tuple[float, float]]
_INVERSES: Mapping[str, _Inverse] = {
    "Add": lambda low, high, least, most: (low - least, high - most),
    "Sub": lambda low, high, least, most: (low + most, high + least),
    "SubFrom": lambda low, high, least, most: (most - high, least - low),
    "Mul": lambda low, high, least, most: (low / least, high / most),
    "Div": lambda low, high, least, most: (low * most, (high + 1) * least - 1),
}
"""Bounds (low, high) of a result turned into bounds of the variable, for constants between ``least`` and ``most``."""


@dataclass(slots=True)
class _Walk:
    """One pass over all look-ups of a model."""

    producers: Mapping[str, NodeProto]
    constants: Constants
    inputs: frozenset[str]
    found: dict[str, ValueRange] = field(default_factory=dict)
    seen: set[tuple[str, int, int]] = field(default_factory=set)

    def require(self, name: str, low: int, high: int) -> None:
        """The tensor ``name`` has to stay within ``low`` and ``high``; carries that back to the inputs."""
        stack = [(name, low, high)]
        while stack and len(self.seen) < _STEP_LIMIT:
            name, low, high = stack.pop()
            if (name, low, high) in self.seen or not name:
                continue
            self.seen.add((name, low, high))
            if name in self.inputs:
                self.found[name] = self.found.get(name, ValueRange(low, high)).intersect(low, high)
            elif name in self.producers:
                stack += self._before(self.producers[name], low, high)

    def compare(self, name: str, other: str) -> None:
        """Two tensors are compared: where one comes from an input, the constants behind the other are worth feeding.

        One constant is a mode or a sample rate; a row of them is a one-hot encoding written out.
        """
        constants = self.constants.values.get(self._behind(other), ())
        name = self._behind(name)
        if name not in self.inputs or not constants or not all(float(constant).is_integer() for constant in constants):
            return
        known = self.found.get(name, ValueRange(-(2**31), 2**31 - 1))
        if len(constants) > 1:
            self.found[name] = known.intersect(0, int(max(constants)))
        else:
            self.found[name] = ValueRange(known.low, known.high, (*known.choices, int(constants[0])))

    def rows_of(self, node: NodeProto, table: str) -> int:
        """Rows a look-up may point at; 2 where the table's size is unknown: 0 and 1 are then the best guess."""
        if node.op_type == "OneHot":
            return int(self.constants.scalar(table) or 2)
        while table not in self.constants.shapes and table in self.producers and self.producers[table].op_type in _SAME_SHAPE:
            table = self.producers[table].input[0]  # tables are often stored quantised or in half precision
        shape = self.constants.shapes.get(table)
        if not shape:
            return 2
        if node.op_type == "GatherND":
            return min(shape)
        axis = attribute_value(node, "axis")
        return shape[axis if isinstance(axis, int) else 0]

    def _behind(self, name: str) -> str:
        """The tensor whose values ``name`` carries in another shape or type."""
        while name not in self.constants.values and name in self.producers and self.producers[name].op_type in _PASS_FIRST:
            name = self.producers[name].input[0]
        return name

    def _before(self, node: NodeProto, low: int, high: int) -> list[tuple[str, int, int]]:
        """Requirements on a node's inputs that keep its output within bounds."""
        if node.op_type in _PASS_FIRST:
            return [(node.input[0], low, high)]
        if node.op_type in _PASS_ALL:
            return [(name, low, high) for name in node.input]
        if node.op_type == "Where":
            return [(name, low, high) for name in node.input[1:]]
        if node.op_type in ("Clip", "Min", "Mod"):
            return [] if self._limit_of(node) <= high else [(node.input[0], low, high)]
        inverted = self._invert(node, low, high)
        if inverted is not None:
            return [inverted]
        return [(name, 0, 1) for name in node.input if name not in self.constants.shapes]

    def _limit_of(self, node: NodeProto) -> float:
        """The largest value that a Clip, Min or Mod lets through; infinity where it is not constant."""
        if node.op_type == "Mod":
            modulus = self.constants.scalar(node.input[1])
            return modulus - 1 if modulus is not None and modulus > 0 else math.inf
        limits = [*(self.constants.scalar(name) for name in node.input[-1:]), attribute_value(node, "max")]
        return min((limit for limit in limits if isinstance(limit, (int, float))), default=math.inf)

    def _invert(self, node: NodeProto, low: int, high: int) -> tuple[str, int, int] | None:
        """Bounds on the variable side of Add, Sub, Mul and Div with one constant side; None when it has no inverse."""
        if len(node.input) != 2 or node.op_type not in _INVERSES:
            return None
        left, right = node.input
        constant, variable = self.constants.values.get(right), left
        operator = node.op_type
        if constant is None and operator != "Div":
            constant, variable = self.constants.values.get(left), right
            operator = "SubFrom" if operator == "Sub" else operator
        if not constant or not all(map(math.isfinite, constant)) or (operator in ("Mul", "Div") and min(constant) <= 0):
            return None
        least, most = _INVERSES[operator](low, high, min(constant), max(constant))
        return (variable, math.ceil(least), math.floor(most)) if math.isfinite(least) and math.isfinite(most) else None


def find_value_ranges(model: ModelProto, inputs: tuple[str, ...]) -> dict[str, ValueRange]:
    """Bounds for those inputs that index tables or are compared with constants; others are absent."""
    nodes = [node for graph in iter_graphs(model) for node in graph.node]
    constants = _all_constants(model)
    walk = _Walk({output: node for node in nodes for output in node.output}, constants, frozenset(inputs))
    for node in nodes:
        for name, table in _look_ups(node, constants):
            walk.require(name, 0, walk.rows_of(node, table) - 1)
        if node.op_type == "Equal":
            walk.compare(node.input[0], node.input[1])
            walk.compare(node.input[1], node.input[0])
    return {name: _settled(found) for name, found in walk.found.items()}


def _settled(found: ValueRange) -> ValueRange:
    """Never negative (indices may count from the end, but nobody sends that); 0 and 1 where requirements contradict."""
    low = max(found.low, 0)
    return ValueRange(low, found.high, found.choices) if low <= found.high else ValueRange(0, 1, found.choices)


_TABLES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "Gather": ((1, 0),),
    "GatherElements": ((1, 0),),
    "ScatterElements": ((1, 0),),
    "GatherND": ((1, 0),),
    "OneHot": ((0, 1),),
    "EmbedLayerNormalization": ((0, 2), (1, 4)),
}
"""Per operator that looks values up: positions of the indices and of what says how far they may reach."""


def _look_ups(node: NodeProto, constants: Constants) -> Iterator[tuple[str, str]]:
    """Index tensors of a node that are not constant, each with its table (or depth)."""
    for index, table in _TABLES.get(node.op_type, ()):
        if index < len(node.input) and table < len(node.input) and node.input[index] not in constants.shapes:
            yield node.input[index], node.input[table]


def _all_constants(model: ModelProto) -> Constants:
    values: dict[str, tuple[int | float, ...]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for graph in iter_graphs(model):
        constants = read_constants(graph)
        values |= constants.values
        shapes |= constants.shapes
    return Constants(values, shapes)
