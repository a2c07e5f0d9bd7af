"""What can go wrong at the API server, as types: whether another try can help is a class, never a string to search.

Built from the server's ``Status`` objects; nobody else looks at HTTP codes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

_CONFLICT_WITH = re.compile(r'conflict with ("(?:[^"\\]|\\.)*")')
"""The manager's name, quoted as Go quotes."""
_WORDS_LIMIT = 1024
"""Characters of a server's message that are kept; longer ones only repeat the rejected object."""


class ApiError(Exception):
    """The API server refused, or could not be asked (status 0)."""

    retryable: ClassVar[bool] = False
    """Whether the same request can succeed later without anybody changing anything."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{reason or status}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """No such object, or no such kind (its CRD is not installed)."""


class AlreadyExists(ApiError):
    """An object of that name is there: with derived names, the work was done before."""


class Conflict(ApiError):
    """The resourceVersion or UID given is not the present one: somebody else moved. Read again, decide again."""

    retryable = True


@dataclass(frozen=True, slots=True)
class FieldOwner:
    """A field that server-side apply did not take over, and who has it."""

    field: str
    manager: str


class FieldConflict(ApiError):
    """Server-side apply met fields of other managers. Asking again does not help; ``causes`` name them."""

    def __init__(self, status: int, reason: str, message: str, causes: tuple[FieldOwner, ...]) -> None:
        super().__init__(status, reason, message)
        self.causes = causes


class Forbidden(ApiError):
    """RBAC, an admission rule or a quota says no; the message says which."""


class Unauthorized(ApiError):
    """The credentials are not (or no longer) accepted; new ones are read before the next request."""

    retryable = True


class Invalid(ApiError):
    """The object or request breaks the schema; the message names the field."""


class Expired(ApiError):
    """410: a continue token or resourceVersion is too old. List from the start."""

    retryable = True


class TooManyRequests(ApiError):
    """The server asks for a pause of ``retry_after`` seconds (None = it did not say how long)."""

    retryable = True

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(status, reason, message)
        self.retry_after = retry_after


class ServerUnavailable(ApiError):
    """5xx, no connection, or no answer in time. Whether a write happened is not known."""

    retryable = True


def is_webhook_down(error: ApiError) -> bool:
    """Whether an admission webhook did not answer: the server is well, and says 500 for as long as the webhook is gone."""
    return error.status >= 500 and "failed calling webhook" in error.message


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
}


def build_error(status: int, body: Mapping[str, Any], retry_after: float | None = None) -> ApiError:
    """The error for an HTTP status >= 400 and the ``Status`` object (or nothing) that came with it. Pure."""
    reason = str(body.get("reason") or "")
    message = str(body.get("message") or f"HTTP {status}")[:_WORDS_LIMIT]
    if status == 429:
        return TooManyRequests(status, reason, message, retry_after)
    if status == 409 and reason == "AlreadyExists":
        return AlreadyExists(status, reason, message)
    if status == 409 and (owners := _find_owners(body)):
        return FieldConflict(status, reason, message, owners)
    if status >= 500:
        return ServerUnavailable(status, reason, message)
    return _BY_STATUS.get(status, ApiError)(status, reason, message)


def _find_owners(body: Mapping[str, Any]) -> tuple[FieldOwner, ...]:
    causes = (body.get("details") or {}).get("causes") or ()
    return tuple(
        FieldOwner(str(cause.get("field") or ""), _manager(str(cause.get("message") or "")))
        for cause in causes
        if cause.get("reason") == "FieldManagerConflict"
    )


def _manager(message: str) -> str:
    found = _CONFLICT_WITH.search(message)
    if found is None:
        return message
    try:
        return str(json.loads(found.group(1)))
    except ValueError:
        return found.group(1)
