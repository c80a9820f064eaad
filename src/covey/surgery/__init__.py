"""Make a network narrower, or several networks into one, without knowing the architecture.

    small = narrow(network, 0.5, x)                       # half of every hidden width
    again = apply_edits(network, small.edits)             # the same, from what was recorded
    weights = slice_weights(network, small.channels, 0, 4)  # member 0's share of the trained channels
    one = pack(members, (x,), {})                         # M narrow networks as one with grouped layers

This is the package's only entrance: nothing outside it imports its modules. Names are looked up when they are first
used, because narrowing needs sympy, which would make `import covey` a quarter slower.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey.surgery.checks import check_runs
    from covey.surgery.edits import apply_edits
    from covey.surgery.errors import TooNarrowError, TorchChangedError
    from covey.surgery.narrowing import Narrowed, narrow
    from covey.surgery.packing import pack
    from covey.surgery.slices import Axis, slice_weights

__all__ = [
    "Axis",
    "Narrowed",
    "TooNarrowError",
    "TorchChangedError",
    "apply_edits",
    "check_runs",
    "narrow",
    "pack",
    "slice_weights",
]

_MODULES = {
    "Axis": "slices",
    "Narrowed": "narrowing",
    "TooNarrowError": "errors",
    "TorchChangedError": "errors",
    "apply_edits": "edits",
    "check_runs": "checks",
    "narrow": "narrowing",
    "pack": "packing",
    "slice_weights": "slices",
}


def __getattr__(name: str) -> Any:
    """Import the module that defines `name` (Python calls this for names that the package does not have yet)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES[name]}")
    return getattr(module, name)
