"""Loads a script of ``hack/bench``, whose name has no ending, as a module: so that its functions can be tested."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

HACK = Path(__file__).resolve().parents[1] / "hack"


def load_script(name: str) -> ModuleType:
    """The script of that name."""
    folder = HACK / "bench"
    sys.path[:0] = [path for path in (str(folder), str(HACK / "demo")) if path not in sys.path]
    loader = SourceFileLoader(f"bench_{name}", str(folder / name))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return module
