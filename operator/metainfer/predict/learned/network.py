"""A small multilayer perceptron as one member of a model: smooth where trees are steps. Weights are plain arrays.

Fitted by scikit-learn (Pedregosa et al., 2011); asked with nothing but numpy, so that a stored one needs no library and runs no code.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metainfer.predict.workload import Floats

HIDDEN = (48, 24)
EPOCHS = 12
OUTPUT_LIMIT = 3.0
"""Bound of a log residual: outside what it saw, a network may say anything."""
INPUT_LIMIT = 4.0
"""Standard deviations beyond which an input tells nothing more."""


@dataclass(frozen=True, slots=True)
class Network:
    """Layers of weights and biases with rectifiers between, on standardised numeric features and one-hot categories."""

    center: Floats
    scale: Floats
    words: tuple[int, ...]
    """Number of words of each category."""
    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]

    def predict(self, features: Floats) -> Floats:
        """One value per row; ``features`` are the numeric ones, then one column of codes per category (-1 = not known)."""
        signal = _inputs(features, self.center, self.scale, self.words)
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            signal = signal @ weight + bias
            if index < len(self.weights) - 1:
                signal = np.maximum(signal, 0.0)
        return np.asarray(np.clip(signal[:, 0], -OUTPUT_LIMIT, OUTPUT_LIMIT), dtype=np.float64)


def fit_network(features: Floats, target: Floats, words: Sequence[int], *, seed: int) -> Network:
    """A network for log residuals, the target bounded so that no outlier can pull it."""
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415  slow to import, and only training needs it
    from sklearn.neural_network import MLPRegressor  # noqa: PLC0415

    numeric = features[:, : features.shape[1] - len(words)]
    center, scale = numeric.mean(axis=0), np.maximum(numeric.std(axis=0), 1e-3)
    middle, spread = float(np.median(target)), 1.4826 * float(np.median(np.abs(target - np.median(target)))) + 1e-3
    learner = MLPRegressor(hidden_layer_sizes=HIDDEN, alpha=1e-3, batch_size=256, learning_rate_init=2e-3, max_iter=EPOCHS, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the number of epochs is the regularisation
        learner.fit(_inputs(features, center, scale, tuple(words)), np.clip(target, middle - 6 * spread, middle + 6 * spread))
    return Network(
        center=center,
        scale=scale,
        words=tuple(words),
        weights=tuple(np.asarray(array, dtype=np.float64) for array in learner.coefs_),
        biases=tuple(np.asarray(array, dtype=np.float64) for array in learner.intercepts_),
    )


def _inputs(features: Floats, center: Floats, scale: Floats, words: tuple[int, ...]) -> Floats:
    count = features.shape[1] - len(words)
    numeric = np.clip((features[:, :count] - center) / scale, -INPUT_LIMIT, INPUT_LIMIT)
    hot = [features[:, count + index, None] == np.arange(size)[None, :] for index, size in enumerate(words)]
    return np.concatenate([numeric, *(item.astype(np.float64) for item in hot)], axis=1)
