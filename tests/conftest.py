from __future__ import annotations

import importlib.util
import os
import warnings
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

from vision import declare_operators


def pytest_configure() -> None:
    torch.set_num_threads(1)
    declare_operators()
    # a process's first threaded call of these can be slightly off; numbers must repeat
    for function in (torch.sqrt, torch.tanh, torch.exp, torch.log, torch.erf):
        function(torch.ones(1))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _steady_choice(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where members run as "auto" chooses, the loop wins, so that bits do not depend on how busy the machine is.

    All ways are still tried. `test_run` is about the choice itself.
    """
    if request.module.__name__ == "test_run":
        return
    standing = SimpleNamespace(perf_counter=lambda: 0.0)
    monkeypatch.setattr("covey.run.time", standing)


@pytest.fixture(scope="session")
def timm() -> Any:
    """The package, where it is installed."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("timm is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own
        import timm as package

    return package
