"""What can go wrong with the sample store, as types, and what to do about it. SQLAlchemy's and the driver's errors never leave this package."""

from __future__ import annotations


class StoreUnavailable(ConnectionError):
    """The store cannot be reached, read or written now; nothing was recorded.

    A ``ConnectionError``, so that layers which may not import the store can still tell it from a defect.
    """


class StoreVersionError(RuntimeError):
    """The store was written by a newer operator: this one does not know its tables and leaves them alone."""

    def __init__(self, *, store: str, found: str, known: str) -> None:
        super().__init__(
            f"sample store {store} has schema version {found}, this operator knows versions up to {known}: "
            "run the newer operator again, or give this one another store"
        )
        self.found = found
        self.known = known


class StoreUrlInvalid(ValueError):
    """The store's URL names no usable database; the message says what is wrong with it."""


class RowRefused(ValueError):
    """The database takes no such row, however often it is tried: a defect here, no outage there."""


_DAMAGED = "restore a backup, or move the file away and a new one is made"
_ADVICE = (
    ("damaged", _DAMAGED),
    ("malformed", _DAMAGED),
    ("not a database", _DAMAGED),
    ("disk is full", "enlarge the volume, or keep less"),
    ("disk I/O error", "see whether the volume is full or lost"),
    ("database is locked", "another process holds the file: end it"),
    ("readonly", "mount the volume writable"),
    ("unable to open", "mount the volume there, writable for the operator's user"),
    ("authentication failed", "correct user and password in the store's URL"),
    ("SSL", "make sslmode in the store's URL and the server's TLS settings fit together"),
    ("certificate", "give the server's CA as sslrootcert in the store's URL"),
    ("Connection refused", "start the database server, or correct host and port in the store's URL"),
)
"""Words of SQLite's and libpq's messages, the more telling ones first, and what cures them."""


def describe_outage(store: str, cause: str) -> str:
    """A sentence for logs and conditions: which store, what it said in one line, what to do."""
    said = " ".join(cause.split())
    advice = next((words for sign, words in _ADVICE if sign in said), "")
    return f"sample store {store}: {said}{f' ({advice})' if advice else ''}"
