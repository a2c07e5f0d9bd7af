"""Builders of rows that behave like measurements, without any noise but what a test asks for."""

from __future__ import annotations

import numpy as np

from metainfer.predict.learned.rows import Rows, make_rows

MODELS = tuple(f"model-{index}" for index in range(6))
CARDS = ("small", "large")
RUNTIMES = ("first", "second")


def make_measured(count: int = 600, *, seed: int = 0, noise: float = 0.02) -> Rows:
    """Products of known sizes on two cards of one family, where the second runtime takes half as long again as physics says."""
    random = np.random.default_rng(seed)
    rows = make_rows(count)
    rows["model"], rows["card"], rows["runtime"] = random.choice(MODELS, count), random.choice(CARDS, count), random.choice(RUNTIMES, count)
    rows["family"], rows["precision"], rows["regime"] = "family", "fp32", "execution"
    rows["batch"] = 2.0 ** random.integers(0, 6, count)
    size = 1.0 + np.searchsorted(np.array(MODELS), rows["model"])
    rows["macs"][:, 0], rows["weight_bytes"][:, 0] = 1e9 * size * rows["batch"], 4e6 * size
    rows["launches"], rows["launch_us"], rows["launch_floor_us"] = 10.0, 20.0, 2.0
    speed = np.where(rows["card"] == "large", 4.0, 1.0)
    rows["flop_per_us"], rows["bytes_per_us"], rows["is_probed"] = speed[:, None] * np.array([1e6, 3e6, 1e7, 2e7]), 1e5 * speed, 1.0
    rows["compute_us"][:, 0], rows["traffic_us"][:, 0] = 100 * size * rows["batch"] / speed, 40 * size / speed
    rows["base_us"] = rows["launch_us"] + np.maximum(rows["compute_us"][:, 0], rows["traffic_us"][:, 0])
    rows["latency_us"] = rows["base_us"] * np.where(rows["runtime"] == "second", 1.5, 1.0) * np.exp(noise * random.standard_normal(count))
    return rows
