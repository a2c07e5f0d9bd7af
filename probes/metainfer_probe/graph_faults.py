"""Faults of a graph that can be seen without running it, so that the user reads which tensor or node is at fault.

Runtimes answer most of these with one long line in their own words, some with a crash or with every byte of memory; two
runtimes never answer alike. Pure and static. Called in the child process that reads the file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, defs

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.dtypes import BITS, tensor_bytes
from metainfer_probe.graph import iter_nodes, iter_tensors

_STORED_IN: Mapping[int, str] = {
    TensorProto.FLOAT: "float_data", TensorProto.COMPLEX64: "float_data", TensorProto.DOUBLE: "double_data", TensorProto.COMPLEX128: "double_data",
    TensorProto.INT64: "int64_data", TensorProto.UINT32: "uint64_data", TensorProto.UINT64: "uint64_data", TensorProto.STRING: "string_data",
}  # fmt: skip
"""Where onnx.proto puts the elements of a type that are not in ``raw_data``; all others are in ``int32_data``."""
_COMPLEX = (TensorProto.COMPLEX64, TensorProto.COMPLEX128)
_SHOWN = 3
STANDARD = ("", "ai.onnx")
"""Both spellings of ONNX's own domain."""
_IR_WITH_OPSETS = 3
_NEWEST_OPSET = 1000
"""Far beyond what is; a file may name any number."""


def refuse_faulty_graph(model: ModelProto) -> None:
    """Raise ProbeError ``NameNotUtf8``, ``WeightSizeDiffers``, ``OpsetMissing``, ``NodeIncomplete``, ``NameTwice``, ``TensorUndefined`` or ``GraphCyclic``."""
    for name in _names_that_are_text(model):
        if isinstance(name, bytes):
            raise ProbeError("NameNotUtf8", f"a name of the model is no UTF-8 text (bytes {name[:32].hex(' ')}); export the model again")
    for tensor in iter_tensors(model):
        _check_size(tensor)
    if not model.opset_import and model.ir_version >= _IR_WITH_OPSETS:
        raise ProbeError("OpsetMissing", "the model names no operator set, so nobody knows what its operators mean; export it again")
    opset = max((entry.version for entry in model.opset_import if entry.domain in STANDARD), default=0)
    _check_graph(model.graph, (), min(opset, _NEWEST_OPSET))
    for function in model.functions:
        _check_function(function)


def _names_that_are_text(model: ModelProto) -> Iterator[object]:
    """Names that a client, a report or a runtime's message spells out. Protobuf hands out bytes where a name is no text; inside the graph that is fine."""
    for entry in model.opset_import:
        yield entry.domain
    for value in (*model.graph.input, *model.graph.output):
        yield value.name
        yield from (dimension.dim_param for dimension in value.type.tensor_type.shape.dim)
    for node in iter_nodes(model):
        yield from (node.op_type, node.domain)


def _check_size(tensor: TensorProto) -> None:
    """A weight has to hold as many elements as it claims: a runtime believes the claim and allocates."""
    if tensor.data_location == TensorProto.EXTERNAL or not (tensor.data_type in BITS or tensor.data_type == TensorProto.STRING):
        return  # ``external_data`` compares the former with the file; of a type that is newer than this code nothing is known
    elements = math.prod(tensor.dims)
    if min(tensor.dims, default=0) < 0:
        raise ProbeError("WeightSizeDiffers", f"weight {_name(tensor.name)} claims the shape {_shape(tensor)}: a size cannot be negative")
    size = tensor.ByteSize()  # unlike ``len(raw_data)`` it copies nothing
    if tensor_bytes(tensor.data_type, elements) <= size and (tensor.HasField("raw_data") or elements <= size):
        return
    held = _elements_held(tensor)
    if held < elements:
        raise ProbeError(
            "WeightSizeDiffers",
            f"weight {_name(tensor.name)} claims the shape {_shape(tensor)}, which is {elements} elements, and holds {held}; export the model again",
        )


def _elements_held(tensor: TensorProto) -> int:
    bits = BITS.get(tensor.data_type, 0)
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data) * 8 // bits if bits else 0  # strings are never raw
    stored = len(getattr(tensor, _STORED_IN.get(tensor.data_type, "int32_data")))
    if tensor.data_type in _COMPLEX:
        return stored // 2
    return stored * 8 // bits if 0 < bits < 8 else stored


def _check_arity(node: NodeProto, opset: int) -> None:
    """A standard operator needs its inputs and outputs; code that reads a graph relies on them."""
    if not node.op_type:
        raise ProbeError("NodeIncomplete", f"node {_name(node.name)} names no operator; export the model again")
    if node.domain not in STANDARD:
        return
    inputs, outputs = _least_arity(node.op_type, opset)
    if len(node.input) < inputs or len(node.output) < outputs:
        have, need = f"{len(node.input)} inputs and {len(node.output)} outputs", f"{inputs} and {outputs}"
        raise ProbeError("NodeIncomplete", f"{_node(node)} has {have}, {node.op_type[:64]} needs at least {need}; export the model again")


@cache
def _least_arity(op_type: str, opset: int) -> tuple[int, int]:
    """Inputs and outputs that ONNX demands of an operator; none of one that it does not know."""
    try:
        schema = defs.get_schema(op_type, opset)
    except defs.SchemaError:
        return 0, 0
    return schema.min_input, schema.min_output


@dataclass(slots=True)
class _Scope:
    """Names that a graph sees, and by which of its nodes those that it computes are written."""

    outer: tuple[Collection[str], ...]
    given: frozenset[str]
    opset: int
    """0 where it is not known, as in a local function, which may import another one than the graph."""
    producers: dict[str, int] = field(default_factory=dict)

    @property
    def layers(self) -> tuple[Collection[str], ...]:
        """Everything that a node of this graph, or of one inside it, may read; copied nowhere, because subgraphs may be many."""
        return (self.producers, self.given, *self.outer)

    def knows(self, name: str) -> bool:
        return any(name in layer for layer in self.layers)


def _check_graph(graph: GraphProto, outer: tuple[Collection[str], ...], opset: int) -> None:
    """Weights may be stored twice under one name: runtimes take the last one and go on."""
    stored = {*(tensor.name for tensor in graph.initializer), *(sparse.values.name for sparse in graph.sparse_initializer)}
    given = [value.name for value in graph.input]
    twice = _first_repeated(given)
    if twice is not None:
        raise ProbeError("NameTwice", f"two inputs of the graph are called {_name(twice)}; names must be unique, export the model again")
    scope = _Scope(outer, frozenset((*given, *stored)), opset)
    _check_nodes(graph.node, scope, inputs=set(given) - stored)
    for value in graph.output:
        if not scope.knows(value.name):
            raise ProbeError("TensorUndefined", f"output {_name(value.name)} of the graph is computed by no node; export the model again")


def _check_function(function: FunctionProto) -> None:
    _check_nodes(function.node, _Scope((), frozenset(function.input), opset=0), inputs=set(function.input))


def _check_nodes(nodes: Iterable[NodeProto], scope: _Scope, *, inputs: Collection[str]) -> None:
    """Names first, over all nodes (``scope`` learns them); then what each reads, with its subgraphs; last whether an order exists."""
    listed = list(nodes)
    for position, node in enumerate(listed):
        _check_arity(node, scope.opset)
        for name in filter(None, node.output):
            if name in scope.producers or name in inputs:
                before = f"by {_node(listed[scope.producers[name]])} as well" if name in scope.producers else "and is an input of the graph"
                raise ProbeError("NameTwice", f"tensor {_name(name)} is written by {_node(node)} {before}; names must be unique, export the model again")
            scope.producers[name] = position
    for node in listed:
        missing = next((name for name in node.input if name and not scope.knows(name)), None)
        if missing is not None:
            raise ProbeError("TensorUndefined", f"{_node(node)} reads {_name(missing)}, which nothing in the graph gives; export the model again")
        for graph in _own_graphs(node):
            _check_graph(graph, scope.layers, scope.opset)
    _check_order(listed, scope.producers)


def _check_order(nodes: list[NodeProto], producers: Mapping[str, int]) -> None:
    """Take away nodes that wait for nothing until none is left; what is left over waits for itself (Kahn 1962)."""
    waits = [{producers[name] for name in _reads(node) if name in producers} for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for reader, sources in enumerate(waits):
        for source in sources:
            readers[source].append(reader)
    ready = [position for position, sources in enumerate(waits) if not sources]
    left = len(nodes)
    while ready:
        done = ready.pop()
        left -= 1
        for reader in readers[done]:
            waits[reader].discard(done)
            if not waits[reader]:
                ready.append(reader)
    if left:
        circle = _find_circle([sorted(sources) for sources in waits])
        shown = " -> ".join(_node(nodes[position]) for position in circle[:_SHOWN])
        raise ProbeError("GraphCyclic", f"the graph runs in a circle of {len(circle)} nodes that need each other's results: {shown}; export the model again")


def _find_circle(waits: list[list[int]]) -> list[int]:
    """One circle among nodes of which each waits for another: walk until a node comes again."""
    seen: dict[int, int] = {}
    here = next(position for position, sources in enumerate(waits) if sources)
    while here not in seen:
        seen[here] = len(seen)
        here = waits[here][0]
    return [position for position, order in seen.items() if order >= seen[here]]


def _reads(node: NodeProto) -> Iterator[str]:
    """Tensors that a node needs, those that only its subgraphs read included."""
    yield from node.input
    for graph in _own_graphs(node):
        inside = {*(value.name for value in graph.input), *(tensor.name for tensor in graph.initializer)}
        inside.update(name for inner in graph.node for name in inner.output)
        read = {*(name for inner in graph.node for name in _reads(inner)), *(value.name for value in graph.output)}
        yield from read - inside


def _own_graphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _first_repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _node(node: NodeProto) -> str:
    return f"node {_name(node.name or node.output[0] if node.output else node.name)} ({node.op_type[:64]})"


def _name(name: str) -> str:
    return repr(name[:100])


def _shape(tensor: TensorProto) -> str:
    shown = ", ".join(str(size) for size in tensor.dims[:8])
    return f"[{shown}{', …' if len(tensor.dims) > 8 else ''}]"
