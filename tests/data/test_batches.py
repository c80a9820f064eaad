import pytest
import torch

from covey.data import batches, epoch_order
from covey.errors import OptionError


def test_every_sample_comes_once_and_the_last_batch_is_used():
    seen = list(batches(10, 4, seed=0, epoch=3))
    assert [len(b) for b in seen] == [4, 4, 2]
    assert sorted(torch.cat(seen).tolist()) == list(range(10))


def test_resuming_in_the_middle_gives_the_same_rest():
    whole = [b.tolist() for b in batches(100, 7, seed=5, epoch=2)]
    for start in range(len(whole) + 1):
        assert [b.tolist() for b in batches(100, 7, seed=5, epoch=2, start=start)] == whole[start:]


def test_epochs_and_seeds_differ():
    orders = [epoch_order(50, seed=s, epoch=e).tolist() for s, e in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert len({tuple(order) for order in orders}) == 4


def test_order_on_disk_without_shuffle():
    assert torch.cat(list(batches(9, 2, seed=0, epoch=0, shuffle=False))).tolist() == list(range(9))


@pytest.mark.parametrize(("n", "size"), [(0, 4), (4, 0)])
def test_nothing_to_batch_is_refused(n, size):
    with pytest.raises(OptionError, match="at least one sample and a size of at least 1"):
        next(batches(n, size, seed=0, epoch=0))
