"""A model as a JSON document and back. Trees are LightGBM's text, everything else numbers: nothing that is loaded can run.

The document carries the version of the features and a checksum of its content. What does not fit is refused with a reason before
any of it is used, so that the caller can fall back to the base.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import lightgbm
import numpy as np

from metainfer.predict.learned.boosting import Trees
from metainfer.predict.learned.errors import ModelUnreadable
from metainfer.predict.learned.features import FEATURE_VERSION, IDENTITY, NUMERIC, Vocabulary
from metainfer.predict.learned.model import Member, Model, Newness, Spread
from metainfer.predict.learned.network import Network
from metainfer.predict.learned.portrait import Portraits
from metainfer.predict.learned.tree_text import check_trees
from metainfer.predict.workload import CLASSES, Floats

FORMAT_VERSION = 1
PORTRAIT_COLUMNS = 2 * len(CLASSES) + 1


def model_to_document(model: Model) -> dict[str, Any]:
    """JSON-able; equal models give equal documents."""
    content = {
        "vocabulary": {name: list(words) for name, words in model.vocabulary.words.items()},
        "members": {name: _write_member(member) for name, member in model.members.items()},
        "weights": dict(model.weights),
        "shrinkage": dict(model.shrinkage),
        "spreads": {name: [spread.own, spread.by_disagreement, spread.by_distance] for name, spread in model.spreads.items()},
        "newness": {name: [item.keep, item.variance] for name, item in model.newness.items()},
        "portraits": model.portraits.points.tolist(),
        "metrics": dict(model.metrics),
    }
    return {"format_version": FORMAT_VERSION, "feature_version": FEATURE_VERSION, "sha256": _digest(content), "content": content}


def model_from_document(document: object) -> Model:
    """Raises ModelUnreadable: ``OtherVersion`` (made by another operator version), ``Corrupted`` (anything else that does not fit)."""
    if not isinstance(document, Mapping):
        raise ModelUnreadable("Corrupted", f"a stored model is a {type(document).__name__}, not a mapping")
    versions = (document.get("format_version"), document.get("feature_version"))
    if versions != (FORMAT_VERSION, FEATURE_VERSION):
        mine = (FORMAT_VERSION, FEATURE_VERSION)
        raise ModelUnreadable("OtherVersion", f"the stored model has format and feature version {versions}, this operator reads {mine}")
    content = document.get("content")
    if not isinstance(content, Mapping) or document.get("sha256") != _digest(content):
        raise ModelUnreadable("Corrupted", "the stored model's content does not have the checksum that was written with it")
    try:
        return _read(content)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, lightgbm.basic.LightGBMError) as error:
        raise ModelUnreadable("Corrupted", f"the stored model cannot be read: {type(error).__name__}: {error}"[:500]) from error


def _digest(content: object) -> object:
    try:
        return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
    except (TypeError, ValueError):
        return None


def _write_member(member: Member) -> dict[str, Any]:
    common = {"categories": list(member.categories), "family": member.family}
    if isinstance(member.learner, Trees):
        return {**common, "trees": member.learner.text}
    network = member.learner
    return {
        **common,
        "network": {
            "center": network.center.tolist(),
            "scale": network.scale.tolist(),
            "words": list(network.words),
            "weights": [array.tolist() for array in network.weights],
            "biases": [array.tolist() for array in network.biases],
        },
    }


def _read(content: Mapping[str, Any]) -> Model:
    vocabulary = Vocabulary({name: tuple(map(str, content["vocabulary"][name])) for name in IDENTITY})
    members = {str(name): _read_member(item, vocabulary) for name, item in content["members"].items()}
    spreads = {str(name): Spread(*map(_number, values)) for name, values in content["spreads"].items()}
    points = _array(content["portraits"], 2) if content["portraits"] else np.zeros((0, PORTRAIT_COLUMNS))
    if points.shape[1] != PORTRAIT_COLUMNS:
        raise ValueError(f"portraits have {points.shape[1]} columns, expected {PORTRAIT_COLUMNS}")
    return Model(
        vocabulary=vocabulary,
        members=members,
        weights={name: _number(content["weights"][name]) for name in members},
        shrinkage={name: _number(content["shrinkage"][name]) for name in spreads},
        spreads=spreads,
        portraits=Portraits(points),
        newness={str(name): Newness(*map(_number, values)) for name, values in content["newness"].items()},
        metrics={str(name): _number(value) for name, value in content["metrics"].items()},
    )


def _read_member(item: Mapping[str, Any], vocabulary: Vocabulary) -> Member:
    categories = tuple(map(str, item["categories"]))
    if not set(categories) <= set(IDENTITY):
        raise ValueError(f"categories {categories}, known are {IDENTITY}")
    learner = _read_trees(item["trees"], categories) if "trees" in item else _read_network(item["network"], categories, vocabulary)
    return Member(learner, categories, str(item["family"]))


def _read_trees(text: str, categories: tuple[str, ...]) -> Trees:
    check_trees(text, len(NUMERIC) + len(categories))
    named = lightgbm.Booster(model_str=text).feature_name()
    if named != [*NUMERIC, *categories]:
        raise ValueError(f"trees expect the features {', '.join(named)}, which are not those of this operator")
    return Trees(text)


def _read_network(item: Mapping[str, Any], categories: tuple[str, ...], vocabulary: Vocabulary) -> Network:
    words = tuple(int(count) for count in item["words"])
    weights, biases = tuple(_array(array, 2) for array in item["weights"]), tuple(_array(array, 1) for array in item["biases"])
    if words != tuple(len(vocabulary.words[name]) for name in categories):
        raise ValueError("the network's categories are not those of the vocabulary")
    widths = [len(NUMERIC) + sum(words), *(len(bias) for bias in biases)]
    if [array.shape for array in weights] != list(pairwise(widths)) or widths[-1] != 1:
        raise ValueError("the network's layers do not fit together")
    center, scale = _array(item["center"], 1), _array(item["scale"], 1)
    if len(center) != len(NUMERIC) or len(scale) != len(NUMERIC) or not np.all(scale > 0):
        raise ValueError("the network's scaling does not fit the features")
    return Network(center, scale, words, weights, biases)


def _array(values: object, dimensions: int) -> Floats:
    array = np.array(values, dtype=np.float64)
    if array.ndim != dimensions or not np.all(np.isfinite(array)):
        raise ValueError(f"expected {dimensions} dimensions of finite numbers, got {array.shape}")
    return array


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
        raise ValueError(f"expected a finite number, got {value!r}")
    return float(value)
