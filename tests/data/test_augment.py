"""Augmentation: each step against plain indexing, and the law that grouping does not matter."""

import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from covey.data import Augment, Data, Normalisation, Split, train_batch
from covey.data.augment import box, crop_and_flip, mix_targets, resized_crop
from covey.errors import OptionError

EVERYTHING = Augment(area=0.3, pad=2, flip=True, operations=2, cutout=5, mixup=0.4, cutmix=0.7)


def pictures(n=40, channels=3, size=(12, 14), classes=4):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (n, channels, *size), dtype=torch.uint8, generator=generator)
    split = Split(inputs, torch.arange(n) % classes)
    scale = Normalisation((0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels])
    names = tuple("abcdefgh"[:classes])
    return Data(split, split, split, "classification", names, (channels, *size), normalisation=scale)


@pytest.mark.parametrize(
    "augment",
    [
        Augment(),
        Augment(pad=2, flip=True),
        Augment(area=0.08),
        Augment(operations=3),
        Augment(cutout=4),
        Augment(mixup=0.3),
        Augment(cutmix=1.0),
        EVERYTHING,
    ],
)
def test_a_sample_is_treated_alike_in_every_batch(augment):
    data = pictures()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    whole, targets = train_batch(data, order, augment, seed=3, epoch=5)
    for size in (1, 7, 16):
        pieces = [train_batch(data, part, augment, seed=3, epoch=5) for part in order.split(size)]
        assert torch.equal(torch.cat([x for x, _ in pieces]), whole)
        assert torch.equal(torch.cat([y for _, y in pieces]), targets)


def test_epoch_seed_and_member_change_what_a_sample_becomes():
    data, order = pictures(), torch.arange(40)
    first, _ = train_batch(data, order, EVERYTHING, seed=0, epoch=0)
    for seed, epoch, member in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        other, _ = train_batch(data, order, EVERYTHING, seed=seed, epoch=epoch, member=member)
        alike = (first == other).flatten(1).all(1).sum()
        assert alike < 4


def test_a_batch_for_each_member_equals_the_members_one_by_one():
    data = pictures()
    indices = torch.randint(0, 40, (3, 8), generator=torch.Generator().manual_seed(2))
    indices[1] = indices[0]
    members = torch.arange(3)[:, None]
    inputs, targets = train_batch(data, indices, EVERYTHING, seed=0, epoch=0, member=members)
    assert inputs.shape == (3, 8, 3, 12, 14)
    assert targets.shape == (3, 8, 4)
    for k in range(3):
        alone, answers = train_batch(data, indices[k], EVERYTHING, seed=0, epoch=0, member=k)
        assert torch.equal(inputs[k], alone)
        assert torch.equal(targets[k], answers)
    assert not torch.equal(inputs[0], inputs[1])


def test_no_augmentation_is_normalisation():
    data = pictures()
    inputs, targets = train_batch(data, torch.arange(40), Augment(), seed=0, epoch=0)
    mean, std = np.array([0.4, 0.5, 0.6])[:, None, None], np.array([0.2, 0.3, 0.25])[:, None, None]
    expected = (data.train.inputs.numpy() / 255 - mean) / std
    np.testing.assert_allclose(inputs.numpy(), expected, atol=1e-5)
    assert torch.equal(targets, data.train.targets)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_crop_and_flip_is_slicing_of_the_padded_image(dtype):
    images = pictures(9).train.inputs.to(dtype)
    offsets = torch.tensor([[0, 0], [6, 6], [3, 3], [1, 5], [5, 1], [2, 4], [0, 6], [6, 0], [3, 2]])
    mirror = torch.arange(9) % 2 == 0
    got = crop_and_flip(images, 3, offsets, mirror)
    for k in range(9):
        padded = np.pad(images[k].numpy(), ((0, 0), (3, 3), (3, 3)))
        top, left = offsets[k].tolist()
        expected = padded[:, top : top + 12, left : left + 14]
        np.testing.assert_array_equal(got[k].numpy(), expected[:, :, ::-1] if mirror[k] else expected)


def test_offsets_and_flips_are_even():
    data = pictures(6000, channels=1, size=(3, 3))
    marker = torch.tensor([[0, 0, 0], [0, 255, 128], [0, 0, 0]], dtype=torch.uint8)
    data.train.inputs[:] = marker
    plain = dataclasses.replace(data, normalisation=Normalisation((0.0,), (1.0,)))
    shifted, _ = train_batch(plain, torch.arange(6000), Augment(pad=1), seed=0, epoch=0)
    places = (shifted == 1).sum(0)[0].double() / 6000  # the bright pixel lands on each of nine places
    assert places == pytest.approx(torch.full((3, 3), 1 / 9), abs=0.02)
    flipped, _ = train_batch(plain, torch.arange(6000), Augment(flip=True), seed=0, epoch=0)
    assert float((flipped[:, 0, 1, 0] > 0).double().mean()) == pytest.approx(0.5, abs=0.02)


def test_a_resized_crop_is_a_part_of_the_image_at_full_size():
    ramp = torch.arange(20.0).expand(2, 16, 20)  # every pixel is its column
    images = torch.stack((ramp, 3 * torch.arange(16.0)[:, None].expand_as(ramp)))
    whole = torch.tensor([[1.0, 0.5, 0.3, 0.9]] * 2, dtype=torch.float64)  # all of the area, square
    torch.testing.assert_close(resized_crop(images, whole, 0.08), images)
    u = torch.tensor([[0.3, 0.2, 0.7, 0.4]] * 2, dtype=torch.float64)
    cut = resized_crop(images, u, 0.1)
    area, aspect = 0.1 + 0.9 * 0.3, (4 / 3) ** (2 * 0.2 - 1)
    width, height = (area * aspect) ** 0.5, (area / aspect) ** 0.5
    columns = (torch.arange(20.0) + 0.5) * width + (1 - width) * 0.7 * 20 - 0.5
    rows = (torch.arange(16.0) + 0.5) * height + (1 - height) * 0.4 * 16 - 0.5
    torch.testing.assert_close(cut[0], columns.expand(2, 16, 20), rtol=0, atol=1e-4)
    torch.testing.assert_close(cut[1], 3 * rows[:, None].expand(2, 16, 20), rtol=0, atol=1e-4)
    bytes_ = resized_crop(images.to(torch.uint8), u, 0.1)
    assert bytes_.dtype == torch.uint8
    assert (bytes_.float() - cut).abs().max() <= 0.5 + 1e-4
    wide = torch.tensor([[1.0, 1.0, 0.5, 0.5]], dtype=torch.float64)  # wider than the image: cut to its width
    torch.testing.assert_close(resized_crop(images[:1], wide, 0.08)[0, 0, 0], torch.arange(20.0))


def test_cutout_sets_a_square_to_the_mean():
    data = pictures(500, channels=1, size=(12, 12))
    data.train.inputs[:] = 255
    plain = dataclasses.replace(data, normalisation=Normalisation((0.0,), (1.0,)))
    inputs, _ = train_batch(plain, torch.arange(500), Augment(cutout=4), seed=0, epoch=0)
    holes = (inputs == 0)[:, 0]
    assert int(holes.sum((1, 2)).max()) == 16
    assert int(holes.sum((1, 2)).min()) == 4  # a corner cuts the square down to 2 x 2
    rows, columns = holes.any(2).sum(1), holes.any(1).sum(1)
    assert torch.equal(rows * columns, holes.sum((1, 2)))  # always a rectangle


def test_box_by_hand():
    inside = box((4, 5), torch.tensor([[0.5, 4.0]]), torch.tensor(3.0))[0, 0]
    assert inside.int().tolist() == [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]


def test_mixup_mixes_inputs_and_targets_in_the_same_share():
    data = pictures(2000, channels=1, size=(2, 2), classes=2)
    values = (data.train.targets * 255).to(torch.uint8)
    data.train.inputs[:] = values[:, None, None, None]  # the image says its class
    plain = dataclasses.replace(data, normalisation=Normalisation((0.0,), (1.0,)))
    for augment in (Augment(mixup=0.4), Augment(cutmix=1.0), Augment(mixup=0.4, cutmix=1.0)):
        inputs, targets = train_batch(plain, torch.arange(2000), augment, seed=0, epoch=0)
        torch.testing.assert_close(targets.sum(1), torch.ones(2000))
        torch.testing.assert_close(inputs.mean((1, 2, 3)), targets[:, 1], atol=1e-5, rtol=0)
        assert float(targets[:, 1].mean()) == pytest.approx(0.5, abs=0.03)
    mixed, _ = train_batch(plain, torch.arange(2000), Augment(mixup=0.4), seed=0, epoch=0)
    assert bool((mixed.flatten(1).std(1) == 0).all())  # mixup blends, it does not paste


def test_mixed_targets_give_the_mixed_loss():
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    first, second = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([2, 2, 1, 0, 0])
    keep = torch.tensor([0.1, 0.5, 0.9, 0.3, 1.0])
    one, two = (
        F.cross_entropy(logits, first, reduction="none"),
        F.cross_entropy(logits, second, reduction="none"),
    )
    got = F.cross_entropy(logits, mix_targets(first, second, keep, 3), reduction="none")
    torch.testing.assert_close(got, keep * one + (1 - keep) * two)


def test_mixup_of_a_regression_mixes_numbers():
    split = Split(torch.arange(100.0)[:, None], 2 * torch.arange(100.0))
    data = Data(split, split, split, "regression", (), (1,))
    inputs, targets = train_batch(data, torch.arange(100), Augment(mixup=1.0), seed=0, epoch=0)
    torch.testing.assert_close(targets, 2 * inputs[:, 0])
    assert not torch.equal(inputs, split.inputs)


def test_images_only():
    split = Split(torch.zeros(4, 3), torch.zeros(4))
    data = Data(split, split, split, "regression", (), (3,))
    with pytest.raises(OptionError, match=r"augment.*: only for images; these inputs have shape \(3,\)"):
        train_batch(data, torch.arange(4), Augment(flip=True), seed=0, epoch=0)


def test_text_is_not_mixed():
    split = Split(torch.zeros(4, 3, dtype=torch.uint8), torch.zeros(4, 3, dtype=torch.uint8))
    data = Data(split, split, split, "language", ("a",) * 256, (3,))
    inputs, targets = train_batch(data, torch.arange(2), Augment(), seed=0, epoch=0)
    assert inputs.dtype == targets.dtype == torch.int64
    with pytest.raises(OptionError, match="not defined for text"):
        train_batch(data, torch.arange(4), Augment(mixup=0.2), seed=0, epoch=0)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"pad": -1}, "pad must not be negative"),
        ({"area": 1.5}, "area is a share from 0 to 1"),
        ({"magnitude": 11}, "from 0 to 10"),
        ({"switch": 2}, "from 0 to 1"),
    ],
)
def test_bad_options(bad, words):
    with pytest.raises(OptionError, match=words):
        Augment(**bad)
