"""The kinds of error that covey raises, each a sentence with what was expected, what came and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CoveyError(Exception):
    """Base class of all errors that covey raises on purpose."""


class OptionError(CoveyError, ValueError):
    """An option has a value that cannot work.

    Args:
        message: what is wrong.
        setting: the option's name, where the message begins with it; the command line writes its flag instead.
    """

    def __init__(self, message: str = "", *, setting: str | None = None) -> None:
        super().__init__(message)
        self.setting = setting


class ConversionError(CoveyError, ValueError):
    """A network cannot be converted by this method as asked."""


class CollapseError(CoveyError, RuntimeError):
    """The members cannot be averaged into one network."""


class StoreError(CoveyError, RuntimeError):
    """A folder cannot be written, or does not hold what it should."""


class DataError(CoveyError, ValueError):
    """Data are missing, broken or do not fit the task."""


class MissingExtraError(CoveyError, ImportError):
    """A package is not installed that only this part of covey needs."""


class TrainingError(CoveyError, RuntimeError):
    """Training cannot go on."""


class EvaluationError(CoveyError, ValueError):
    """A score is not defined for what was given."""


_FEW = 12
"""So many names are listed where none is near."""


def reason(error: OSError) -> str:
    """What the system says of a failure, without numbers and the names of files.

    >>> reason(PermissionError(13, "Permission denied", "/etc/x"))
    'permission denied'
    """
    return (error.strerror or str(error) or type(error).__name__).lower()


def suggest(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """A clause that names the nearest known names, to end an error message with.

    Names that are alike in a smaller share of their letters than `cutoff` are not near.

    >>> suggest("fc.wieght", ["fc.weight", "conv.weight", "conv.bias"])
    "; the nearest names are 'fc.weight', 'conv.weight'"
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=cutoff)
    if near:
        return "; the nearest names are " + ", ".join(map(repr, near))
    if 0 < len(known) <= _FEW:
        return "; there are " + ", ".join(map(repr, known))
    return ""
