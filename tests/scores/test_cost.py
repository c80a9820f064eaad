from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.errors import EvaluationError
from covey.scores import cost


class Logits(nn.Module):
    """A network of the package transformers that answers with plain logits."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).logits


def test_resnet50_has_the_published_cost() -> None:
    transformers = pytest.importorskip("transformers")
    with torch.device("meta"):
        network = Logits(
            transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))
        )
    image = torch.zeros(1, 3, 224, 224, device="meta")
    assert sum(p.numel() for p in network.parameters()) == 25_557_032
    assert cost.multiply_adds(network, image) == pytest.approx(4.09e9, rel=1e-3)


def test_fused_layers_are_counted() -> None:
    lstm = nn.LSTM(10, 20, batch_first=True)
    assert cost.multiply_adds(lstm, torch.zeros(1, 7, 10)) == 7 * 4 * 20 * (10 + 20)
    width, hidden, length = 16, 32, 5
    layer = nn.TransformerEncoderLayer(width, 2, hidden, batch_first=True)
    projections = length * width * (3 * width + width + 2 * hidden)
    attention = 2 * length * length * width
    assert cost.multiply_adds(layer, torch.zeros(1, length, width)) == projections + attention
    grouped = nn.Conv2d(8, 16, 3, groups=4, padding=1)
    assert cost.multiply_adds(grouped, torch.zeros(1, 8, 6, 6)) == 36 * 16 * 2 * 9


def test_settings_of_torch_are_put_back() -> None:
    before = (torch.backends.mha.get_fastpath_enabled(), bool(torch.backends.mkldnn.enabled))
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    network[0].eval()
    threads = torch.get_num_threads()
    found = cost.measure_cost(network, torch.zeros(8, 4), repeats=3, threads=1)
    assert found.threads == 1
    assert torch.get_num_threads() == threads
    assert (torch.backends.mha.get_fastpath_enabled(), bool(torch.backends.mkldnn.enabled)) == before
    assert (network.training, network[0].training, network[1].training) == (True, False, True)


def test_peak_memory_by_hand() -> None:
    network = nn.Sequential(nn.Linear(1000, 500), nn.ReLU(), nn.Linear(500, 10))
    x = torch.zeros(64, 1000)
    with torch.no_grad():
        found = cost.peak_bytes(network, x)
    weights = 1000 * 500 + 500 + 500 * 10 + 10
    assert found == 4 * (weights + 64 * 1000 + 2 * 64 * 500), "input, and two activations at once"


def test_ensemble_over_single_network() -> None:
    network, x = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)), torch.randn(4, 6)
    ensemble = covey.convert(network, covey.DeepEnsemble(members=3), example=x)
    single = cost.measure_cost(network, x, repeats=4, training_seconds=2)
    several = cost.measure_cost(ensemble, x, repeats=4, training_seconds=9)
    assert several.members == 3
    assert several.stored == several.trainable == 3 * single.stored
    assert several.multiply_adds == 3 * single.multiply_adds == 3 * (6 * 12 + 12 * 3)
    ratios = several.ratios(single)
    assert ratios["stored"] == {"single": 3, "deep_ensemble": 1}
    assert ratios["multiply_adds"] == {"single": 3, "deep_ensemble": 1}
    assert ratios["training_seconds"] == {"single": 4.5, "deep_ensemble": 1.5}
    assert ratios["latency"]["deep_ensemble"] == pytest.approx(several.latency / single.latency / 3)
    assert several.throughput == pytest.approx(4 / several.latency)
    assert cost.Cost(**several.to_dict()) == several


def test_memory_does_not_depend_on_how_members_happen_to_run() -> None:
    network, x = (
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 3)),
        torch.randn(4, 1, 8, 8),
    )
    ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example=x)
    found = set()
    for way in ("loop", "batched", "loop+channels_last"):
        ensemble.run = way
        found.add(cost.measure_cost(ensemble, x, repeats=2, warmup=0).peak_bytes)
        assert ensemble.run == way, "the measurement leaves the choice alone"
    assert len(found) == 1
    one = covey.convert(network, covey.DeepEnsemble(members=1), example=x)
    plain = cost.measure_cost(network.eval(), x, repeats=2, warmup=0).peak_bytes
    assert cost.measure_cost(one, x, repeats=2, warmup=0).peak_bytes == plain


def test_timings_measure_time() -> None:
    import time

    seconds = cost.timings(lambda: time.sleep(0.01), repeats=5, warmup=0)
    assert len(seconds) == 5
    assert 0.01 <= min(seconds) < 0.1
    assert max(cost.timings(lambda: time.sleep(0.01), repeats=5, warmup=0, clock="cpu")) < 0.005
    assert (
        cost.measure_cost(nn.Linear(2, 2), torch.zeros(1, 2), repeats=2, threads=1, clock="cpu").clock
        == "cpu"
    )


def test_bad_input() -> None:
    with pytest.raises(EvaluationError, match="one sample or more, got an empty one"):
        cost.measure_cost(nn.Linear(2, 2), torch.zeros(0, 2))
    with pytest.raises(EvaluationError, match="needs threads=1, got threads=2"):
        cost.measure_cost(nn.Linear(2, 2), torch.zeros(1, 2), threads=2, clock="cpu")
    with pytest.raises(EvaluationError, match="repeats: expected 2 or more"):
        cost.timings(lambda: None, repeats=1)
