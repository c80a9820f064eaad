"""Training and scoring on a device that is not the CPU: all is made there, and the numbers are those from here."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from device import DEVICE, MODULE, Elsewhere
from small import blobs, convnet, images, mlp
from torch import Tensor, nn

import covey
from covey.data import Augment
from covey.scores import landscape, metrics, ood, selective
from covey.scores.cost import timings
from covey.scores.diversity import diversity_scores
from covey.scores.regression import regression_scores
from covey.train import engine
from covey.train.alone import Alone

QUIET = covey.Machine(accelerator="cpu", progress=False)
RECIPE = covey.Recipe(epochs=3, batch=16, lr=0.05, run="loop")
LINEAR = {"members": 2, "linear": True}


class There(Alone):
    """One process on the device."""

    device = DEVICE


@pytest.fixture(autouse=True)
def _on():
    with Elsewhere():
        yield


def trained_there(monkeypatch: pytest.MonkeyPatch, *args: Any, **options: Any) -> covey.History:
    with monkeypatch.context() as patch:
        patch.setattr(engine, "launched", lambda machine: contextlib.nullcontext(There()))
        return covey.fit(*args, machine=QUIET, **options)


def check_same(here: covey.History, there: covey.History) -> None:
    expected = here.ensemble.state_dict()
    for name, tensor in there.ensemble.state_dict().items():
        assert tensor.device == DEVICE, name
        torch.testing.assert_close(
            tensor.cpu(), expected[name], rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}"
        )
    for row, other in zip(here.rows, there.rows, strict=True):
        assert {**row, "seconds": 0} == {**other, "seconds": 0}


WAYS = {
    "replicate, all at once": (covey.Replicate(members=2, noise=0.1), {"run": "batched"}),
    "own batches": (covey.BatchEnsemble(members=2), {"plan": "independent", "ema": 0.9}),
    "mimo": (covey.MIMO(members=2), {}),
    "mc-dropout": (covey.MCDropout(members=2, p=0.2), {"keep": "best"}),
    "masksembles": (covey.Masksembles(members=2), {"optimizer": "adamw"}),
    "packed": (covey.Packed(members=2, alpha=1.0), {}),
    "superweights": (covey.SuperWeights(**LINEAR, budget=4.0), {}),
    "mixture": (covey.Mixture(**LINEAR, singles="bank", budget=4.0), {"clip": 1.0}),
    "late": (covey.late(covey.Replicate(members=2), 1, 0.1), {"average": 1}),
    "late phase": (covey.LatePhase(start=0.4, members=2), {}),
    "snapshot": (covey.Snapshot(members=3), {}),
    "fge": (covey.FGE(start=0.3, cycle=2), {}),
}
# These draw some numbers on the CPU and some on the device: here from one stream, there from two.
TWO_STREAMS = {
    "superweights, refined": covey.SuperWeights(**LINEAR, budget=4.0, refine_at=1),
    "swag": covey.SWAG(members=2, start=0.3),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_run_on_the_device_is_the_run_here(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, options = WAYS[way]
    recipe = covey.Recipe(**{**vars(RECIPE), **options})
    # which numbers a mask has depends on the strides that a norm leaves behind, which kernels do not agree on
    network = mlp(norm=True, dropout=0.0 if recipe.run == "batched" else 0.1)
    here = covey.fit(network, blobs(40, held=16), recipe, method=method, machine=QUIET)
    states = torch.get_rng_state(), MODULE.get_rng_state()
    there = trained_there(monkeypatch, network, blobs(40, held=16), recipe, method=method)
    check_same(here, there)
    assert torch.equal(states[1], MODULE.get_rng_state())


@pytest.mark.parametrize("way", TWO_STREAMS)
def test_a_run_that_draws_on_the_device_stays_there(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = blobs(40, held=16)
    found = trained_there(monkeypatch, mlp(norm=True), data, RECIPE, method=TWO_STREAMS[way])
    check_trained(found)


def check_trained(found: covey.History) -> None:
    assert all(tensor.device == DEVICE for tensor in found.ensemble.state_dict().values())
    assert found.rows[-1]["loss"] < found.rows[0]["loss"]


def test_phases_of_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    method = covey.Economical(members=2, start=0.4)
    recipe = covey.Recipe(epochs=2, batch=8, lr=0.05, run="loop")
    here = covey.fit(convnet(), images(20), recipe, method=method, machine=QUIET)
    check_same(here, trained_there(monkeypatch, convnet(), images(20), recipe, method=method))


def test_a_resumed_run_on_the_device_goes_on_as_it_would_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    augment = Augment(pad=1, flip=True, mixup=0.2)
    recipe = covey.Recipe(epochs=2, batch=8, lr=0.05, run="loop", augment=augment, checkpoint=3)
    method = covey.BatchEnsemble(members=2)
    here = covey.fit(convnet(), images(20), recipe, method=method, machine=QUIET)
    whole = trained_there(monkeypatch, convnet(), images(20), recipe, method=method, folder=tmp_path)
    check_same(here, whole)
    sorted((tmp_path / "checkpoints").glob("*.safetensors"))[-1].unlink()
    again = trained_there(
        monkeypatch, convnet(), images(20), recipe, method=method, folder=tmp_path, resume=True
    )
    assert again.resumed is not None
    check_same(here, again)


def test_a_network_on_the_device_is_trained_there(monkeypatch: pytest.MonkeyPatch) -> None:
    network = mlp(norm=True).to(DEVICE)
    method = covey.Replicate(members=2, noise=0.1)
    check_trained(trained_there(monkeypatch, network, blobs(40, held=16), RECIPE, method=method))


def test_evaluation_brings_the_data_to_the_device(tmp_path: Path) -> None:
    ensemble = covey.convert(
        convnet().eval(), covey.BatchEnsemble(members=2), example=torch.zeros(2, 1, 8, 8)
    )
    data = images(40)
    ensemble.run = "loop"
    outside = {"noise": torch.randn(16, 1, 8, 8)}
    here = covey.evaluate(ensemble, data, ood=outside)
    there = covey.evaluate(ensemble.to(DEVICE), data, ood=outside, folder=tmp_path)
    assert here.scores == there.scores
    assert here.curves == there.curves
    found = covey.anytime(ensemble, data.test.inputs.to(DEVICE), data.test.targets.to(DEVICE), repeats=2)
    assert len(found.subsets) == 3


def test_times_are_taken_when_the_device_is_done() -> None:
    waits = MODULE.waits
    timings(lambda: torch.ones(2, device=DEVICE) + 1, repeats=4, warmup=2)
    assert MODULE.waits == waits + 5  # once after the warm-up, and after each call


def test_scores_of_answers_on_the_device() -> None:
    """Whoever scores what `predict` gave need not bring it back first."""
    logits, labels = torch.randn(3, 60, 7), torch.randint(7, (60,))
    wild = torch.randn(3, 30, 7)
    for device in ("cpu", DEVICE):
        prediction = covey.Prediction(logits.to(device))
        outside = {"wild": covey.Prediction(wild.to(device))}
        y = labels.to(device)
        sure, right = prediction.max_prob, prediction.label == y
        targets = logits[0, :, :2].to(device)
        regression = covey.Regression(logits[..., :2].to(device), logits[..., 2:4].exp().to(device))
        scores = [
            metrics.classification_scores(prediction, y, language=True),
            metrics.reliability(prediction.log_probs, y),
            selective.selective_scores(sure, right),
            selective.thinned(sure, right, points=10),
            diversity_scores(prediction, y, outside),
            ood.ood_scores(prediction, outside),
            ood.roc(prediction.entropy, outside["wild"].entropy, points=20),
            regression_scores(regression, targets),
            covey.scores.fit_temperature(prediction.logits, y),
            covey.scores.fit_conformal(prediction.probs, y),
        ]
        if device == "cpu":
            expected = scores
    assert scores == expected


def test_landscapes_of_members_on_the_device() -> None:
    networks = [network_of(seed) for seed in range(3)]
    x, y = torch.randn(10, 6), torch.randint(3, (10,))
    expected = landscapes(networks, x, y)
    found = landscapes([network.to(DEVICE) for network in networks], x.to(DEVICE), y.to(DEVICE))
    assert found == expected


def network_of(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def landscapes(networks: list[nn.Module], x: Tensor, y: Tensor) -> list[dict]:
    return [
        landscape.flatness(networks[0], x, y, draws=2),
        landscape.interpolation(networks[0], networks[1], x, y, points=3),
        landscape.plane(networks, x, y, points=3, batch_statistics=True),
    ]
