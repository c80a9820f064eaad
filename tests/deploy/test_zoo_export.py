"""ONNX files of every kind of network in the zoo, small, answer as the ensemble does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_export import assert_close

import covey
from covey import zoo
from covey.deploy import DeployedEnsemble
from covey.deploy.joining import named

SMALL: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "mlp": ("mlp", {"features": 12, "hidden": (8, 6)}, (12,)),
    "convnet": ("convnet", {"channels": 1, "image_size": 8}, (1, 8, 8)),
    "lstm": ("lstm", {"hidden": 6, "embedding": 5}, (9,)),
    "tied lstm": ("lstm", {"hidden": 6, "layers": 2, "tied": True}, (9,)),
    "unet": ("unet", {"width": 4, "levels": 2}, (3, 8, 8)),
    "resnet": ("cifar-resnet-18", {"width": 4}, (3, 8, 8)),
    "resnet of bottlenecks": ("resnet-50", {"width": 4}, (3, 32, 32)),
    "resnext": ("cifar-resnext-50", {"width": 16}, (3, 8, 8)),
    "wideresnet": ("wrn-10-1", {}, (3, 8, 8)),
    "mobilenet": ("mobilenet-v2", {"width": 0.1}, (3, 32, 32)),
    "densenet": ("cifar-densenet-121", {"growth": 2}, (3, 16, 16)),
    "pyramidnet": ("pyramidnet", {"depth": 8, "alpha": 6}, (3, 8, 8)),
    "pyramidnet of bottlenecks": ("pyramidnet", {"depth": 11, "alpha": 6, "bottleneck": True}, (3, 8, 8)),
    "vit": ("vit", {"image_size": 8, "width": 16, "depth": 2, "heads": 2}, (3, 8, 8)),
}


def test_every_kind_is_there() -> None:
    known = {entry.factory for entry in zoo.NETWORKS.values()}
    assert {zoo.find(name).factory for name, _, _ in SMALL.values()} == known


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL)
def test_onnx_answers_as_the_ensemble(kind: str, tmp_path: Path) -> None:
    name, options, shape = SMALL[kind]
    torch.manual_seed(0)
    network = zoo.create(name, classes=5, **options)
    tokens = zoo.find(name).tokens
    x = torch.randint(5, (6, *shape)) if tokens else torch.randn(6, *shape)
    ensemble = covey.convert(network, covey.MultiHead(members=2), example=x).eval()
    covey.export(ensemble, tmp_path / "a.onnx", x[:3], members=True)
    deployed = DeployedEnsemble(tmp_path / "a.onnx")
    for samples in (1, 6):
        assert_close(deployed(x[:samples].numpy()), named(ensemble.predict(x[:samples])))
