import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.data import load
from covey.data.splits import digest, fewer, proportional, stratified
from covey.errors import DataError


def test_each_class_has_its_share_in_each_part():
    targets = torch.tensor([0] * 100 + [1] * 40 + [2] * 10)[torch.randperm(150)]
    parts = stratified(targets, {"validation": 0.1, "test": 0.2}, seed=0, classes=("a", "b", "c"))
    counts = {part: torch.bincount(targets[rows]).tolist() for part, rows in parts.items()}
    assert counts == {"train": [70, 28, 7], "validation": [10, 4, 1], "test": [20, 8, 2]}
    assert sorted(torch.cat(list(parts.values())).tolist()) == list(range(150))


def test_same_seed_same_rows_other_seed_other_rows():
    targets = torch.arange(200) % 2
    first, again, other = (
        stratified(targets, {"validation": 0.2}, seed=s, classes=("a", "b"))["validation"] for s in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    # Independent draws of 40 out of 200 have 8 in common on average.
    assert len(set(first.tolist()) & set(other.tolist())) < 20


def test_numbers_are_split_without_strata():
    parts = stratified(torch.randn(1000), {"validation": 0.1, "test": 0.2}, seed=0, classes=None)
    assert [len(rows) for rows in parts.values()] == [700, 100, 200]


def test_a_class_with_too_few_samples():
    targets = torch.tensor([0] * 20 + [1] * 2)
    with pytest.raises(DataError, match="class 'rare' has only 2 samples, too few"):
        stratified(targets, {"validation": 0.1, "test": 0.2}, seed=0, classes=("common", "rare"))


@pytest.mark.parametrize("shares", [{"validation": 1.0}, {"validation": 0.5, "test": 0.5}, {"test": -0.1}])
def test_shares_that_leave_nothing(shares):
    with pytest.raises(DataError, match="at least 0 and below 1 in all"):
        stratified(torch.arange(10) % 2, shares, seed=0, classes=("a", "b"))


def test_digest_is_of_the_numbers():
    import hashlib

    expected = hashlib.sha256(bytes([1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0])).hexdigest()
    assert digest(torch.tensor([1, 258])) == expected


def test_the_record_is_json_and_tells_splits_apart():
    first, again, other = (load("digits", seed=s) for s in (0, 0, 1))
    assert json.loads(json.dumps(first.record)) == first.record
    assert first.record == again.record
    assert first.record["indices_sha256"]["train"] != other.record["indices_sha256"]["train"]
    assert first.record["counts"] == {"train": 1259, "validation": 179, "test": 359}


def test_no_validation():
    data = load("digits", validation=0.0)
    assert (len(data.train), len(data.validation), len(data.test)) == (1438, 0, 359)


def test_held_out_classes_are_nowhere_but_in_ood():
    whole, data = load("digits", validation=0.0), load("digits", held_out=(8, "9"))
    assert data.classes == tuple("01234567")
    assert set(data.train.targets.tolist()) == set(range(8))
    eights = torch.cat([s.inputs[s.targets >= 8] for s in (whole.train, whole.test)])
    assert len(data.ood["held-out"]) == len(eights) == 174 + 180  # scikit-learn's counts of 8 and 9

    def sizes(images):
        return sorted(images.flatten(1).long().sum(1).tolist())

    assert sizes(data.ood["held-out"]) == sizes(eights)


@pytest.mark.parametrize(
    ("held_out", "words"),
    [
        ((10,), "10, which is no class"),
        (tuple(range(9)), "leaves 1 of 10 classes"),
        (("x",), "'x', which is no class"),
    ],
)
def test_bad_held_out(held_out, words):
    with pytest.raises(DataError, match=words):
        load("digits", held_out=held_out)


def test_held_out_of_a_regression():
    with pytest.raises(DataError, match="the task is regression"):
        load("diabetes", held_out=(1,))


@given(
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=80).map(sorted),
    count=st.integers(1, 90),
    seed=st.integers(0, 99),
)
def test_a_subset_has_the_classes_in_proportion(labels, count, seed):
    labels = torch.tensor(labels)
    rows = proportional(len(labels), count, seed=seed, labels=labels)
    assert len(rows) == min(count, len(labels))
    assert rows.tolist() == sorted(set(rows.tolist()))
    whole, some = torch.bincount(labels, minlength=6), torch.bincount(labels[rows], minlength=6)
    present = whole > 0
    if count >= present.sum():
        assert (some[present] > 0).all(), "every class is there"
    # Taken class by class from the front, no class is further through than another by more than one sample.
    share_after, share_before = some[present] / whole[present], (some[present] - 1) / whole[present]
    assert share_before.max() <= share_after.min() + 1e-6
    larger = proportional(len(labels), count + 1, seed=seed, labels=labels)
    assert set(rows.tolist()) <= set(larger.tolist())


def test_fewer_samples_of_sorted_data():
    data = load("digits", held_out=(9,), seed=0)
    order = data.train.targets.argsort(stable=True)
    data = type(data)(**{**vars(data), "train": data.train.take(order)})
    small = fewer(data, 60, 0)
    counts = torch.bincount(small.train.targets)
    assert len(counts) == 9
    assert counts.min() >= 6
    assert counts.max() <= 7
    assert (len(small.validation), len(small.test), len(small.ood["held-out"])) == (60, 60, 60)
    assert small.record["counts"] == {"train": 60, "validation": 60, "test": 60}
    assert small.record["samples"] == 60
    assert small.record["ood"] == {"held-out": 60}
    assert json.loads(json.dumps(small.record)) == small.record
    digests = [
        fewer(data, n, s).record["indices_sha256"]["train"] for n, s in ((60, 0), (60, 0), (61, 0), (60, 1))
    ]
    assert digests[0] == digests[1]
    assert len({*digests, data.record["indices_sha256"]["train"]}) == 4
    everything = fewer(data, 10**6, 0)
    assert everything.record["indices_sha256"] == data.record["indices_sha256"]
    assert everything.train is data.train
    with pytest.raises(DataError, match="at least one sample of each part must stay; got 0"):
        fewer(data, 0, 0)
