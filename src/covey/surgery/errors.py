"""Errors of surgery that a caller may want to tell from a plain ConversionError."""

from __future__ import annotations

import torch

from covey.errors import ConversionError, CoveyError

TESTED_TORCH = "2.13"


class TooNarrowError(ConversionError):
    """The ratio is so small that a layer would be left with less than one channel.

    Args:
        layer: the tensor and axis, or the attribute, that would vanish.
        size: its size in the original network.
        ratio: new width over old width.
    """

    def __init__(self, layer: str, size: int, ratio: float) -> None:
        self.layer = layer
        self.smallest = 1 / size
        super().__init__(
            f"A ratio of {ratio:.4g} leaves '{layer}' (size {size}) without a channel; "
            f"the smallest ratio that works is 1/{size}."
        )


class TorchChangedError(CoveyError, RuntimeError):
    """The installed PyTorch lacks one of the private parts that surgery is built on.

    Args:
        hook: the full name of what is missing, or behaves otherwise than it did.
        purpose: what surgery uses it for, to follow "to".
    """

    def __init__(self, hook: str, purpose: str) -> None:
        self.hook = hook
        super().__init__(
            f"PyTorch {torch.__version__} no longer has {hook} as covey knows it, and covey needs it to {purpose}. "
            f"Narrowing and packing were tested with PyTorch {TESTED_TORCH}: install that version, or build the "
            "narrow network yourself (Packed(narrow=...)) and run the ensemble without pack()."
        )
