"""Runtimes report nothing to their makers: no file for an identity or for events, no package for it, and no complaint where there is no room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.data import models

ROOT = Path(__file__).parents[3]
USE_BOTH = """
from metainfer_probe.backends import available_providers, find_backend
from metainfer_probe.backends.base import SessionOptions
from pathlib import Path
import sys
assert len(available_providers()) == 2
for provider in available_providers():
    find_backend(provider).open(Path(sys.argv[1]), SessionOptions()).close()
import openvino.tools.ovc, openvino.tools.ovc.telemetry_utils as used
print(used.tm.__name__)
"""


@pytest.mark.parametrize("home", ["writable", "read-only"])
def test_neither_runtime_leaves_a_trace(home: str, tmp_path: Path) -> None:
    """Both are loaded and used; their default is to keep an identity and a queue of events in the home directory."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o755 if home == "writable" else 0o555)
    where = str(tmp_path / "home") if home == "writable" or os.getuid() != 0 else "/proc/self"  # root writes everywhere else
    environment = {name: text for name, text in os.environ.items() if name not in ("CI", "XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY")}
    environment |= {"PYTHONPATH": str(ROOT / "probes"), "HOME": where, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", USE_BOTH, str(models.dense(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "openvino.tools.ovc.telemetry_stub\n"
    assert list((tmp_path / "home").rglob("*")) == []
