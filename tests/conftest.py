from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch


def pytest_configure() -> None:
    torch.set_num_threads(1)
    # a process's first threaded call of these can be slightly off; numbers must repeat
    for function in (torch.sqrt, torch.tanh, torch.exp, torch.log, torch.erf):
        function(torch.ones(1))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
