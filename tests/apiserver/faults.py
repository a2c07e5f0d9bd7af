"""One request as the journal keeps it, and one misbehaviour of the fault proxy. Values only: ``fault_proxy`` acts on them."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

Raw = dict[str, Any]
Verb = Literal["get", "list", "watch", "log", "create", "apply", "patch", "put", "delete"]

_ADDRESS = re.compile(
    r"^/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?$"
)
_WRITES = {"POST": "create", "PUT": "put", "DELETE": "delete"}
NO_CONNECTION = "no connection"
"""The fault of every request while everybody is cut off."""
_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(slots=True)
class Entry:
    """One request: what was asked, what the server did (``status``; 0 = it never saw it), what the client was told (0 = nothing)."""

    number: int
    at: float
    """Seconds of the monotonic clock."""
    method: str
    path: str
    verb: Verb
    plural: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    query: dict[str, list[str]] = field(default_factory=dict)
    digest: str = ""
    """First twelve hex digits of the body's SHA-256."""
    body: Any = None
    status: int = 0
    told: int = 0
    fault: str = ""
    version_before: str = ""
    version_after: str = ""
    uid: str = ""
    """Of the object that the server answered a write with."""

    @property
    def writes(self) -> bool:
        """Whether it is meant to change something."""
        return self.verb in ("create", "apply", "patch", "put", "delete")

    @property
    def changes(self) -> bool:
        """Whether it is a write to an object that is there. Events are left out: saying something again raises their count."""
        return self.verb in ("apply", "patch", "put") and self.plural != "events" and bool(self.name)

    @property
    def took_effect(self) -> bool:
        """Whether the server accepted it, whatever the client was told."""
        return 200 <= self.status < 300

    @property
    def object_path(self) -> str:
        """Address of the object without its subresource."""
        path = urlsplit(self.path).path
        return path.removesuffix(f"/{self.subresource}") if self.subresource else path

    @property
    def label(self) -> str:
        """What is written or read, in two words or three: ``create jobs``, ``patch modeladaptations/status``."""
        return f"{self.verb} {self.plural}{f'/{self.subresource}' if self.subresource else ''}"

    def note_answer(self, data: bytes) -> None:
        """Keep version and UID of the object that a write was answered with."""
        if not self.writes or not self.took_effect:
            return
        metadata = (json.loads(data) or {}).get("metadata") or {}
        self.version_after, self.uid = str(metadata.get("resourceVersion", "")), str(metadata.get("uid", ""))

    def line(self, since: float = 0.0) -> str:
        """As it is shown to people."""
        told = self.told or "nothing"
        versions = f" version {self.version_before} -> {self.version_after}" if self.version_after else ""
        fault = f"  FAULT {self.fault}" if self.fault else ""
        return f"#{self.number} {self.at - since:+.2f}s {self.method} {self.path} body {self.digest} server {self.status} told {told}{versions}{fault}"


def _nothing(_: Entry) -> None:
    return


@dataclass(slots=True)
class Fault:
    """One misbehaviour, armed for the next request that it fits.

    ``before``: the server never sees the request (``pass``: sees it ``seconds`` later); ``after``: it took effect, and the client is told
    otherwise or nothing. ``cut`` and ``error`` are for watches: the stream ends after ``seconds``, or begins with an ERROR event.
    """

    words: str
    fits: Callable[[Entry], bool]
    does: Literal["answer", "drop", "pass", "cut", "error"]
    when: Literal["before", "after"] = "before"
    status: int = 0
    seconds: float = 0.0
    skip: int = 0
    """Fitting requests that go by first."""
    spring: Callable[[Entry], None] = _nothing
    """Called at that moment."""

    @property
    def is_about_a_stream(self) -> bool:
        """Whether it disturbs an open watch, not a request."""
        return self.does in ("cut", "error")


def read_entry(method: str, raw_path: str, body: bytes, *, number: int) -> Entry:
    """A request as the journal begins it."""
    address = urlsplit(raw_path)
    query = parse_qs(address.query)
    found = _ADDRESS.match(address.path)
    parts = {key: value or "" for key, value in found.groupdict().items()} if found else {}
    verb = _find_verb(method, parts, query)
    keeps = verb in ("create", "apply", "patch", "put")
    return Entry(
        number=number,
        at=time.monotonic(),
        method=method,
        path=raw_path,
        verb=verb,
        query=query,
        digest=hashlib.sha256(body).hexdigest()[:12] if body else "-",
        body=json.loads(body) if keeps and body else None,
        **parts,
    )


def _find_verb(method: str, parts: dict[str, str], query: dict[str, list[str]]) -> Verb:
    if method == "PATCH":
        return "apply" if "force" in query else "patch"
    if method != "GET":
        return _WRITES.get(method, "get")  # type: ignore[return-value]  # the values are verbs
    if query.get("watch") == ["true"]:
        return "watch"
    if parts.get("subresource") == "log":
        return "log"
    return "get" if parts.get("name") or not parts else "list"


def build_status(status: int) -> Raw:
    """The answer of an API server that refuses."""
    reason = _REASONS.get(status, "Unknown")
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason, "message": "made up by the proxy", "code": status}
