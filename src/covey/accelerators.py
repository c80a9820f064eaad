"""The accelerator of this machine; torch has one name for all kinds since 2.6."""

from __future__ import annotations

import torch


def is_available() -> bool:
    """Whether there is one."""
    if hasattr(torch, "accelerator"):
        return torch.accelerator.is_available()
    return torch.cuda.is_available() or torch.backends.mps.is_available()


def synchronize() -> None:
    """Wait until it has done what it was given."""
    if hasattr(torch, "accelerator"):
        torch.accelerator.synchronize()
    elif torch.cuda.is_available():
        torch.cuda.synchronize()
    else:
        torch.mps.synchronize()
