"""Augmentation on whole batches, in tensors.

Every random number comes from (seed, epoch, sample, member) by `keyed`, so a sample is treated alike in
whatever batch and process it turns up. For mixup and cutmix that means that a sample's partner is drawn from
the whole training set, not from its batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map

from covey.data import keyed
from covey.data.container import IGNORED, Data
from covey.data.randaugment import rand_augment
from covey.errors import OptionError
from covey.seeds import random_state_kept, seed_of

Keys = tuple[int | Tensor, ...]

# A purpose's own number, so that no two draws of one sample are the same bits.
_CROP, _FLIP, _CUTOUT, _RAND, _PARTNER, _MIX, _BOX, _AREA = range(10, 18)


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What happens to a training batch, in this order; the defaults do nothing.

    Args:
        area: least share of the image's area that is cut out at random and brought to full size, with an aspect from
            3/4 to 4/3 (ImageNet: 0.08); 0 for none.
        pad: pixels of zeros around the image before a crop of the old size is taken from it (CIFAR: 4).
        flip: mirror half of the images.
        operations: RandAugment's operations on each image (n), each done with probability 1/2.
        magnitude: RandAugment's mean magnitude (m), 0 to 10.
        spread: standard deviation of the magnitude (mstd).
        cutout: side of the square that is set to the mean, in pixels.
        mixup: alpha of the Beta distribution of mixup; 0 for none.
        cutmix: the same of cutmix. With both, each sample gets one of them.
        switch: share of samples that get cutmix where both are on.
    """

    area: float = 0.0
    pad: int = 0
    flip: bool = False
    operations: int = 0
    magnitude: float = 9.0
    spread: float = 1.0
    cutout: int = 0
    mixup: float = 0.0
    cutmix: float = 0.0
    switch: float = 0.5

    def __post_init__(self) -> None:
        for name in ("pad", "operations", "cutout", "mixup", "cutmix", "spread"):
            if getattr(self, name) < 0:
                raise OptionError(f"augment.{name} must not be negative; got {getattr(self, name)}")
        if not 0 <= self.area <= 1:
            raise OptionError(f"augment.area is a share from 0 to 1; got {self.area}")
        if not 0 <= self.magnitude <= 10:
            raise OptionError(f"augment.magnitude is a number from 0 to 10; got {self.magnitude}")
        if not 0 <= self.switch <= 1:
            raise OptionError(f"augment.switch is a share from 0 to 1; got {self.switch}")

    def asked(self, *names: str) -> list[str]:
        """Which of these are switched on."""
        return [f"augment.{name}" for name in names if getattr(self, name)]

    @property
    def for_images(self) -> list[str]:
        """What is asked for that only images have: anything but mixup."""
        return self.asked("area", "pad", "flip", "operations", "cutout", "cutmix")

    @property
    def moves_pixels(self) -> list[str]:
        """What is asked for that a class of each pixel could not follow."""
        return self.asked("area", "operations", "mixup", "cutmix")


def train_batch(
    data: Data, indices: Tensor, augment: Augment, *, seed: int, epoch: int, member: int | Tensor = 0
) -> tuple[Any, Tensor]:
    """Training samples as a network takes them: augmented, normalised and mixed.

    Args:
        data: the data set; the samples are those of `data.train`.
        indices: sample numbers, (B,), or (M, B) where each member has a batch of its own.
        augment: what to do.
        seed: with the rest it fixes every random number.
        epoch: epochs done before this one.
        member: a further key, broadcast with `indices`; `torch.arange(M)[:, None]` lets members that see the
            same sample see it differently.

    Returns:
        Inputs (*indices.shape, ...), a tensor or a tuple or dict of them as the data have it, and targets
        (*indices.shape, ...): as stored, or with mixup or cutmix a table of probabilities (*indices.shape, C) for
        classes.
    """
    if augment.for_images and len(data.shape) != 3:
        raise OptionError(
            f"{', '.join(augment.for_images)}: only for images; these inputs have shape {data.shape}. Of all "
            "augmentations, mixup alone is for any inputs"
        )
    if data.task == "segmentation" and augment.moves_pixels:
        raise OptionError(
            f"{', '.join(augment.moves_pixels)}: would change images and not the classes of their pixels; "
            "leave it out. pad and flip change both"
        )
    if (augment.mixup or augment.cutmix) and not (data.shape and data.train.by_number):
        raise OptionError(
            "mixup and cutmix mix a sample's one tensor with any other's of the training data; inputs of "
            "several tensors, and streams of batches, have none to draw. Switch them off"
        )
    flat = indices.reshape(-1)
    who = member.expand(indices.shape).reshape(-1) if isinstance(member, Tensor) else member
    if data.train.in_memory and data.transform is None:
        inputs, targets = _made(data, flat, augment, (seed, epoch, who))
    else:  # a data set's own code and a transform may draw from torch's random numbers, which must repeat
        with random_state_kept(seed=seed_of(seed, "batch", epoch, *flat[:1].tolist(), len(flat))):
            inputs, targets = _made(data, flat, augment, (seed, epoch, who))
    if indices.ndim == 1:
        return inputs, targets
    return tree_map(lambda leaf: _in_shape(leaf, indices.shape), (inputs, targets))


def _made(data: Data, flat: Tensor, augment: Augment, keys: Keys) -> tuple[Any, Tensor]:
    inputs, targets = _augmented(data, flat, augment, keys)
    if augment.mixup or augment.cutmix:
        return _mixed(data, flat, inputs, targets, augment, keys)
    return inputs, targets


def _in_shape(leaf: Any, shape: torch.Size) -> Any:
    """A batch's tensor (M B, ...) as (M, B, ...); what is no tensor of samples stays as it is."""
    return leaf.reshape(*shape, *leaf.shape[1:]) if isinstance(leaf, Tensor) and leaf.ndim else leaf


def _augmented(data: Data, indices: Tensor, augment: Augment, keys: Keys) -> tuple[Any, Tensor]:
    """Samples (B,) after everything that concerns one image at a time."""
    inputs, targets = data.train.read(indices)
    if augment.area:
        inputs = resized_crop(inputs, keyed.uniform(indices, (*keys, _AREA), 4), augment.area)
    if augment.pad or augment.flip:
        offsets = _whole(keyed.uniform(indices, (*keys, _CROP), 2), 2 * augment.pad + 1)
        mirror = (keyed.uniform(indices, (*keys, _FLIP))[:, 0] < 0.5) & augment.flip
        inputs = crop_and_flip(inputs, augment.pad, offsets, mirror)
        if data.task == "segmentation":
            # What the crop shows beyond the image has no class: there, and only there, the shifted mask is 0.
            shifted = crop_and_flip(targets[:, None].short() + 1, augment.pad, offsets, mirror)[:, 0]
            targets = torch.where(shifted > 0, shifted - 1, IGNORED).to(targets.dtype)
    if augment.operations:
        inputs = rand_augment(
            inputs, indices, (*keys, _RAND), augment.operations, augment.magnitude, augment.spread
        )
    inputs = data.prepare(inputs)
    if augment.cutout:
        height, width = inputs.shape[-2:]
        u = keyed.uniform(indices, (*keys, _CUTOUT), 2)
        inside = box(inputs.shape[-2:], u * u.new_tensor([height, width]), u.new_tensor(augment.cutout))
        inputs = inputs.masked_fill(inside, 0.0)
    if data.transform is not None:
        inputs = data.transform(inputs)
        if inputs is None:
            raise OptionError("transform returned None; expected the inputs of the batch as they should be.")
    return inputs, targets.long() if data.task == "language" else targets


def resized_crop(images: Tensor, u: Tensor, least: float) -> Tensor:
    """Parts of the images brought to full size, by bilinear interpolation.

    Args:
        images: (B, C, H, W).
        u: uniform numbers, (B, 4): area, aspect (width over height), column and row of the part.
        least: smallest share of the area; sides that would be longer than the image's are cut to it.
    """
    area = least + (1 - least) * u[:, 0]
    aspect = torch.exp((2 * u[:, 1] - 1) * math.log(4 / 3))
    width, height = torch.sqrt(area * aspect), torch.sqrt(area / aspect)
    sides = torch.stack((width, height), 1).clamp_max(1.0)
    centres = (1 - sides) * (2 * u[:, 2:] - 1)  # in the interpolation's coordinates, from -1 to 1
    where = torch.cat((torch.diag_embed(sides), centres[:, :, None]), 2)
    grid = F.affine_grid(where, list(images.shape), align_corners=False)
    cut = F.grid_sample(images.float(), grid.float(), padding_mode="border", align_corners=False)
    return cut.to(images.dtype) if images.is_floating_point() else cut.round().to(images.dtype)


def crop_and_flip(images: Tensor, pad: int, offsets: Tensor, mirror: Tensor) -> Tensor:
    """Crops of the old size out of zero-padded images, some mirrored.

    Args:
        images: (B, C, H, W).
        pad: pixels on each side.
        offsets: first row and column of the crop in the padded image, (B, 2), from 0 to 2 pad.
        mirror: (B,) which ones are mirrored.
    """
    count, channels, height, width = images.shape
    padded = F.pad(images, (pad, pad, pad, pad))
    column = torch.arange(width)
    rows = offsets[:, :1] + torch.arange(height)
    columns = offsets[:, 1:] + torch.where(mirror[:, None], width - 1 - column, column)
    # One gather out of flattened planes does both, and is twice as fast as indexing on three axes.
    where = (rows[:, :, None] * padded.shape[-1] + columns[:, None, :]).view(count, 1, -1)
    planes = padded.view(count, channels, -1).gather(2, where.expand(-1, channels, -1))
    return planes.view(images.shape)


def box(size: tuple[int, ...], centre: Tensor, side: Tensor) -> Tensor:
    """Which pixels lie in a box that is cut off at the image's border.

    Args:
        size: (H, W).
        centre: (B, 2) row and column.
        side: height and width of the box, broadcast with (B, 2).

    Returns:
        (B, 1, H, W) bool.
    """
    start = torch.floor(centre) - torch.floor(side / 2)
    inside = []
    for axis, length in enumerate(size):
        place = torch.arange(length)
        first = start[:, axis, None]
        last = first + torch.broadcast_to(side, start.shape)[:, axis, None]
        inside.append((place >= first) & (place < last))
    return (inside[0][:, :, None] & inside[1][:, None, :])[:, None]


def _mixed(
    data: Data, indices: Tensor, inputs: Tensor, targets: Tensor, augment: Augment, keys: Keys
) -> tuple[Tensor, Tensor]:
    """Each sample (B,) mixed with a partner from the whole training set."""
    if data.task == "language":
        raise OptionError("mixup and cutmix are not defined for text; switch them off")
    partner = _whole(keyed.uniform(indices, (*keys, _PARTNER)), len(data.train))[:, 0]
    other, other_targets = _augmented(data, partner, augment, keys)
    use_cutmix = torch.zeros(len(indices), dtype=torch.bool)
    if augment.cutmix:
        share = augment.switch if augment.mixup else 1.0
        use_cutmix = keyed.uniform(indices, (*keys, _MIX))[:, 0] < share
    keep = torch.ones(len(indices), dtype=torch.float64)
    if augment.mixup:
        keep = keyed.beta(indices, (*keys, _MIX, 1), augment.mixup)[:, 0]
    weight = keep.view(-1, *[1] * (inputs.dim() - 1)).to(inputs.dtype)
    blended = weight * inputs + (1 - weight) * other
    if augment.cutmix:
        area = keyed.beta(indices, (*keys, _MIX, 2), augment.cutmix)
        size = torch.tensor(inputs.shape[-2:], dtype=torch.float64)
        u = keyed.uniform(indices, (*keys, _BOX), 2)
        inside = box(inputs.shape[-2:], u * size, torch.floor(size * torch.sqrt(1 - area)))
        blended = torch.where(use_cutmix[:, None, None, None], torch.where(inside, other, inputs), blended)
        # The share that is left of the sample is counted, since the border cuts boxes off.
        keep = torch.where(use_cutmix, 1 - inside.double().mean((1, 2, 3)), keep)
    return blended, mix_targets(targets, other_targets, keep, len(data.classes))


def mix_targets(first: Tensor, second: Tensor, keep: Tensor, classes: int) -> Tensor:
    """Targets of mixed samples: `keep` of the first and the rest of the second.

    Args:
        first: (...,) class numbers, or (..., D) the numbers of a regression or labels that are 0 or 1.
        second: the partners', likewise.
        keep: (...,) share of the first, 0 to 1.
        classes: how many there are; 0 for regression.

    Returns:
        Probabilities (..., C), or mixed numbers (...,); float32.

    >>> mix_targets(torch.tensor([0, 2]), torch.tensor([1, 2]), torch.tensor([0.75, 0.5]), 3).tolist()
    [[0.75, 0.25, 0.0], [0.0, 0.0, 1.0]]
    """
    if not classes or first.is_floating_point():
        keep = keep.view(keep.shape + (1,) * (first.ndim - keep.ndim))
        return (keep * first + (1 - keep) * second).float()
    keep = keep[..., None]
    return (keep * F.one_hot(first, classes) + (1 - keep) * F.one_hot(second, classes)).float()


def _whole(u: Tensor, n: int) -> Tensor:
    """Uniform numbers in [0, 1) to whole ones from 0 to n-1."""
    return (u * n).long().clamp_max(n - 1)
