"""int8 files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

import covey
from covey.deploy import int8


@pytest.fixture(scope="module")
def ensemble() -> covey.Ensemble:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        network[0].weight[:, 0] = 0  # an input that does not matter
    return covey.convert(network, covey.Replicate(members=2), example=torch.zeros(2, 4)).eval()


def test_layers_that_hurt_stay_in_float(
    ensemble: covey.Ensemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(64, 4)
    x[:, 0] *= 1000  # it is so loud that with one scale for all inputs the others are rounded away
    done = covey.export(ensemble, tmp_path / "a.onnx", x, int8=x, int8_limit=0.05)
    found = done.quantised
    assert found is not None
    assert found.harm <= 0.05
    # members are alike, so that there is one network of two layers, and the first of them hurts
    assert found.layers == 2
    assert len(found.in_float) == 1
    weights = {each.name: each for each in onnx.load(done.path).graph.initializer}
    (hurting,) = (node for node in onnx.load(done.path).graph.node if node.name == found.in_float[0])
    assert any(list(weights[name].dims) in ([16, 4], [4, 16]) for name in hurting.input if name in weights)
    monkeypatch.setattr(int8, "_harm", lambda found, reference: 0.5)
    with pytest.raises(covey.CoveyError, match=r"int8 changes .* even with half of the layers in float"):
        covey.export(ensemble, tmp_path / "b.onnx", x, int8=x)
    assert not (tmp_path / "b.onnx").exists()


def test_what_is_refused(ensemble: covey.Ensemble, tmp_path: Path) -> None:
    x = torch.randn(4, 4)
    with pytest.raises(covey.CoveyError, match=r"calibration data have shape \(4, 5\); expected \(N, 4\)"):
        covey.export(ensemble, tmp_path / "a.onnx", x, int8=torch.zeros(4, 5))
    with pytest.raises(covey.CoveyError, match="int8 is for ONNX files"):
        covey.export(ensemble, tmp_path / "a.pt2", x, int8=x)
    assert not list(tmp_path.iterdir())
