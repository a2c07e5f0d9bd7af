"""The reader of calibration files on damaged ones: requests or a reason, whatever bytes are in the file."""

from __future__ import annotations

import io
import zipfile
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.calibration import read_calibration
from metainfer_probe.contract import TensorSpec

INPUTS = (TensorSpec(name="x", dtype="float32", shape=(-1, 4)), TensorSpec(name="ids", dtype="int64", shape=(-1, -1)))


@cache
def whole_files() -> tuple[bytes, ...]:
    """Stored, deflated, and with other compressions than numpy writes."""
    arrays = {"x/0": np.ones((1, 4), np.float32), "ids/0": np.ones((1, 3), np.int64), "x/1": np.zeros((1, 4)), "ids/1": np.ones((1, 9), np.int32)}
    files = []
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        whole = io.BytesIO()
        with zipfile.ZipFile(whole, "w", method) as archive:
            for name, array in arrays.items():
                entry = io.BytesIO()
                np.save(entry, array)
                archive.writestr(f"{name}.npy", entry.getvalue())
        files.append(whole.getvalue())
    return tuple(files)


def outcome(content: bytes) -> int | str:
    """How many requests, or the reason; anything else that is raised fails the test."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "requests.npz"
        path.write_bytes(content)
        try:
            return len(read_calibration(path, INPUTS, 8)[0])
        except ProbeError as error:
            return error.reason


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    content = bytearray(draw(st.sampled_from(whole_files())))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.sampled_from(("flip", "cut", "take out", "insert"))):
            case "flip" if content:
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del content[at:]
            case "take out":
                del content[at : at + draw(st.integers(1, 20))]
            case _:
                content[at:at] = draw(st.binary(max_size=8))
    return bytes(content)


@settings(max_examples=400)
@given(damaged() | st.binary(max_size=300))
def test_any_file_is_read_or_refused(content: bytes) -> None:
    """Corrupt archives, headers and arrays."""
    found = outcome(content)
    assert isinstance(found, int) or found.startswith("Calibration")


@pytest.mark.parametrize("content", whole_files(), ids=["stored", "deflated", "bzip2", "lzma"])
def test_every_compression_is_read(content: bytes) -> None:
    """The files that the damaged ones are made from are whole."""
    assert outcome(content) == 2


def test_an_array_that_claims_more_than_there_is_memory_is_refused() -> None:
    """A header of 100 bytes that announces 4 EiB."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 30, 1 << 30)})
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("x/0.npy", header.getvalue())
        archive.writestr("ids/0.npy", header.getvalue())
    assert outcome(whole.getvalue()) == "CalibrationInvalid"
