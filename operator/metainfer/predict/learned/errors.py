"""Why there is no model: one error per way out, each with a reason that a condition can carry."""

from __future__ import annotations


class Untrainable(Exception):
    """The rows teach nothing; the caller keeps the model it has, or the bare base."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """PascalCase: NoRows, OneModel, BadColumns, NothingToLearn."""


class ModelUnreadable(Exception):
    """A stored model that must not be used; the caller falls back to the base."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """PascalCase: OtherVersion, Corrupted."""


class TableUnreadable(Exception):
    """A table that is not what it should be; the message names file, line or column, and what was expected."""
