"""Dense prediction: the U-Net, the drawn set, scores of pixels, maps, and the way through the command line."""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import jaccard_score

import covey
from covey import zoo
from covey.cli.main import main
from covey.data import Data, Split, load, train_batch
from covey.data.augment import Augment
from covey.data.container import Normalisation
from covey.data.shapes import draw_shapes
from covey.errors import DataError, EvaluationError, OptionError
from covey.scores import evaluate
from covey.scores.segmentation import intersection_over_union, mean_iou, uncertainty_maps

METHODS = {
    "batch": covey.BatchEnsemble(members=2),
    "heads": covey.MultiHead(members=2),
    "packed": covey.Packed(members=2, alpha=2),
}


def unet() -> torch.nn.Module:
    torch.manual_seed(0)
    return zoo.create("unet", classes=3, channels=2, width=4, levels=1)


@pytest.mark.parametrize("name", METHODS)
def test_the_laws_hold_for_a_u_net(name: str, tmp_path: Path) -> None:
    network, x = unet().double().eval(), torch.randn(2, 2, 6, 4, dtype=torch.float64)
    ensemble = covey.convert(network, METHODS[name], example=x)
    ensemble.run = "loop"
    outputs = ensemble(x)
    assert outputs.shape == (2, 2, 3, 6, 4)
    for k in range(2):
        torch.testing.assert_close(outputs[k], ensemble.member(k).eval()(x), rtol=1e-9, atol=1e-9)
    ensemble.run = "batched"
    torch.testing.assert_close(ensemble(x), outputs, rtol=1e-9, atol=1e-9)
    ensemble.loss(x, torch.randint(3, (2, 6, 4))).backward()
    assert all(p.grad is not None for p in ensemble.parameters())
    covey.save(ensemble, tmp_path / "stored")
    again = covey.load(tmp_path / "stored")
    again.run = "batched"
    assert torch.equal(again(x), ensemble(x))
    answer = ensemble.predict(x)
    assert answer.probs.shape == (2, 6, 4, 3)
    assert answer.entropy.shape == (2, 6, 4)


def test_a_u_net_takes_what_it_can_halve() -> None:
    with pytest.raises(OptionError, match=r"height and width .* multiples of 2, got 5 x 4"):
        unet()(torch.randn(1, 2, 5, 4))


def test_the_drawn_set_is_the_same_each_time_and_balanced_enough() -> None:
    first, second = (draw_shapes(torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    data = load("shapes")
    assert data.task == "segmentation"
    assert data.classes == ("background", "disc", "square", "triangle")
    assert (len(data.train), len(data.validation), len(data.test)) == (400, 80, 120)
    shares = torch.bincount(data.train.targets.flatten().long(), minlength=256) / data.train.targets.numel()
    assert 0.7 < shares[0] < 0.9
    assert all(0.02 < share < 0.1 for share in [*shares[1:4], shares[255]])
    assert shares[[0, 1, 2, 3, 255]].sum() == pytest.approx(1)
    for label in (1, 2, 3):
        seen = (data.train.targets == label).flatten(1).any(1).float().mean()
        assert 0.3 < seen < 0.9, "every class is in many images, and in none of many others"


def tiny(count: int = 6) -> Data:
    generator = torch.Generator().manual_seed(0)
    drawn = [draw_shapes(generator, 8) for _ in range(count)]
    part = Split(torch.stack([i for i, _ in drawn]), torch.stack([m for _, m in drawn]))
    classes = ("background", "disc", "square", "triangle")
    scale = Normalisation((0.5,) * 3, (0.25,) * 3)
    return Data(part, part, part, "segmentation", classes, (3, 8, 8), normalisation=scale)


def test_scores_of_pixels_against_scikit_learn() -> None:
    torch.manual_seed(1)
    predicted, labels = torch.randint(4, (500,)), torch.randint(3, (500,))
    expected = jaccard_score(labels, predicted, average=None, labels=range(4), zero_division=0)
    assert mean_iou(predicted, labels, 4) == pytest.approx(expected.mean())
    assert intersection_over_union(torch.zeros(2, 2).long()) == [None, None]


def test_ignored_pixels_count_nowhere() -> None:
    data = tiny()
    network = zoo.create("unet", classes=4, channels=3, width=2, levels=1)
    found = evaluate(network, data)
    counts = data.test.targets != 255
    assert 0 < counts.sum() < counts.numel()
    assert found.about["task"] == "segmentation"
    assert found.about["samples"] == int(counts.sum())
    with torch.no_grad():
        predicted = network.eval()(data.prepare(data.test.inputs)).argmax(1)
    truth, said = data.test.targets[counts], predicted[counts]
    assert found.scores["ensemble"]["accuracy"] == pytest.approx(float((truth == said).double().mean()))
    assert found.scores["ensemble"]["miou"] == pytest.approx(mean_iou(said, truth, 4))
    each = found.scores["per_class"]["iou"]
    known = [iou for iou in each if iou is not None]
    assert sum(known) / len(known) == pytest.approx(found.scores["ensemble"]["miou"])
    assert "threshold" not in found.calibration, "pixels of an image are not exchangeable"
    nothing = torch.full_like(data.test.targets, 255)
    with pytest.raises(EvaluationError, match="nothing to score: all labels are 255"):
        evaluate(network, (data.prepare(data.test.inputs), nothing))
    with pytest.raises(
        EvaluationError, match=r"pixels of shape \(6, 8, 8\), and the targets have shape \(6, 8, 4\)"
    ):
        evaluate(network, (data.prepare(data.test.inputs), nothing[:, :, :4]))


def test_corrupted_pixels_are_those_that_count() -> None:
    data = tiny()
    network = zoo.create("unet", classes=4, channels=3, width=2, levels=1)
    found = evaluate(network, data, corruptions=2)
    assert found.scores["robustness"]["samples"] == int((data.test.targets[:2] != 255).sum())


def test_maps_show_image_classes_answer_and_uncertainty() -> None:
    labels = torch.zeros(2, 8, 8, dtype=torch.uint8)
    labels[:, :4] = 1
    labels[:, 0] = 255
    logits = torch.zeros(1, 2, 8, 8, 2)
    logits[:, 0, ..., 1] = 40.0  # sure of class 1 everywhere in the first image, of nothing in the second
    images = torch.full((2, 1, 8, 8), 128, dtype=torch.uint8)
    unsure, sure = uncertainty_maps(logits, labels, images)
    assert (unsure["index"], sure["index"]) == (1, 0)
    assert sure["accuracy"] == pytest.approx(3 / 7), "of the pixels that count"
    picture = Image.open(io.BytesIO(base64.b64decode(sure["picture"].partition(",")[2])))
    pixels = np.asarray(picture)
    assert pixels.shape == (8, 4 * 8 + 3, 3)
    assert (pixels[:, 27:] == 128).all(), "no uncertainty is drawn where there is none"
    assert (pixels[0, 9:17] == 0).all(), "pixels that do not count are black"
    assert (pixels[1, 9:17] == pixels[1, 18:26]).all(), "a right answer has its class's colour"
    other = np.asarray(Image.open(io.BytesIO(base64.b64decode(unsure["picture"].partition(",")[2]))))
    assert (other[:, 27:] == (255, 48, 0)).all(), "and all of it where classes are equally probable"


def test_augmentation_moves_the_classes_with_the_pixels() -> None:
    data = tiny()
    numbers = torch.arange(len(data.train))
    _, masks = train_batch(data, numbers, Augment(flip=True, pad=2), seed=0, epoch=0)
    assert masks.dtype == torch.uint8
    assert (masks == 255).flatten(1).any(1).all()
    coded = data.train.targets[:, None].expand(-1, 3, -1, -1).contiguous()
    twin = Data(Split(coded, data.train.targets), *[data.test] * 2, "segmentation", data.classes, (3, 8, 8))
    moved, masks = train_batch(twin, numbers, Augment(flip=True, pad=2), seed=0, epoch=0)
    beyond = masks == 255
    assert torch.equal(moved[:, 0][~beyond], masks[~beyond]), "an image of the classes stays the classes"
    with pytest.raises(OptionError, match="would change images and not the classes of their pixels"):
        train_batch(data, numbers, Augment(mixup=0.2), seed=0, epoch=0)


def test_arrays_of_pixels_are_read_and_refused(tmp_path: Path) -> None:
    x, y = np.zeros((12, 8, 8, 3), np.uint8), np.random.default_rng(0).integers(0, 3, (12, 8, 8))
    np.savez(tmp_path / "own.npz", x=x, y=y)
    data = load(tmp_path / "own.npz")
    assert (data.task, data.classes) == ("segmentation", ("class 0", "class 1", "class 2"))
    assert data.train.targets.dtype == torch.uint8
    np.savez(tmp_path / "wrong.npz", x=x, y=y - 1)
    with pytest.raises(DataError, match="whole numbers from 0, and 255 for pixels that do not count"):
        load(tmp_path / "wrong.npz")
    np.savez(tmp_path / "size.npz", x=x, y=y[:, :5])
    with pytest.raises(DataError, match="a class of each pixel"):
        load(tmp_path / "size.npz")


@pytest.mark.slow
def test_shapes_through_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "train",
        "batch-ensemble",
        "--members",
        "2",
        "--data",
        "shapes",
        "--network",
        "unet",
        "--samples",
        "12",
    ]
    options = ["--network-option", "width=4", "levels=1", "--epochs", "1", "--batch", "6", "--no-progress"]
    assert main([*words, *options, "--folder", "run"]) == 0
    assert "miou" in capsys.readouterr().out
    assert main(["evaluate", "run"]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Mean IoU" in page
    assert "uncertainty map" in page
    assert "of its pixels right, mean entropy" in page
    np.save("new.npy", load("shapes").test.inputs[:2].numpy())
    capsys.readouterr()
    assert main(["predict", "run", "new.npy"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(rows) == 2
    shares = [float(value) for name, value in rows[0].items() if name.startswith("share(")]
    assert sum(shares) == pytest.approx(1)
    stored = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert stored["record"]["classes"] == ["background", "disc", "square", "triangle"]


def test_masks_of_images_are_taken_for_what_they_are() -> None:
    images, masks = torch.rand(6, 3, 8, 8), torch.randint(4, (6, 8, 8))
    masks[:, 0] = 255
    assert covey.data.adapt((images, masks)).task == "segmentation"
    network = zoo.create("unet", classes=4, channels=3, width=4, levels=1)
    machine = covey.Machine(accelerator="cpu", progress=False)
    recipe = covey.Recipe(epochs=1, batch=3, run="loop")
    history = covey.fit(
        network, (images, masks), recipe, method=covey.DeepEnsemble(members=2), machine=machine
    )
    assert covey.evaluate(history.ensemble, (images, masks)).about["samples"] == int((masks != 255).sum())
