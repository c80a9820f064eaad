"""torchvision without its compiled operators, as it is on machines without a GPU."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

_operators: list[torch.library.Library] = []  # they live as long as the object that declared them


def declare_operators() -> None:
    """Declare what torchvision asks torch for on import, where its compiled operators cannot be loaded.

    transformers, torchmetrics and timm import it. Nothing here calls the operators.
    """
    vision = importlib.util.find_spec("torchvision")
    if vision is None or _operators:
        return
    for library in Path(str(vision.origin)).parent.glob("_C*"):
        try:
            torch.ops.load_library(library)
        except OSError:  # built for another torch, as it is on machines without a GPU
            continue
        return
    _operators.append(torch.library.Library("torchvision", "FRAGMENT"))
    for operator in ("nms", "qnms"):
        _operators[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
