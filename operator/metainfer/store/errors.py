"""What can go wrong with the sample store, as types. SQLAlchemy's and the driver's errors never leave this package."""

from __future__ import annotations


class StoreUnavailable(ConnectionError):
    """The store cannot be reached, read or written now; nothing was recorded.

    A ``ConnectionError``, so that layers which may not import the store can still tell it from a defect. The report that
    was to be recorded is still in its Job.
    """


class StoreVersionError(RuntimeError):
    """The store was written by a newer operator: this one does not know its tables and leaves them alone."""

    def __init__(self, *, store: str, found: int, known: int) -> None:
        super().__init__(
            f"sample store {store} has schema version {found}, this operator knows versions up to {known}: "
            "run the newer operator again, or give this one another store"
        )
        self.found = found
        self.known = known


class StoreUrlInvalid(ValueError):
    """The store's URL names no usable database; the message says what is wrong with it."""
