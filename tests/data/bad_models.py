"""Model files that are broken, hostile or unusual, made in code: what strangers bring, each with the reason they should read.

``BAD_MODELS`` is the table; every builder writes into ``folder`` and returns the file. Nothing here needs more memory or disk
than a few megabytes, whatever the file claims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper
from tests.data.models import FLOAT, INT64, dense, external, graph, node, save, value, weights

Builder = Callable[[Path], Path]
HUGE = 1 << 62


@dataclass(frozen=True, slots=True)
class BadModel:
    """A file and what the report must say: one of ``reasons``, and each of ``names`` in the message."""

    build: Builder
    reasons: tuple[str, ...]
    names: tuple[str, ...] = ()


def _written(folder: Path, content: bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(content)
    return path


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes as protobuf writes it."""
    length, encoded = len(content), bytearray([number << 3 | 2])
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(encoded) + bytes([length]) + content


def _plain(folder: Path, nodes: list[NodeProto], constants: dict[str, object] | None = None, *, width: int = 8) -> Path:
    """A graph from ``x`` to ``y``, both [n, width]."""
    return save(folder / "model.onnx", graph(nodes, [value("x", FLOAT, ["n", width])], [value("y", FLOAT, ["n", width])], constants))


def truncated(folder: Path) -> Path:
    """The first three quarters of a good file."""
    whole = dense(folder).read_bytes()
    return _written(folder, whole[: len(whole) * 3 // 4])


def cyclic(folder: Path) -> Path:
    """Two nodes that need each other's results."""
    nodes = [node("Add", ["x", "b"], ["a"], "first"), node("Relu", ["a"], ["b"], "second"), node("Relu", ["b"], ["y"], "third")]
    return _plain(folder, nodes)


def cyclic_through_a_branch(folder: Path) -> Path:
    """The branch of an If reads what is computed from its own result."""
    branch = graph([node("Relu", ["later"], ["taken"], "inside")], [], [value("taken", FLOAT, None)])
    nodes = [
        node("If", ["on"], ["earlier"], "choose", then_branch=branch, else_branch=branch),
        node("Relu", ["earlier"], ["later"], "back"),
        node("Add", ["x", "later"], ["y"], "use"),
    ]
    return _plain(folder, nodes, {"on": np.bool_(True)})


def dangling_edge(folder: Path) -> Path:
    """A node reads what nothing gives."""
    return _plain(folder, [node("Add", ["x", "nowhere"], ["y"], "join")])


def dangling_in_a_branch(folder: Path) -> Path:
    """The same inside a subgraph."""
    branch = graph([node("Relu", ["nowhere"], ["taken"], "inside")], [], [value("taken", FLOAT, None)])
    return _plain(folder, [node("If", ["on"], ["y"], "choose", then_branch=branch, else_branch=branch)], {"on": np.bool_(True)})


def dangling_output(folder: Path) -> Path:
    """An output that no node computes."""
    return _plain(folder, [node("Relu", ["x"], ["z"], "act")])


def written_twice(folder: Path) -> Path:
    """Two nodes write one tensor."""
    return _plain(folder, [node("Relu", ["x"], ["y"], "one"), node("Neg", ["x"], ["y"], "two")])


def inputs_twice(folder: Path) -> Path:
    """Two inputs of one name."""
    net = graph([node("Relu", ["x"], ["y"])], [value("x", FLOAT, ["n", 4])] * 2, [value("y", FLOAT, ["n", 4])])
    return save(folder / "model.onnx", net)


def missing_inputs(folder: Path) -> Path:
    """A product of nothing."""
    return _plain(folder, [node("MatMul", [], ["y"], "product")])


def nameless_operators(folder: Path) -> Path:
    """A hundred thousand empty nodes in 200 kB: each costs a parser fifty times what it costs the file."""
    net = _field(1, b"") * 100_000 + _field(2, b"g") + _field(12, _field(1, b"y"))
    return _written(folder, b"\x08\x08" + _field(7, net) + _field(8, b"\x10\x11"))


def unknown_opset(folder: Path) -> Path:
    """An operator set that nobody has written yet."""
    return dense(folder, opset=99)


def opset_left_out(folder: Path) -> Path:
    """No operator set at all."""
    path = dense(folder)
    model = onnx.load(path)
    del model.opset_import[:]
    return _written(folder, model.SerializeToString())


def unknown_operator(folder: Path) -> Path:
    """A typing error in ONNX's own domain."""
    return _plain(folder, [node("Reluu", ["x"], ["y"], "act")])


def unknown_domain(folder: Path) -> Path:
    """An operator of a library that no runtime brings."""
    nodes = [helper.make_node("Sparkle", ["x"], ["y"], "act", domain="org.example.kernels")]
    net = graph(nodes, [value("x", FLOAT, ["n", 4])], [value("y", FLOAT, ["n", 4])])
    return save(folder / "model.onnx", net, domains={"org.example.kernels": 1})


def dynamic_rank(folder: Path) -> Path:
    """An input without a shape."""
    return save(folder / "model.onnx", graph([node("Relu", ["x"], ["y"])], [value("x", FLOAT, None)], [value("y", FLOAT, None)]))


def many_nodes(folder: Path, count: int = 100_000) -> Path:
    """A chain of a hundred thousand additions."""
    names = ["x", *(f"t{position}" for position in range(count - 1)), "y"]
    nodes = [helper.make_node("Add", [names[position], "one"], [names[position + 1]], f"add{position}") for position in range(count)]
    net = graph(nodes, [value("x", FLOAT, ["n", 4])], [value("y", FLOAT, ["n", 4])], {"one": np.float32(1)})
    return save(folder / "model.onnx", net)


def _with_weight(folder: Path, tensor: TensorProto) -> Path:
    net = graph([node("MatMul", ["x", "w"], ["y"], "product")], [value("x", FLOAT, ["n", 8])], [value("y", FLOAT, ["n", 8])])
    net.initializer.append(tensor)
    return save(folder / "model.onnx", net)


def weight_claims_too_much(folder: Path) -> Path:
    """2⁶² elements announced, one stored."""
    return _with_weight(folder, TensorProto(name="w", data_type=FLOAT, dims=[HUGE], raw_data=bytes(4)))


def weight_claims_less_than_nothing(folder: Path) -> Path:
    """A negative size."""
    return _with_weight(folder, TensorProto(name="w", data_type=FLOAT, dims=[8, -8], raw_data=bytes(256)))


def external_weight_claims_too_much(folder: Path) -> Path:
    """The same in external data, with a length that fits the file."""
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[HUGE], data_location=TensorProto.EXTERNAL)
    for key, entry in (("location", "w.bin"), ("offset", "0"), ("length", "1024")):
        tensor.external_data.add(key=key, value=entry)
    (folder / "w.bin").write_bytes(bytes(1024))
    return _with_weight(folder, tensor)


def constant_bomb(folder: Path, elements: int = 4 << 30) -> Path:
    """16 GiB of constants made by the graph itself from one number."""
    nodes = [node("ConstantOfShape", ["size"], ["big"], "bomb"), node("ReduceSum", ["big"], ["s"], keepdims=0), node("Add", ["x", "s"], ["y"])]
    return _plain(folder, nodes, {"size": np.array([elements], np.int64)})


def endless_constant(folder: Path) -> Path:
    """2⁶² constants."""
    return constant_bomb(folder, HUGE)


def hidden_bomb(folder: Path) -> Path:
    """The same, its size computed at load and run time, so that no figure in the file tells."""
    nodes = [
        node("Mul", ["k", "k"], ["k2"]),
        node("Mul", ["k2", "k"], ["k3"]),
        node("Shape", ["x"], ["shape"]),
        node("ReduceMax", ["shape"], ["most"], keepdims=1),
        node("Mul", ["k3", "most"], ["size"]),
        node("Expand", ["one", "size"], ["big"], "bomb"),
        node("ReduceSum", ["big"], ["s"], keepdims=0),
        node("Add", ["x", "s"], ["y"]),
    ]
    return _plain(folder, nodes, {"k": np.array([1024], np.int64), "one": np.float32(1)})


def endless_loop(folder: Path) -> Path:
    """A loop of 2⁶² turns."""
    body = graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["before", "step"], ["after"])],
        [value("turn", INT64, []), value("go", TensorProto.BOOL, []), value("before", FLOAT, None)],
        [value("on", TensorProto.BOOL, []), value("after", FLOAT, None)],
        {"step": np.float32(1)},
    )
    return _plain(folder, [node("Loop", ["turns", "true", "x"], ["y"], "forever", body=body)], {"turns": np.int64(HUGE), "true": np.bool_(True)})


def deep_subgraphs(folder: Path, depth: int = 200) -> Path:
    """An If inside an If, two hundred times; written byte by byte, because no library writes it."""
    flat = graph([node("Relu", ["x"], ["r0"])], [], [value("r0", FLOAT, None)]).SerializeToString()
    inner = flat
    for level in range(1, depth + 1):
        result = f"r{level}".encode()
        branches = [_field(5, _field(1, name) + _field(6, body) + b"\xa0\x01\x05") for name, body in ((b"then_branch", inner), (b"else_branch", flat))]
        choose = _field(1, b"on") + _field(2, result) + _field(4, b"If") + b"".join(branches)
        inner = _field(1, choose) + _field(2, b"g") + _field(12, value(result.decode(), FLOAT, None).SerializeToString())
    last = node("Identity", [f"r{depth}"], ["y"]).SerializeToString()
    ends = graph([], [value("x", FLOAT, ["n", 4])], [value("y", FLOAT, ["n", 4])], {"on": np.bool_(True)}).SerializeToString()
    net = inner.replace(_field(12, value(f"r{depth}", FLOAT, None).SerializeToString()), b"") + _field(1, last) + ends
    return _written(folder, b"\x08\x08" + _field(7, net) + _field(8, b"\x10\x11"))


def _renamed(folder: Path, name: bytes, *, place: str) -> Path:
    """A good model in which a node, a tensor between two nodes, or the input has these bytes for a name (10 of them)."""
    given = {"node": "node_named", "tensor": "tensornamd", "input": "inputnamed"}
    nodes = [node("Relu", [given["input"]], [given["tensor"]], given["node"]), node("MatMul", [given["tensor"], "w"], ["y"], "product")]
    net = graph(nodes, [value(given["input"], FLOAT, ["n", 8])], [value("y", FLOAT, ["n", 8])], {"w": weights(8, 8)})
    path = save(folder / "model.onnx", net)
    return _written(folder, path.read_bytes().replace(given[place].encode(), name))


def not_utf8_input(folder: Path) -> Path:
    """An input whose name is no text: nobody can send it."""
    return _renamed(folder, b"in\xff\xfe\xc0\x80name", place="input")


def no_graph(folder: Path) -> Path:
    """A version number and nothing else."""
    return _written(folder, b"\x08\x08")


def sequence_input(folder: Path) -> Path:
    """A list of tensors comes in."""
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, ["n"]))
    net = graph([node("ConcatFromSequence", ["x"], ["y"], axis=0)], [helper.make_value_info("x", kind)], [value("y", FLOAT, ["m"])])
    return save(folder / "model.onnx", net)


def optional_input(folder: Path) -> Path:
    """A tensor, or nothing, comes in."""
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, ["n"]))
    net = graph([node("OptionalGetElement", ["x"], ["y"])], [helper.make_value_info("x", kind)], [value("y", FLOAT, ["n"])])
    return save(folder / "model.onnx", net)


def map_input(folder: Path) -> Path:
    """A dictionary comes in, as classic machine learning has it."""
    kind = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(FLOAT, []))
    nodes = [node("DictVectorizer", ["x"], ["y"], "vectorise", domain="ai.onnx.ml", string_vocabulary=["a", "b"])]
    net = graph(nodes, [helper.make_value_info("x", kind)], [value("y", FLOAT, [None, 2])])
    return save(folder / "model.onnx", net, domains={"ai.onnx.ml": 3})


def loud_names(folder: Path) -> Path:
    """Names that turn a terminal around, hide behind zeros, and are a hundred thousand characters long, on a node that fails."""
    name = "\x1b[2J\x00\u202eevil\n" + "n" * 100_000
    nodes = [node("Reshape", ["x", "nine"], ["y"], name)]
    return _plain(folder, nodes, {"nine": np.array([9, 9], np.int64)})


def external_outside(folder: Path) -> Path:
    """``..`` in the location."""
    (folder.parent / "outside.bin").write_bytes(bytes(1024))
    return external(folder, "../outside.bin")


def external_absolute(folder: Path) -> Path:
    """A file of the machine."""
    return external(folder, "/etc/hostname")


def external_symlink(folder: Path) -> Path:
    """A link that leads out."""
    (folder / "w.bin").symlink_to("/etc/hostname")
    return external(folder, "w.bin")


def external_missing(folder: Path) -> Path:
    """Forgotten when the model was copied."""
    return external(folder, "w.bin")


def external_cut_off(folder: Path) -> Path:
    """Half of it was copied."""
    return external(folder, "w.bin", data_bytes=512)


def not_onnx(folder: Path) -> Path:
    """Noise."""
    return _written(folder, np.random.default_rng(7).bytes(4096))


BAD_MODELS: dict[str, BadModel] = {
    "truncated": BadModel(truncated, ("Truncated",), ("cut off", "upload it again")),
    "empty": BadModel(lambda folder: _written(folder, b""), ("EmptyFile",), ("is empty",)),
    "zero bytes": BadModel(lambda folder: _written(folder, bytes(70_000)), ("ZeroFilled",), ("upload it again",)),
    "noise": BadModel(not_onnx, ("NotOnnx",), ("not an ONNX model",)),
    "no graph": BadModel(no_graph, ("NotOnnx",), ("holds no graph",)),
    "external data outside": BadModel(external_outside, ("ExternalDataOutside",), ("'../outside.bin'",)),
    "external data absolute": BadModel(external_absolute, ("ExternalDataAbsolute",), ("'/etc/hostname'",)),
    "external data behind a link": BadModel(external_symlink, ("ExternalDataSymlink",), ("'w.bin'",)),
    "external data missing": BadModel(external_missing, ("ExternalDataMissing",), ("'w.bin'", "copy it")),
    "external data cut off": BadModel(external_cut_off, ("ExternalDataTruncated",), ("512 bytes",)),
    "external weight claims 2^62": BadModel(external_weight_claims_too_much, ("WeightSizeDiffers",), ("'w'", "1024 bytes")),
    "weight claims 2^62": BadModel(weight_claims_too_much, ("WeightSizeDiffers",), ("'w'", str(HUGE))),
    "weight claims -8": BadModel(weight_claims_less_than_nothing, ("WeightSizeDiffers",), ("'w'", "-8")),
    "cyclic": BadModel(cyclic, ("GraphCyclic",), ("'first' (Add)", "'second' (Relu)")),
    "cyclic through a branch": BadModel(cyclic_through_a_branch, ("GraphCyclic",), ("'choose' (If)", "'back' (Relu)")),
    "dangling edge": BadModel(dangling_edge, ("TensorUndefined",), ("'join' (Add)", "'nowhere'")),
    "dangling in a branch": BadModel(dangling_in_a_branch, ("TensorUndefined",), ("'inside' (Relu)", "'nowhere'")),
    "dangling output": BadModel(dangling_output, ("TensorUndefined",), ("output 'y'",)),
    "tensor written twice": BadModel(written_twice, ("NameTwice",), ("'one' (Relu)", "'two' (Neg)")),
    "inputs of one name": BadModel(inputs_twice, ("NameTwice",), ("'x'",)),
    "operator without inputs": BadModel(missing_inputs, ("NodeIncomplete",), ("'product' (MatMul)", "2 and 1")),
    "nodes without operators": BadModel(nameless_operators, ("NodeIncomplete",), ("names no operator",)),
    "unknown opset": BadModel(unknown_opset, ("RuntimeTooOld",), ("99",)),
    "opset left out": BadModel(opset_left_out, ("OpsetMissing",), ("operator set",)),
    "unknown operator": BadModel(unknown_operator, ("UnknownOperators",), ("Reluu",)),
    "unknown domain": BadModel(unknown_domain, ("UnknownOperators",), ("org.example.kernels.Sparkle",)),
    "dynamic rank": BadModel(dynamic_rank, ("InputRankUnknown",), ("'x'", "accuracy.calibration")),
    "bomb of constants": BadModel(constant_bomb, ("OutOfMemory",), ("needs about 16.", "GiB")),
    "2^62 constants": BadModel(endless_constant, ("OutOfMemory",), ("GiB",)),
    "hidden bomb": BadModel(hidden_bomb, ("OutOfMemory",), ("memory",)),
    "endless loop": BadModel(endless_loop, ("TimedOut",), ("not finished",)),
    "deep subgraphs": BadModel(deep_subgraphs, ("NestedTooDeeply",), ("201 deep",)),
    "input name not UTF-8": BadModel(not_utf8_input, ("NameNotUtf8",), ("UTF-8",)),
    "sequence input": BadModel(sequence_input, ("InputsUnsupported",), ("sequence(float32)",)),
    "optional input": BadModel(optional_input, ("InputsUnsupported",), ("optional(float32)",)),
    "map input": BadModel(map_input, ("InputsUnsupported",), ("map(string,float32)",)),
    "loud names": BadModel(loud_names, ("InputsNotFound",), ("accuracy.calibration",)),
}


def weight_stored_twice(folder: Path) -> Path:
    """Two weights of one name, as some exporters leave them: runtimes take the last."""
    path = dense(folder)
    model = onnx.load(path)
    model.graph.initializer.append(model.graph.initializer[0])
    return _written(folder, model.SerializeToString())


def constant_output(folder: Path) -> Path:
    """An output that depends on nothing."""
    nodes = [node("Relu", ["x"], ["y"]), node("Identity", ["c"], ["z"])]
    outputs = [value("y", FLOAT, ["n", 4]), value("z", FLOAT, [2])]
    return save(folder / "model.onnx", graph(nodes, [value("x", FLOAT, ["n", 4])], outputs, {"c": weights(2)}))


def unsorted(folder: Path) -> Path:
    """Nodes in the wrong order, which is not a circle."""
    return _plain(folder, [node("Relu", ["b"], ["y"]), node("Neg", ["a"], ["b"]), node("Abs", ["x"], ["a"])])


def shadowed(folder: Path) -> Path:
    """A branch that uses names of the outer graph for its own tensors."""
    branch = graph([node("Relu", ["x"], ["a"], "inside")], [], [value("a", FLOAT, None)])
    nodes = [node("If", ["on"], ["b"], "choose", then_branch=branch, else_branch=branch), node("Neg", ["b"], ["a"]), node("Abs", ["a"], ["y"])]
    return _plain(folder, nodes, {"on": np.bool_(True)})


UNUSUAL_MODELS: dict[str, Builder] = {
    "node name not UTF-8": lambda folder: _renamed(folder, b"\xff\xfe\xc0\x80 named", place="node"),
    "tensor name not UTF-8": lambda folder: _renamed(folder, b"\xff\xfe\xc0\x80 named", place="tensor"),
    "node name with quotes": lambda folder: _renamed(folder, b'a"b\\"c\nd\x1be', place="node"),
    "input name with line breaks": lambda folder: _renamed(folder, b"in\nput\tnam", place="input"),
    "weight stored twice": weight_stored_twice,
    "an output that depends on nothing": constant_output,
    "nodes out of order": unsorted,
    "a branch with names of the outer graph": shadowed,
    "subgraphs as deep as parsers read": lambda folder: deep_subgraphs(folder, depth=24),
    "an input of every type that numpy has": lambda folder: typed_inputs(folder, FED),
}
"""Files that are odd and not wrong: both must be measured, because some user has one like it."""


FED = tuple(
    getattr(TensorProto, name)
    for name in ("FLOAT", "DOUBLE", "FLOAT16", "BOOL", "STRING", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
)
"""Element types that onnxruntime takes from numpy."""
NOT_FED = tuple(sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED, *FED}))


def typed_inputs(folder: Path, kinds: tuple[int, ...]) -> Path:
    """One input of each element type, cast to fp32 and used; text is handed on as it is."""
    numbers = [kind for kind in kinds if kind != TensorProto.STRING]
    nodes = [node("Cast", [f"x{kind}"], [f"f{kind}"], f"widen{kind}", to=FLOAT) for kind in numbers]
    nodes += [node("Sum", [f"f{kind}" for kind in numbers], ["s"], "sum"), node("MatMul", ["s", "w"], ["y"], "product")]
    outputs = [value("y", FLOAT, ["n", 8])]
    if TensorProto.STRING in kinds:
        nodes.append(node("Identity", [f"x{TensorProto.STRING}"], ["text"]))
        outputs.append(value("text", TensorProto.STRING, ["n", 8]))
    net = graph(nodes, [value(f"x{kind}", kind, ["n", 8]) for kind in kinds], outputs, {"w": weights(8, 8)})
    return save(folder / "model.onnx", net, opset=25, ir=13)
