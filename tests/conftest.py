from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

_operators: list[torch.library.Library] = []  # they live as long as the object that declared them


def pytest_configure() -> None:
    torch.set_num_threads(1)
    _declare_operators()
    # a process's first threaded call of these can be slightly off; numbers must repeat
    for function in (torch.sqrt, torch.tanh, torch.exp, torch.log, torch.erf):
        function(torch.ones(1))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def _declare_operators() -> None:
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


@pytest.fixture(scope="session")
def timm() -> Any:
    """The package, where it is installed."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own
        import timm as package

    return package
