"""Names and labels of our objects, derived from their inputs: AlreadyExists then means 'done before a crash'. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from metainfer.api.v1alpha1.common import GROUP
from metainfer.decide.facts import Candidate

PURPOSE_LABEL: Final = f"{GROUP}/purpose"
POOL_LABEL: Final = f"{GROUP}/pool"
NODE_LABEL: Final = f"{GROUP}/node"
ADAPTATION_UID_LABEL: Final = f"{GROUP}/adaptation-uid"
RUN_LABEL: Final = f"{GROUP}/run"
NODE_ANNOTATION: Final = f"{GROUP}/node"
POOL_ANNOTATION: Final = f"{GROUP}/pool"
CARD_ANNOTATION: Final = f"{GROUP}/card"
"""On a probe Job: identity of the card that it was started for."""
CANDIDATE_ANNOTATION: Final = f"{GROUP}/candidate"
ADAPTATION_ANNOTATION: Final = f"{GROUP}/adaptation"
RESOURCES_ANNOTATION: Final = f"{GROUP}/resources"
"""Of a measuring Job: requests and limits that its container was given, so that a webhook's change is noticed."""
LABEL_VALUE_LIMIT = 63
HASHES_KEPT = 1 << 15
"""Each pass over a pool of 5,000 nodes asks for the same few hashes of each node; one costs as much as all else about the node."""


def short_hash(*parts: str, length: int = 10) -> str:
    """Hex digest of the parts; separators cannot be forged because each part is length-prefixed."""
    text = "".join(f"{len(part)}:{part}" for part in parts)
    return _digest(text)[:length]


def hash_share(*parts: str) -> float:
    """From 0 to 1, the same for the same parts: what spreads a fleet over time without chance."""
    return int(short_hash(*parts, length=8), 16) / 0xFFFFFFFF


@lru_cache(maxsize=HASHES_KEPT)
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def job_name(purpose: str, *inputs: str) -> str:
    """Deterministic, DNS-safe, at most 27 characters, so that pod names stay readable."""
    return f"mi-{purpose}-{short_hash(*inputs, length=14)}"


def label_value(text: str) -> str:
    """A label value for any name: itself, or its beginning and a hash when it is longer than 63 characters."""
    if len(text) <= LABEL_VALUE_LIMIT:
        return text
    return f"{text[:48].rstrip('-._')}-{short_hash(text)}"


def canonical_json(document: Mapping[str, Any]) -> str:
    """Compact JSON with sorted keys: equal documents have equal text."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)


def candidate_json(candidate: Candidate) -> str:
    """A candidate as it travels in a Job's annotation."""
    return canonical_json({"pool": candidate.pool, "family": candidate.family, "config": candidate.config.model_dump()})


def claim_of(uri: str) -> str | None:
    """The PersistentVolumeClaim that a pvc:// address names; None for any other."""
    return uri.removeprefix("pvc://").partition("/")[0] if uri.startswith("pvc://") else None
