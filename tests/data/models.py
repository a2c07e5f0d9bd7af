"""Small models made in code, one per trouble that real files bring, and the files that are no models at all.

Every builder writes into ``folder`` and returns the path; seeds are fixed. Nothing binary is kept in the repository.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
LFS_SIZE = 1_234_567_890
"""The size that the pointer file of ``not_models`` stands for."""
DEFAULT_OPSET, DEFAULT_IR = 17, 8


def weights(*shape: int, seed: int = 0, scale: float = 0.1) -> np.ndarray:
    """Normally distributed fp32 numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def value(name: str, kind: int, shape: Sequence[int | str | None] | None) -> ValueInfoProto:
    """A graph input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: object) -> NodeProto:
    """A node, named like its first output unless told otherwise."""
    return helper.make_node(op_type, inputs, outputs, name or f"{outputs[0]}_{op_type}".lower(), **attributes)


def graph(
    nodes: Sequence[NodeProto], inputs: Sequence[ValueInfoProto], outputs: Sequence[ValueInfoProto], constants: Mapping[str, object] | None = None
) -> GraphProto:
    """A graph with its constants as initialisers."""
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    return helper.make_graph(list(nodes), "net", list(inputs), list(outputs), stored)


def save(path: Path, net: GraphProto, *, opset: int = DEFAULT_OPSET, ir: int = DEFAULT_IR, domains: Mapping[str, int] | None = None) -> Path:
    """Write the graph as a model file."""
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, version) for domain, version in (domains or {}).items())]
    onnx.save(helper.make_model(net, opset_imports=opsets, ir_version=ir), path)
    return path


def dense(folder: Path, *, width: int = 32, name: str = "dense.onnx", ir: int = DEFAULT_IR, opset: int = DEFAULT_OPSET) -> Path:
    """Y = relu(x · w): a good model with a free batch dimension, ``width``² MACs per sample."""
    nodes = [node("MatMul", ["x", "w"], ["p"], "product"), node("Relu", ["p"], ["y"], "act")]
    net = graph(nodes, [value("x", FLOAT, ["n", width])], [value("y", FLOAT, ["n", width])], {"w": weights(width, width)})
    return save(folder / name, net, ir=ir, opset=opset)


def half_dense(folder: Path, *, width: int = 16) -> Path:
    """The same in fp16."""
    net = graph(
        [node("MatMul", ["x", "w"], ["y"], "product")],
        [value("x", TensorProto.FLOAT16, ["n", width])],
        [value("y", TensorProto.FLOAT16, ["n", width])],
        {"w": weights(width, width).astype(np.float16)},
    )
    return save(folder / "half.onnx", net)


def quantized_dense(folder: Path, *, width: int = 16) -> Path:
    """A file that is int8 already, in quantise-dequantise form."""
    constants = {"w": np.ones((width, width), np.int8), "s": np.float32(0.1), "z": np.uint8(128), "zw": np.int8(0)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "s", "zw"], ["wd"]),
        node("MatMul", ["d", "wd"], ["p"], "product"),
        node("QuantizeLinear", ["p", "s", "z"], ["pq"]),
        node("DequantizeLinear", ["pq", "s", "z"], ["y"]),
    ]
    return save(folder / "int8.onnx", graph(nodes, [value("x", FLOAT, ["n", width])], [value("y", FLOAT, ["n", width])], constants))


def small_cnn(folder: Path, *, batch: int | str = "n") -> Path:
    """Three convolutions (one grouped, one transposed) and a pooling, on 3 x 16 x 16 pixels."""
    constants = {"w0": weights(8, 3, 3, 3), "w1": weights(8, 1, 3, 3), "w2": weights(8, 4, 2, 2)}
    nodes = [
        node("Conv", ["x", "w0"], ["a"], "conv", pads=[1] * 4),
        node("Conv", ["a", "w1"], ["b"], "depthwise", pads=[1] * 4, group=8, strides=[2, 2]),
        node("ConvTranspose", ["b", "w2"], ["c"], "up", strides=[2, 2]),
        node("GlobalAveragePool", ["c"], ["y"], "pool"),
    ]
    return save(folder / "cnn.onnx", graph(nodes, [value("x", FLOAT, [batch, 3, 16, 16])], [value("y", FLOAT, [batch, 4, 1, 1])], constants))


SMALL_CNN_MACS = 8 * 16 * 16 * 3 * 9 + 8 * 8 * 8 * 9 + 8 * 8 * 8 * (4 * 2 * 2)
"""By hand: conv out 8x16x16 each 3x3x3; depthwise out 8x8x8 each 3x3; transposed in 8x8x8 each 4x2x2."""


def attention(folder: Path, *, width: int = 16) -> Path:
    """One head written out: softmax(q · kᵀ) · v."""
    constants = {name: weights(width, width, seed=position) for position, name in enumerate(("wq", "wk", "wv"))}
    nodes = [
        *(node("MatMul", ["x", f"w{name}"], [name], name) for name in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"], "scores"),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["y"], "mix"),
    ]
    return save(folder / "attention.onnx", graph(nodes, [value("x", FLOAT, ["n", "t", width])], [value("y", FLOAT, ["n", "t", width])], constants))


def recurrent(folder: Path) -> Path:
    """An LSTM over [steps, batch, 4] with 8 hidden units: the batch is not axis 0."""
    constants = {"w": weights(1, 32, 4), "r": weights(1, 32, 8)}
    net = graph([node("LSTM", ["x", "w", "r"], ["y"], "lstm", hidden_size=8)], [value("x", FLOAT, [6, 1, 4])], [value("y", FLOAT, [6, 1, 1, 8])], constants)
    return save(folder / "lstm.onnx", net)


def batch_baked_in(folder: Path) -> Path:
    """The input promises any batch; the reshape before the head was recorded with batch 1."""
    constants = {"w": weights(12, 3, 3, 3), "target": np.array([1, 2, 6, 64], np.int64)}
    nodes = [
        node("Conv", ["pixels", "w"], ["a"], "/stem/Conv", strides=[2, 2], pads=[1] * 4),
        node("Reshape", ["a", "target"], ["b"], "/head/Reshape_7"),
        node("Sigmoid", ["b"], ["scores"], "/head/Sigmoid"),
    ]
    net = graph(nodes, [value("pixels", FLOAT, ["batch", 3, 16, 16])], [value("scores", FLOAT, ["batch", 2, 6, 64])], constants)
    return save(folder / "baked.onnx", net)


def batch_mixes(folder: Path) -> Path:
    """Subtracts the mean over the batch: runs at every batch size and answers something else each time."""
    nodes = [node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1), node("Sub", ["x", "m"], ["y"], "centre")]
    return save(folder / "mixes.onnx", graph(nodes, [value("x", FLOAT, ["n", 8])], [value("y", FLOAT, ["n", 8])]))


def never_the_same(folder: Path) -> Path:
    """Adds noise: two runs on one input differ."""
    nodes = [node("RandomNormalLike", ["x"], ["r"]), node("Add", ["x", "r"], ["y"])]
    return save(folder / "noise.onnx", graph(nodes, [value("x", FLOAT, ["n", 64])], [value("y", FLOAT, ["n", 64])]))


def token_tables(folder: Path) -> Path:
    """Three integer inputs index tables of 23, 96 (after adding 5) and 2 rows; nothing in the names says which."""
    constants = {"t0": weights(23, 8), "t1": weights(96, 8), "t2": weights(2, 8), "five": np.int64(5)}
    nodes = [
        node("Gather", ["p", "t0"][::-1], ["e0"]),
        node("Add", ["five", "q"], ["q5"]),
        node("Gather", ["t1", "q5"], ["e1"]),
        node("Gather", ["t2", "r"], ["e2"]),
        node("Sum", ["e0", "e1", "e2"], ["y"]),
    ]
    return save(folder / "tokens.onnx", graph(nodes, [value(name, INT64, ["b", "len"]) for name in "pqr"], [value("y", FLOAT, ["b", "len", 8])], constants))


TOKEN_TABLE_BOUNDS = {"p": (0, 22), "q": (0, 90), "r": (0, 1)}


def quantized_table(folder: Path) -> Path:
    """A table of 50 rows stored in int8 and turned into fp32 before the look-up."""
    constants = {"t": np.ones((50, 4), np.int8), "s": np.float32(0.1)}
    nodes = [node("DequantizeLinear", ["t", "s"], ["real"]), node("Gather", ["real", "i"], ["y"], "look_up")]
    return save(folder / "stored.onnx", graph(nodes, [value("i", INT64, ["n", 4])], [value("y", FLOAT, ["n", 4, 4])], constants))


def hidden_table(folder: Path) -> Path:
    """An index squared before the look-up: its bound cannot be read from the graph, only 0 and 1 are sure to fit."""
    nodes = [node("Mul", ["i", "i"], ["i2"]), node("Gather", ["t", "i2"], ["y"], "look_up")]
    return save(folder / "hidden.onnx", graph(nodes, [value("i", INT64, ["n", 4])], [value("y", FLOAT, ["n", 4, 3])], {"t": weights(6, 3)}))


def local_function_table(folder: Path) -> Path:
    """The look-up happens inside a local function, where static reading does not go: generated values are refused."""
    body = [node("Gather", ["table", "index"], ["row"], "inside")]
    function = helper.make_function("own", "LookUp", ["table", "index"], ["row"], body, [helper.make_opsetid("", DEFAULT_OPSET)])
    nodes = [node("Cast", ["i"], ["wide"], "widen", to=INT64), helper.make_node("LookUp", ["t", "wide"], ["y"], "call", domain="own")]
    net = graph(nodes, [value("i", TensorProto.UINT8, ["n", 4])], [value("y", FLOAT, ["n", 4, 3])], {"t": weights(2, 3)})
    opsets = [helper.make_opsetid("", DEFAULT_OPSET), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(net, opset_imports=opsets, ir_version=DEFAULT_IR, functions=[function]), folder / "function.onnx")
    return folder / "function.onnx"


def one_hot_by_hand(folder: Path) -> Path:
    """Bytes compared with 0…40 in one broadcast, as converters write a one-hot encoding: values beyond 40 mean nothing."""
    constants = {"row": np.arange(41, dtype=np.int32).reshape(1, 1, 41), "last": np.array([2], np.int64), "w": weights(41, 4)}
    nodes = [
        node("Unsqueeze", ["bytes", "last"], ["column"]),
        node("Equal", ["column", "row"], ["same"]),
        node("Cast", ["same"], ["hot"], to=FLOAT),
        node("MatMul", ["hot", "w"], ["y"], "embed"),
    ]
    return save(folder / "one_hot.onnx", graph(nodes, [value("bytes", TensorProto.INT32, ["n", 16])], [value("y", FLOAT, ["n", 16, 4])], constants))


def text_line(folder: Path) -> Path:
    """Every dimension is free, but only images 48 high fit into what follows."""
    constants = {"flat": np.array([0, 3 * 48, -1], np.int64)}
    net = graph([node("Reshape", ["x", "flat"], ["y"], "fold")], [value("x", FLOAT, ["n", 3, "h", "w"])], [value("y", FLOAT, ["n", 144, "t"])], constants)
    return save(folder / "line.onnx", net)


def odd_outputs(folder: Path) -> Path:
    """A label as a string, probabilities as a list of maps, and the rows above a threshold, of which there are mostly none."""
    attributes = {"coefficients": weights(24, scale=1.0).tolist(), "intercepts": [0.0, 0.0], "classlabels_strings": ["low", "high"]}
    nodes = [
        node("LinearClassifier", ["x"], ["label", "scores"], "classify", domain="ai.onnx.ml", post_transform="SOFTMAX", **attributes),
        node("ZipMap", ["scores"], ["probabilities"], "name", domain="ai.onnx.ml", classlabels_strings=["low", "high"]),
        node("Greater", ["x", "limit"], ["above"]),
        node("NonZero", ["above"], ["where"]),
        node("Transpose", ["where"], ["hits"], perm=[1, 0]),
    ]
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, [])))
    outputs = [value("label", STRING, [None]), helper.make_value_info("probabilities", maps), value("hits", INT64, [None, 2])]
    net = graph(nodes, [value("x", FLOAT, [None, 12])], outputs, {"limit": np.float32(50)})
    return save(folder / "odd.onnx", net, domains={"ai.onnx.ml": 3}, opset=15)


def extension_operators(folder: Path) -> Path:
    """Two operators of an extension library that no runtime has built in."""
    nodes = [
        helper.make_node("StringUpper", ["s"], ["u"], "upper", domain="ai.onnx.contrib"),
        helper.make_node("StringToHashBucket", ["u"], ["h"], "hash", domain="ai.onnx.contrib"),
    ]
    net = graph(nodes, [value("s", STRING, [None])], [value("h", INT64, [None])])
    return save(folder / "extension.onnx", net, domains={"ai.onnx.contrib": 1})


def contributed_operators(folder: Path) -> Path:
    """A fused product and a fast GELU of ONNX Runtime's own domain, which OpenVINO converts too."""
    nodes = [
        helper.make_node("FusedMatMul", ["x", "w"], ["a"], "fused", domain="com.microsoft", transB=1, alpha=0.5),
        helper.make_node("FastGelu", ["a"], ["y"], "gelu", domain="com.microsoft"),
    ]
    net = graph(nodes, [value("x", FLOAT, ["n", 24])], [value("y", FLOAT, ["n", 24])], {"w": weights(24, 24)})
    return save(folder / "contributed.onnx", net, domains={"com.microsoft": 1})


def unused_domain(folder: Path) -> Path:
    """Imports domains that no node uses."""
    net = graph([node("MatMul", ["x", "w"], ["y"])], [value("x", FLOAT, ["n", 8])], [value("y", FLOAT, ["n", 8])], {"w": weights(8, 8)})
    return save(folder / "unused.onnx", net, domains={"org.example.kernels": 3, "com.microsoft": 1})


def one_runtime_only(folder: Path) -> Path:
    """An operator that ONNX Runtime runs and OpenVINO cannot convert (older OpenVINO died on it)."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), helper.make_node("ExpandDims", ["m", "axis"], ["y"], "expand", domain="com.microsoft")]
    net = graph(nodes, [value("x", FLOAT, [6, 6])], [value("y", FLOAT, None)], {"w": weights(6, 6), "axis": np.int32(1)})
    return save(folder / "one_runtime.onnx", net, domains={"com.microsoft": 1})


def weights_among_inputs(folder: Path) -> Path:
    """An old exporter: every weight is listed among the inputs, before the one true input."""
    constants = {"cw": weights(4, 3, 3, 3), "scale": np.ones(4, np.float32), "shift": np.zeros(4, np.float32), "temperature": np.float32(2.0)}
    nodes = [
        node("Conv", ["image", "cw"], ["a"], "conv", pads=[1] * 4),
        node("BatchNormalization", ["a", "scale", "shift", "shift", "scale"], ["b"], "norm"),
        node("Div", ["b", "temperature"], ["y"], "soften"),
    ]
    listed = [value(name, FLOAT, list(array.shape)) for name, array in constants.items()]
    net = graph(nodes, [*listed, value("image", FLOAT, ["N", 3, 8, 8])], [value("y", FLOAT, ["N", 4, 8, 8])], constants)
    return save(folder / "old.onnx", net, opset=11, ir=6)


WEIGHTS_AMONG_INPUTS_PARAMETERS = 4 * 3 * 9 + 4 + 4 + 1


def compared_with(folder: Path) -> Path:
    """A scalar mode that the graph compares with 16000; any other value takes a branch that fails to run."""
    good = graph([node("Identity", ["x"], ["g"])], [], [value("g", FLOAT, None)])
    bad = graph([node("Reshape", ["x", "nine"], ["h"], "unreachable")], [], [value("h", FLOAT, None)])
    nodes = [node("Equal", ["rate", "wanted"], ["same"]), node("If", ["same"], ["y"], "choose", then_branch=good, else_branch=bad)]
    constants = {"wanted": np.int64(16000), "nine": np.array([9, 9], np.int64)}
    net = graph(nodes, [value("x", FLOAT, ["n", 4]), value("rate", INT64, [])], [value("y", FLOAT, None)], constants)
    return save(folder / "mode.onnx", net)


def external(folder: Path, location: str, *, data_bytes: int | None = None, width: int = 16, offset: int = 0) -> Path:
    """One weight outside the file, at ``location``; ``data_bytes`` None writes no data file."""
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[width, width], data_location=TensorProto.EXTERNAL)
    for key, entry in (("location", location), ("offset", str(offset)), ("length", str(4 * width * width))):
        tensor.external_data.add(key=key, value=entry)
    net = graph([node("MatMul", ["x", "w"], ["y"], "product")], [value("x", FLOAT, ["n", width])], [value("y", FLOAT, ["n", width])])
    net.initializer.append(tensor)
    path = save(folder / "external.onnx", net)
    if data_bytes is not None:
        target = folder / location
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            file.truncate(data_bytes)
    return path


def needs_type(folder: Path, kind: int, ir: int) -> Path:
    """A graph whose only weight has the given element type."""
    stored = TensorProto(name="w", data_type=kind, dims=[2], raw_data=b"\x00\x00")
    net = graph([node("Identity", ["x"], ["y"])], [value("x", FLOAT, ["n", 2])], [value("y", FLOAT, ["n", 2])])
    net.initializer.append(stored)
    return save(folder / f"type{kind}-ir{ir}.onnx", net, ir=ir)


def from_the_future(folder: Path) -> Path:
    """IR version 20 with a field that nobody knows yet (number 1000, three bytes)."""
    path = dense(folder, name="future.onnx", ir=20)
    path.write_bytes(path.read_bytes() + b"\xc2\x3e\x03abc")
    return path


def not_models(folder: Path) -> dict[str, Path]:
    """Files called ``.onnx`` that are something else, by the reason the user should read."""
    real = dense(folder, name="real.onnx").read_bytes()
    archive, tar = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("weights/data.pkl", b"\x80\x02.")
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as opened:
        opened.writestr("model.onnx", real)
    with tarfile.open(fileobj=tar, mode="w") as opened_tar:
        opened_tar.addfile(tarfile.TarInfo("model.onnx"))
    contents = {
        "GitLfsPointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + f"\nsize {LFS_SIZE}\n".encode(),
        "HtmlPage": b"\n<!doctype HTML>\n<html lang=en><title>Log in</title></html>",
        "JsonDocument": json.dumps({"message": "Not Found", "status": "404"}).encode(),
        "PyTorchCheckpoint": archive.getvalue(),
        "ZipArchive": plain.getvalue(),
        "OrtFormat": b"\x20\x00\x00\x00ORTM" + bytes(64),
        "GzipArchive": gzip.compress(real),
        "TarArchive": tar.getvalue(),
        "XmlDocument": b'<?xml version="1.0"?>\n<net name="m" version="11"/>',
        "SafetensorsFile": (64).to_bytes(8, "little") + b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}' + bytes(20),
        "TextFile": b"this is a note about where the model went\n",
        "EmptyFile": b"",
        "Truncated": real[: len(real) // 2],
        "NotOnnx": b"\xff\xfe\x00\x01" * 40,
    }
    paths = {}
    for reason, content in contents.items():
        paths[reason] = folder / f"{reason}.onnx"
        paths[reason].write_bytes(content)
    return paths


def light(name: str) -> Path:
    """A real network with constant weights from the onnx wheel, such as ``squeezenet`` or ``shufflenet``."""
    return Path(str(resources.files("onnx") / "backend/test/data/light" / f"light_{name}.onnx"))
