"""An ensemble on its way to use: fused into one plain module, written to a file that needs no covey, measured."""

from .fusing import fuse

__all__ = ["fuse"]
