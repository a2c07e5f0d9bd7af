from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.predict.learned.make_measured import make_measured

from metainfer.predict.learned.document import _digest, model_from_document, model_to_document
from metainfer.predict.learned.errors import ModelUnreadable
from metainfer.predict.learned.model import Model
from metainfer.predict.learned.training import NETWORK_ROWS, train


@pytest.fixture(scope="module")
def model() -> Model:
    return train(make_measured(NETWORK_ROWS), seed=1)


@pytest.fixture(scope="module")
def text(model: Model) -> str:
    return json.dumps(model_to_document(model))


def test_a_model_survives_its_document(model: Model, text: str) -> None:
    """Trees and network say the same after a trip through JSON."""
    rows = make_measured(100, seed=9)
    back = model_from_document(json.loads(text))
    assert np.array_equal(back.predict(rows).log_latency_us, model.predict(rows).log_latency_us)
    assert np.array_equal(back.predict(rows).sigma, model.predict(rows).sigma)
    assert json.dumps(model_to_document(back)) == text


def changed(text: str, path: tuple[str, ...], value: Any, *, sign: bool = True) -> dict[str, Any]:
    """The document with one place changed, and (``sign``) a checksum that fits the change."""
    document: dict[str, Any] = json.loads(text)
    place = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    if sign:
        document["sha256"] = _digest(document["content"])
    return document


@pytest.mark.parametrize(
    ("path", "value", "sign", "want_reason"),
    [
        pytest.param(("feature_version",), 999, False, "OtherVersion", id="other features"),
        pytest.param(("format_version",), 999, False, "OtherVersion", id="other format"),
        pytest.param(("sha256",), "0" * 64, False, "Corrupted", id="wrong checksum"),
        pytest.param(("content", "metrics", "rows"), 1.0, False, "Corrupted", id="content changed after signing"),
        pytest.param(("content",), [1, 2], True, "Corrupted", id="content of another kind"),
        pytest.param(("content", "members", "global", "trees"), "tree\nversion=v4\nnonsense", True, "Corrupted", id="trees that are no trees"),
        pytest.param(("content", "members", "global", "trees"), "", True, "Corrupted", id="no trees"),
        pytest.param(("content", "members", "global", "categories"), ["card", "runtime"], True, "Corrupted", id="other features of trees"),
        pytest.param(("content", "members", "global", "categories"), ["nonsense"], True, "Corrupted", id="unknown category"),
        pytest.param(("content", "members", "network", "network", "biases"), [[0.0]], True, "Corrupted", id="layers that do not fit"),
        pytest.param(("content", "members", "network", "network", "scale"), [0.0], True, "Corrupted", id="scaling that does not fit"),
        pytest.param(("content", "weights"), {}, True, "Corrupted", id="no weights"),
        pytest.param(("content", "weights"), {"global": "much", "network": 1.0}, True, "Corrupted", id="weights that are words"),
        pytest.param(("content", "portraits"), [[1.0, 2.0]], True, "Corrupted", id="portraits of another length"),
        pytest.param(("content", "spreads"), {"execution": [1.0, 2.0, 3.0, 4.0]}, True, "Corrupted", id="spreads of another length"),
        pytest.param(("content", "vocabulary"), {}, True, "Corrupted", id="no vocabulary"),
    ],
)
def test_a_document_that_does_not_fit_is_refused_with_a_reason(text: str, path: tuple[str, ...], value: Any, sign: bool, want_reason: str) -> None:
    """Nothing half-read is ever used: the caller falls back to the base."""
    with pytest.raises(ModelUnreadable) as refused:
        model_from_document(changed(text, path, value, sign=sign))
    assert refused.value.reason == want_reason


@settings(deadline=None, max_examples=25)
@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=8), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner)))
def test_anything_else_is_refused_too(document: object) -> None:
    """Whatever JSON a store returns, the answer is a typed refusal."""
    with pytest.raises(ModelUnreadable):
        model_from_document(document)


@settings(deadline=None, max_examples=10)
@given(place=st.floats(0, 1, exclude_max=True), letter=st.characters(min_codepoint=32, max_codepoint=126))
def test_a_flipped_letter_is_noticed(text: str, place: float, letter: str) -> None:
    """The checksum covers everything that is used."""
    index = int(place * len(text))
    broken = text[:index] + letter + text[index + 1 :]
    try:
        document = json.loads(broken)
    except ValueError:
        return
    if document == json.loads(text):
        return
    with pytest.raises(ModelUnreadable):
        model_from_document(document)
