"""Trees from the store are checked before LightGBM's own reader, which trusts every index, sees them."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import lightgbm
import numpy as np
import pytest

from metainfer.predict.learned.tree_text import check_trees

FEATURES = 3
WALK = """
import json, sys
import lightgbm, numpy as np
from metainfer.predict.learned.tree_text import check_trees
table, loaded = np.array([[0.1, 2.0, 3.0], [float("nan")] * 3, [-1e9, 1e9, 400.0]]), 0
for text in json.load(open(sys.argv[1])):
    try:
        check_trees(text, 3)
    except ValueError:
        continue
    try:
        lightgbm.Booster(model_str=text).predict(table, num_threads=1)
        loaded += 1
    except lightgbm.basic.LightGBMError:
        pass
print(loaded)
"""


@pytest.fixture(scope="module")
def text() -> str:
    """Trees over two numbers and a category."""
    draw = np.random.default_rng(0)
    table = draw.normal(size=(500, FEATURES))
    table[:, 2] = draw.integers(0, 6, 500)
    target = table[:, 0] + (table[:, 2] == 3)
    parameters = {"num_leaves": 8, "verbosity": -1, "num_threads": 1, "min_data_per_group": 5}
    return str(lightgbm.train(parameters, lightgbm.Dataset(table, target, categorical_feature=[2]), 5).model_to_string())


def test_trees_as_they_are_written_pass(text: str) -> None:
    """With and without categories in a tree."""
    assert "cat_boundaries" in text
    check_trees(text, FEATURES)


@pytest.mark.parametrize(
    ("pattern", "replacement", "want"),
    [
        pytest.param(r"left_child=1", "left_child=0", "left_child", id="a node that is its own child"),
        pytest.param(r"right_child=(\d+)", "right_child=99", "right_child", id="a child that is not there"),
        pytest.param(r"right_child=(\d+)", "right_child=-77", "right_child", id="a leaf that is not there"),
        pytest.param(r"split_feature=\d+", "split_feature=7", "split_feature", id="a feature that nobody has"),
        pytest.param(r"num_leaves=8", "num_leaves=9", "num_leaves", id="more leaves than values"),
        pytest.param(r"cat_boundaries=0 [0-9]+", "cat_boundaries=0 99", "cat_boundaries", id="a set beyond the words"),
        pytest.param(r"is_linear=0", "is_linear=1", "is_linear", id="a kind of tree that we do not write"),
        pytest.param(r"max_feature_idx=2", "max_feature_idx=9", "max_feature_idx", id="more features than we have"),
        pytest.param(r"leaf_value=\S+", "leaf_value=nan", "leaf_value", id="a value that is no number"),
        pytest.param(r"tree_sizes=\d", "tree_sizes=9", "tree_sizes", id="a size that leads elsewhere"),
    ],
)
def test_what_would_lead_the_reader_astray_is_named(text: str, pattern: str, replacement: str, want: str) -> None:
    """The key is in the message. Sizes are kept right, so that the key itself is what is found."""
    changed, count = re.subn(pattern, replacement, text, count=1)
    assert count == 1
    with pytest.raises(ValueError, match=want):
        check_trees(changed if want == "tree_sizes" else with_sizes(changed), FEATURES)


def with_sizes(text: str) -> str:
    """The text with the sizes of its sections as they are."""
    starts = [mark.start() for mark in re.finditer(r"^Tree=", text, re.MULTILINE)]
    sizes = [after - start for start, after in zip(starts, [*starts[1:], text.index("\nend of trees") + 1], strict=True)]
    return re.sub(r"tree_sizes=.*", f"tree_sizes={' '.join(map(str, sizes))}", text, count=1)


def test_no_damage_whatever_ends_the_process(text: str, tmp_path: Path) -> None:
    """Numbers anywhere in the text are replaced; what passes the check is loaded and asked in a process of its own."""
    draw = random.Random(1)  # noqa: S311 - a draw, no secret
    numbers = list(re.finditer(r"-?\d+", text[: text.index("end of trees")]))
    damaged = [text]
    for _ in range(400):
        place = draw.choice(numbers)
        value = draw.choice(("-1", "0", "3", "7", "255", "65536", "-2147483648", "4294967295", "99999999999"))
        changed = text[: place.start()] + value + text[place.end() :]
        damaged.append(with_sizes(changed) if changed.count("Tree=") == text.count("Tree=") and draw.random() < 0.8 else changed)
    (tmp_path / "texts.json").write_text(json.dumps(damaged))
    done = subprocess.run([sys.executable, "-c", WALK, tmp_path / "texts.json"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert int(done.stdout.splitlines()[-1]) > 1
