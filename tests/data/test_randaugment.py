"""RandAugment's operations against Pillow's, which are written independently."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from covey.data.randaugment import OPERATIONS, rand_augment
from covey.errors import OptionError

FILL = (128, 128, 128)


def affine(image, *matrix):
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=FILL
    )


def solarize_add(image, amount):
    pixels = np.asarray(image).astype(int)
    return Image.fromarray(np.where(pixels < 128, np.minimum(pixels + amount, 255), pixels).astype(np.uint8))


def posterize(image, kept):
    """Pillow's, but with no bit kept, which it refuses, everything is black."""
    return ImageOps.posterize(image, kept) if kept else Image.new("RGB", image.size)


REFERENCE = {
    "auto_contrast": lambda im, v, s: ImageOps.autocontrast(im),
    "equalize": lambda im, v, s: ImageOps.equalize(im),
    "invert": lambda im, v, s: ImageOps.invert(im),
    "rotate": lambda im, v, s: im.rotate(30 * v * s, Image.Resampling.BILINEAR, fillcolor=FILL),
    "posterize": lambda im, v, s: posterize(im, int(v * 4)),
    "solarize": lambda im, v, s: ImageOps.solarize(im, int(v * 256)),
    "solarize_add": lambda im, v, s: solarize_add(im, int(v * 110)),
    "colour": lambda im, v, s: ImageEnhance.Color(im).enhance(1.8 * v + 0.1),
    "contrast": lambda im, v, s: ImageEnhance.Contrast(im).enhance(1.8 * v + 0.1),
    "brightness": lambda im, v, s: ImageEnhance.Brightness(im).enhance(1.8 * v + 0.1),
    "sharpness": lambda im, v, s: ImageEnhance.Sharpness(im).enhance(1.8 * v + 0.1),
    "shear_x": lambda im, v, s: affine(im, 1, 0.3 * v * s, 0, 0, 1, 0),
    "shear_y": lambda im, v, s: affine(im, 1, 0, 0, 0.3 * v * s, 1, 0),
    "translate_x": lambda im, v, s: affine(im, 1, 0, 0.45 * v * s * im.size[0], 0, 1, 0),
    "translate_y": lambda im, v, s: affine(im, 1, 0, 0, 0, 1, 0.45 * v * s * im.size[1]),
}


def photographs():
    """Smooth colour images of 24 x 40 with noise on top, one nearly constant."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(20, 220, (6, 3, 5, 3), dtype=np.uint8)
    big = [np.asarray(Image.fromarray(c).resize((40, 24), Image.Resampling.BICUBIC)) for c in coarse]
    noisy = np.clip(np.stack(big).astype(int) + rng.integers(-9, 9, (6, 24, 40, 3)), 0, 255).astype(np.uint8)
    noisy[5] = 77
    noisy[5, 3, 4] = 200
    return noisy


def test_there_is_a_reference_for_every_operation():
    assert list(REFERENCE) == list(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_pillows(name):
    images = photographs()
    level = torch.tensor([0.0, 0.3, 0.55, 0.8, 0.91, 1.0])
    sign = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, 1.0])
    got = OPERATIONS[name](torch.from_numpy(images).permute(0, 3, 1, 2), level, sign).permute(0, 2, 3, 1)
    expected = [
        np.asarray(REFERENCE[name](Image.fromarray(im), float(v), float(s)))
        for im, v, s in zip(images, level, sign, strict=True)
    ]
    difference = np.abs(got.numpy().astype(int) - np.stack(expected).astype(int))
    assert difference.max() <= 1  # Pillow rounds within its filters
    if name in ("equalize", "invert", "posterize", "solarize", "solarize_add"):
        assert difference.max() == 0


def test_half_of_the_draws_leave_the_image_alone_and_grey_images_work():
    images = torch.from_numpy(photographs()).permute(0, 3, 1, 2)[:1, :1].repeat(4000, 1, 1, 1)
    out = rand_augment(images, torch.arange(4000), (0, 0), 1, 9.0, 1.0)
    assert out.shape == images.shape
    assert out.dtype == torch.uint8
    same = (out == images).flatten(1).all(1).double().mean().item()
    # 1/2 untouched, and colour does nothing to one channel: 1/2 + 1/2 * 1/15
    assert same == pytest.approx(0.5 + 1 / 30, abs=0.03)


def test_float_images_are_refused():
    with pytest.raises(OptionError, match="uint8"):
        rand_augment(torch.zeros(1, 3, 8, 8), torch.zeros(1, dtype=torch.int64), (0,), 1, 9.0, 1.0)
