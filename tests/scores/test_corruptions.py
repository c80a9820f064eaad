from __future__ import annotations

import colorsys
import io
from pathlib import Path

import numpy as np
import pytest
import scipy.ndimage
import torch
from PIL import Image
from torch import Tensor, nn

import covey
from covey.errors import EvaluationError
from covey.scores import corruptions, pictures, robustness
from covey.scores.corruptions import CORRUPTIONS, corrupt


def photographs(count: int = 8, channels: int = 3, size: int = 32) -> Tensor:
    """Smooth colourful images, in levels of a file."""
    noise = torch.rand((count, channels, size, size), generator=torch.Generator().manual_seed(0))
    smooth = torch.from_numpy(scipy.ndimage.gaussian_filter(noise.numpy(), (0, 0, 2, 2)))
    low, high = smooth.amin((1, 2, 3), keepdim=True), smooth.amax((1, 2, 3), keepdim=True)
    return ((smooth - low) / (high - low) * 255).floor() / 255


def test_the_fifteen_are_there() -> None:
    assert len(CORRUPTIONS) == 15
    assert set(CORRUPTIONS) == set(
        [
            "gaussian_noise",
            "shot_noise",
            "impulse_noise",
            "defocus_blur",
            "glass_blur",
            "motion_blur",
            "zoom_blur",
            "snow",
            "frost",
            "fog",
            "brightness",
            "contrast",
            "elastic_transform",
            "pixelate",
            "jpeg_compression",
        ]
    )


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_keeps_shape_and_range_and_repeats(name: str) -> None:
    images = photographs(4)
    before = images.clone()
    for shape in ((3, 32, 32), (1, 28, 28), (1, 8, 8), (3, 20, 36)):
        some = torch.rand(2, *shape)
        for severity in (1, 5):
            found = corrupt(some, name, severity)
            assert found.shape == some.shape
            assert found.min() >= 0
            assert found.max() <= 1
    first = corrupt(images, name, 3)
    assert torch.equal(first, corrupt(images, name, 3))
    assert not torch.equal(first, images)
    assert torch.equal(images, before), "the images given must stay as they are"


@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - {"elastic_transform", "frost", "glass_blur"}))
def test_more_severe_is_further_away(name: str) -> None:
    # Elastic, frost and glass are left out: their published parameters trade one effect for another.
    images = photographs(16)
    distance = [float((corrupt(images, name, s) - images).abs().mean()) for s in (1, 3, 5)]
    assert distance == sorted(distance)


def test_noise_has_the_published_strength() -> None:
    grey = torch.full((20, 3, 32, 32), 0.5)
    noise = corrupt(grey, "gaussian_noise", 3) - grey
    assert float(noise.std()) == pytest.approx(0.08, rel=0.03)
    shot = corrupt(grey, "shot_noise", 3) - grey
    assert float(shot.std()) == pytest.approx((0.5 / 100) ** 0.5, rel=0.03)
    impulse = corrupt(grey, "impulse_noise", 5)
    assert float(((impulse == 0) | (impulse == 1)).float().mean()) == pytest.approx(0.07, abs=0.005)
    assert float((impulse == 0).float().mean()) == pytest.approx(0.035, abs=0.004)


def test_blur_and_zoom_against_scipy() -> None:
    image = photographs(1)
    ours = pictures.gaussian_blur(image, 1.5)
    theirs = scipy.ndimage.gaussian_filter(image.numpy(), (0, 0, 1.5, 1.5), mode="mirror", truncate=4)
    assert np.allclose(ours, theirs, atol=1e-5)
    # The published code zooms with scipy: crop 32 / 1.25 = 25.6 -> 26 pixels, enlarge to 32.5 -> 32.
    theirs = scipy.ndimage.zoom(image[0, :, 3:29, 3:29].numpy(), (1, 1.25, 1.25), order=1)
    assert np.allclose(pictures.zoom(image, 1.25)[0], theirs, atol=1e-5)


def test_defocus_keeps_a_grey_image_and_the_mean() -> None:
    grey = torch.full((1, 3, 32, 32), 100 / 255)
    assert torch.allclose(corrupt(grey, "defocus_blur", 5), grey, atol=1.01 / 255)
    point = torch.zeros(1, 1, 33, 33)
    point[0, 0, 16, 16] = 1
    blurred = corruptions._defocus_blur(point, 4, torch.Generator())
    assert float(blurred.sum()) == pytest.approx(1, abs=1e-5)
    assert int((blurred > 0.05).sum()) == 9, "a disk of radius 1.5 covers 3 x 3 pixels"


def test_motion_smears_along_one_line() -> None:
    point = torch.zeros(64, 1, 33, 33)
    point[:, 0, 16, 16] = 1
    smeared = corruptions._motion_blur(point, 4, torch.Generator().manual_seed(0))
    assert torch.allclose(smeared.sum((1, 2, 3)), torch.ones(64), atol=1e-5)
    rows, columns = (smeared[:, 0] > 0).any(2).sum(1), (smeared[:, 0] > 0).any(1).sum(1)
    # Angles up to 45 degrees: 17 columns at most (the image's edge), never more rows than columns.
    assert (columns >= rows).all()
    assert columns.max() == 17


def test_brightness_against_colorsys() -> None:
    image = photographs(1)
    ours = corrupt(image, "brightness", 4)[0]
    for row, column in ((0, 0), (5, 9), (31, 31), (16, 2)):
        hue, saturation, value = colorsys.rgb_to_hsv(*image[0, :, row, column].tolist())
        expected = colorsys.hsv_to_rgb(hue, saturation, min(1, value + 0.2))
        assert ours[:, row, column].tolist() == pytest.approx(expected, abs=1.01 / 255)


def test_contrast_and_jpeg_and_pixelate_by_hand() -> None:
    image = photographs(1)
    mean = image.mean((2, 3), keepdim=True)
    assert torch.allclose(corrupt(image, "contrast", 5), mean + 0.15 * (image - mean), atol=1.01 / 255)
    picture = Image.fromarray((image[0].permute(1, 2, 0) * 255).round().byte().numpy())
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=40)
    theirs = np.asarray(Image.open(file)) / 255
    assert np.allclose(corrupt(image, "jpeg_compression", 5)[0].permute(1, 2, 0), theirs, atol=1.01 / 255)
    theirs = (
        np.asarray(picture.resize((20, 20), Image.Resampling.BOX).resize((32, 32), Image.Resampling.BOX))
        / 255
    )
    assert np.allclose(corrupt(image, "pixelate", 5)[0].permute(1, 2, 0), theirs, atol=1.01 / 255)


def test_bad_input() -> None:
    images = photographs(2)
    with pytest.raises(EvaluationError, match="no corruption 'fogg'; the nearest names are 'fog'"):
        corrupt(images, "fogg", 1)
    with pytest.raises(EvaluationError, match="severity: expected 1 to 5, got 0"):
        corrupt(images, "fog", 0)
    with pytest.raises(EvaluationError, match="corrupt first, normalise afterwards"):
        corrupt(images * 4 - 2, "fog", 1)
    with pytest.raises(EvaluationError, match=r"expected images \(N, 1 or 3, H, W\)"):
        corrupt(images[:, :2], "fog", 1)


def test_scores_are_plain_means_over_the_75() -> None:
    labels = torch.randint(4, (60,))
    sets = {f"{name}/{s}": torch.randn(2, 50, 4) for name in CORRUPTIONS for s in (1, 2, 3, 4, 5)}
    scores = robustness.robustness_scores(sets, labels)
    right = {
        k: np.mean(v.softmax(-1).mean(0).argmax(-1).numpy() == labels[:50].numpy()) for k, v in sets.items()
    }
    assert scores["mean_corruption_error"] == pytest.approx(1 - np.mean(list(right.values())))
    assert scores["kinds"]["fog"]["3"]["accuracy"] == pytest.approx(right["fog/3"])
    fives = [v for k, v in right.items() if k.endswith("/5")]
    assert scores["by_severity"]["5"]["accuracy"] == pytest.approx(np.mean(fives))
    assert scores["samples"] == 50


def test_published_files(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 32, 32, 3), dtype=np.uint8)
    labels = np.tile(np.arange(10), 5)
    np.save(tmp_path / "fog.npy", images)
    with pytest.raises(EvaluationError, match=r"labels.npy is missing: unpack CIFAR-10-C"):
        robustness.read_cifar_c(tmp_path, "fog", 2)
    np.save(tmp_path / "labels.npy", labels)
    found, y = robustness.read_cifar_c(tmp_path, "fog", 2)
    assert torch.equal((found * 255).round().byte(), torch.from_numpy(images[10:20]).permute(0, 3, 1, 2))
    assert y.tolist() == list(range(10))
    np.save(tmp_path / "labels.npy", labels[:9])
    with pytest.raises(EvaluationError, match="5 blocks of images and a label each"):
        robustness.read_cifar_c(tmp_path, "fog", 2)


def _published(folder: Path, labels: Tensor) -> None:
    """Files as CIFAR-10-C has them: five blocks of images for each corruption."""
    generator = np.random.default_rng(0)
    for name in CORRUPTIONS:
        np.save(
            folder / f"{name}.npy", generator.integers(0, 256, (5 * len(labels), 8, 8, 3), dtype=np.uint8)
        )
    np.save(folder / "labels.npy", np.tile(labels.numpy(), 5))


def test_published_files_are_scored_in_place_of_drawn_corruptions(tmp_path: Path) -> None:
    images, labels = torch.rand(20, 3, 8, 8), torch.randint(10, (20,))
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 10)).eval()
    _published(tmp_path, labels)
    found = covey.evaluate(network, (images, labels), corrupted=tmp_path).scores["robustness"]
    foggy, _ = robustness.read_cifar_c(tmp_path, "fog", 3)
    with torch.no_grad():
        right = (network(foggy).argmax(-1) == labels).double().mean().item()
    assert found["kinds"]["fog"]["3"]["accuracy"] == pytest.approx(right)
    assert found["samples"] == 20
    first = covey.evaluate(network, (images, labels), corrupted=tmp_path, corruptions=7).scores["robustness"]
    assert first["samples"] == 7


def test_published_files_of_another_test_set_are_refused_before_anything_is_run(tmp_path: Path) -> None:
    images, labels = torch.rand(20, 3, 8, 8), torch.arange(20) % 10
    _published(tmp_path, labels.flip(0))

    class Untouched(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise AssertionError("it ran")

    with pytest.raises(EvaluationError, match="corrupted images of another test set"):
        covey.evaluate(Untouched(), (images, labels), corrupted=tmp_path)
    with pytest.raises(EvaluationError, match="they were normalised"):
        covey.evaluate(Untouched(), (4 * images - 2, labels.flip(0)), corrupted=tmp_path)
    with pytest.raises(EvaluationError, match=r"shape \(3, 8, 8\), and the test images have \(3, 16, 16\)"):
        covey.evaluate(Untouched(), (torch.rand(20, 3, 16, 16), labels.flip(0)), corrupted=tmp_path)
    (tmp_path / "snow.npy").unlink()
    with pytest.raises(EvaluationError, match=r"snow\.npy is missing"):
        covey.evaluate(Untouched(), (images, labels.flip(0)), corrupted=tmp_path)
