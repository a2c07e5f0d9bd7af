"""Prints what one extra of pyproject.toml installs, one requirement a line.

The images install their dependencies from this list before they copy any source, so that neither a change of the code nor one
elsewhere in pyproject.toml downloads hundreds of megabytes again.

Usage: requirements.py PYPROJECT EXTRA [REPLACEMENT]; a replacement such as ``onnxruntime-gpu==1.31.1`` takes the place of the
requirement whose name it begins with.
"""

import re
import sys
import tomllib
from pathlib import Path


def name_of(requirement: str) -> str:
    """The distribution's name, as written before any version, extra or marker."""
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def requirements(pyproject: str, extra: str, replacement: str = "") -> list[str]:
    """The distribution's own requirements and those of the extra."""
    project = tomllib.loads(pyproject)["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"][extra]]
    if not replacement:
        return wanted
    kept = [item for item in wanted if not name_of(replacement).startswith(name_of(item))]
    if len(kept) == len(wanted):
        raise SystemExit(f"error: nothing in the extra '{extra}' is replaced by '{replacement}'")
    return [*kept, replacement]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]).read_text(encoding="utf-8"), *sys.argv[2:])))
