"""The garbage collector is held back during a conversion, and only then."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import covey
from covey.garbage import RARE, rarely_collected


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_rarely_in_the_block_and_as_before_after_it() -> None:
    with rarely_collected():
        assert gc.get_threshold() == RARE
        with rarely_collected():
            assert gc.get_threshold() == RARE
        assert gc.get_threshold() == RARE
    assert gc.get_threshold() == (700, 10, 10)


def test_as_before_after_an_error() -> None:
    with pytest.raises(ValueError, match="on purpose"), rarely_collected():
        raise ValueError("on purpose")
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [(0, 10, 10), (1_000_000, 5, 5)])
def test_who_collects_less_often_keeps_to_that(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with rarely_collected():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_blocks_of_threads_that_overlap() -> None:
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with rarely_collected():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with rarely_collected():
        thread.start()
        assert inside.wait(10)
    assert gc.get_threshold() == RARE  # the other block goes on
    leave.set()
    thread.join()
    assert gc.get_threshold() == (700, 10, 10)


def test_a_conversion_is_such_a_block() -> None:
    seen = []

    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(gc.get_threshold())
            return self.layer(x)

    covey.convert(Looks(), covey.DeepEnsemble(members=2), example=torch.zeros(4, 3))
    assert set(seen) == {RARE}
    assert gc.get_threshold() == (700, 10, 10)
