"""The reader of model files on damaged ones: a description or a reason, whatever bytes are in the file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.data import bad_models, models

from metainfer_probe.backends.base import ProbeError
from metainfer_probe.contract import INTEGER_LIMIT
from metainfer_probe.model_file import ModelFile, read_model
from metainfer_probe.portrait import describe
from metainfer_probe.summary import fit_summary

BUILDERS = (
    models.dense, models.quantized_dense, models.attention, models.token_tables, models.one_hot_by_hand, models.odd_outputs, models.compared_with,
    models.local_function_table, models.weights_among_inputs, models.batch_baked_in, bad_models.endless_loop, bad_models.hidden_bomb, bad_models.optional_input,
)  # fmt: skip


@cache
def whole_files() -> tuple[bytes, ...]:
    """One good file of each builder."""
    with TemporaryDirectory() as folder:
        return tuple(builder(Path(folder)).read_bytes() for builder in BUILDERS)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A file with bytes changed, taken out, doubled or replaced by numbers that protobuf reads as very large ones."""
    content = bytearray(draw(st.sampled_from(whole_files())))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        match draw(st.sampled_from(("flip", "cut", "take out", "double", "insert"))):
            case "flip" if content:
                content[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del content[at:]
            case "take out":
                del content[at : at + draw(st.integers(1, 20))]
            case "double":
                content[at:at] = content[at : at + draw(st.integers(1, 60))]
            case _:
                content[at:at] = draw(st.sampled_from((b"\xff" * 9 + b"\x01", b"\x80\x80\x80\x80\x10", b"\x00", b"\xc0\x80", b"\x7f")) | st.binary(max_size=8))
    return bytes(content)


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(damaged())
def test_any_file_is_described_or_refused(content: bytes) -> None:
    """And what is described fits into a report."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(content)
        outcome = attempt(path)
        assert isinstance(outcome, ModelFile) or outcome.message
        if isinstance(outcome, ModelFile):
            assert 0 <= outcome.weight_bytes <= INTEGER_LIMIT
            assert fit_summary(describe(outcome, (), None))
        else:
            assert not outcome.retryable


def attempt(path: Path) -> ModelFile | ProbeError:
    try:
        return read_model(path)
    except ProbeError as error:
        return error
