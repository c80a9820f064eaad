"""Errors of surgery that a caller may want to tell from a plain ConversionError."""

from __future__ import annotations

from covey.errors import ConversionError


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
