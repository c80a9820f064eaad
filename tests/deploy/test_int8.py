"""int8 files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import covey
from covey.deploy import exporting, int8
from covey.deploy.tracing import Example


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
    monkeypatch.setattr(int8, "_harm", lambda found, reference, task: 0.5)
    with pytest.raises(covey.CoveyError, match=r"int8 changes .* even with half of the layers in float"):
        covey.export(ensemble, tmp_path / "b.onnx", x, int8=x)
    assert not (tmp_path / "b.onnx").exists()


def test_what_is_refused(ensemble: covey.Ensemble, tmp_path: Path) -> None:
    x = torch.randn(4, 4)
    with pytest.raises(covey.CoveyError, match=r"calibration data have shape \(4, 5\); expected \(N, 4\)"):
        covey.export(ensemble, tmp_path / "a.onnx", x, int8=torch.zeros(4, 5))
    broken = x.clone()
    broken[1, 2] = torch.nan
    with pytest.raises(covey.CoveyError, match="calibration data hold NaN"):
        covey.export(ensemble, tmp_path / "a.onnx", x, int8=broken)
    with pytest.raises(covey.CoveyError, match="calibration data hold 0 everywhere, from which no range"):
        covey.export(ensemble, tmp_path / "a.onnx", x, int8=torch.zeros(4, 4))
    with pytest.raises(covey.CoveyError, match="calibration data are y; the example is x"):
        exporting._calibration(ensemble, {"y": x}, Example.of(ensemble.skeleton(), x))
    with pytest.raises(covey.CoveyError, match="int8 is for ONNX files"):
        covey.export(ensemble, tmp_path / "a.pt2", x, int8=x)
    assert not list(tmp_path.iterdir())


def test_what_reads_a_layer_in_float_stays_in_float_too() -> None:
    """A ReLU behind the layer or behind a sum with its answer, but none behind a later layer."""

    def node(kind: str, inputs: str, output: str) -> onnx.NodeProto:
        return onnx.helper.make_node(kind, inputs.split(), [output], name=f"{kind}_{output}")

    nodes = [
        node("Conv", "x w", "a"),
        node("Relu", "a", "b"),
        node("Conv", "b w", "c"),
        node("Add", "c x", "d"),
        node("Relu", "d", "e"),
        node("Conv", "e w", "f"),
        node("Relu", "f", "y"),
    ]
    graph = onnx.helper.make_graph(nodes, "three", [], [])
    assert int8._directly_after(graph, ["Conv_a"]) == ["Relu_b"]
    assert int8._directly_after(graph, ["Conv_c"]) == ["Relu_e"]
    assert int8._directly_after(graph, []) == []


def test_harm_is_that_of_the_task() -> None:
    probs = np.array([[0.9, 0.6, 0.1], [0.2, 0.4, 0.3]])
    other = np.array([[0.9, 0.4, 0.1], [0.2, 0.45, 0.3]])  # one label is lost; the largest stay the largest
    assert int8._harm(other, probs, "multilabel") == 0.5
    assert int8._harm(other, probs, "classification") == 0.0
    means = np.array([[0.0, 100.0], [2.0, 300.0]])  # spreads of 1 and 100
    moved = means + np.array([0.5, 0.0])
    assert int8._harm(moved, means, "regression") == pytest.approx(0.5), (
        "though the second is always the largest"
    )


def test_calibration_data_go_by_name() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.head(a - b)

    a, b = torch.zeros(3, 4, dtype=torch.float64), torch.ones(3, 4)
    network = Two()
    ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example={"a": b, "b": b})
    example = Example.of(network, {"a": a, "b": b})
    first, second = exporting._calibration(ensemble, {"b": b, "a": a}, example)
    assert first.max() == 0
    assert second.min() == 1
    assert first.dtype == np.float32
