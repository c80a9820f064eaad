"""Narrow a network to a fraction of its width, and pack several narrow ones into one."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.surgery.edits import apply_edits
    from covey.surgery.sizes import TooNarrowError
    from covey.surgery.slices import Axis, slice_weights
    from covey.surgery.width import Narrowed, check_runs, narrow

__all__ = [
    "Axis",
    "Narrowed",
    "TooNarrowError",
    "apply_edits",
    "check_runs",
    "narrow",
    "slice_weights",
]

# imported when first used: narrowing needs sympy, a quarter of torch's import time
_HOMES = {
    "Axis": "slices",
    "Narrowed": "width",
    "TooNarrowError": "sizes",
    "apply_edits": "edits",
    "check_runs": "width",
    "narrow": "width",
    "slice_weights": "slices",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'covey.surgery' has no attribute {name!r}")
    return getattr(import_module(f"covey.surgery.{_HOMES[name]}"), name)
