"""One table of element types: ONNX's numbers, numpy's names, the names runtimes use, and their sizes in bits."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto

BITS: Mapping[int, int] = {
    TensorProto.FLOAT: 32, TensorProto.UINT8: 8, TensorProto.INT8: 8, TensorProto.UINT16: 16, TensorProto.INT16: 16,
    TensorProto.INT32: 32, TensorProto.INT64: 64, TensorProto.BOOL: 8, TensorProto.FLOAT16: 16, TensorProto.DOUBLE: 64,
    TensorProto.UINT32: 32, TensorProto.UINT64: 64, TensorProto.COMPLEX64: 64, TensorProto.COMPLEX128: 128,
    TensorProto.BFLOAT16: 16, TensorProto.FLOAT8E4M3FN: 8, TensorProto.FLOAT8E4M3FNUZ: 8, TensorProto.FLOAT8E5M2: 8,
    TensorProto.FLOAT8E5M2FNUZ: 8, TensorProto.UINT4: 4, TensorProto.INT4: 4, TensorProto.FLOAT4E2M1: 4,
    TensorProto.FLOAT8E8M0: 8, TensorProto.UINT2: 2, TensorProto.INT2: 2,
}  # fmt: skip
"""Bits per element; sub-byte types are packed in ONNX files. Strings have no fixed size and are left out."""

_NAMES: Mapping[int, str] = {
    TensorProto.FLOAT: "float32", TensorProto.DOUBLE: "float64", TensorProto.COMPLEX64: "complex64",
    TensorProto.COMPLEX128: "complex128", TensorProto.BOOL: "bool",
}  # fmt: skip

_RUNTIME_NAMES: Mapping[str, str] = {
    "float": "float32", "double": "float64", "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16",
    "boolean": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip

_BYTES_BY_NAME: Mapping[str, float] = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2,
    "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "int4": 0.5, "uint4": 0.5, "i4": 0.5, "u4": 0.5,
}  # fmt: skip


def element_name(element_type: int) -> str:
    """Numpy's name of an ONNX element type, lower case (``float32``, ``bfloat16``, ``string``)."""
    known = _NAMES.get(element_type)
    if known:
        return known
    try:
        return str(TensorProto.DataType.Name(element_type)).lower()
    except ValueError:
        return f"type{element_type}"


def from_runtime(name: str) -> str:
    """The same name from what a runtime calls it: ``tensor(float)``, ``float``, ``f32``."""
    inner = name[7:-1] if name.startswith("tensor(") else name
    return _RUNTIME_NAMES.get(inner, inner)


def element_bytes(name: str) -> float:
    """Bytes per element of a type in ``element_name``'s or a runtime's words; 0 when it has no fixed size."""
    return _BYTES_BY_NAME.get(from_runtime(name), 0)


def tensor_bytes(element_type: int, elements: int) -> int:
    """Stored size of a tensor; 0 for strings."""
    return (elements * BITS.get(element_type, 0) + 7) // 8
