"""Ensembles that are stored without what their base network has already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import covey
from covey import zoo
from covey.errors import OptionError, StoreError

x = torch.randn(5, 16, generator=torch.Generator().manual_seed(1))


def base(width: int = 256) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def trained(network: nn.Module, method: covey.Method) -> covey.Ensemble:
    """After one step, so that what is trained differs from the base."""
    ens = covey.convert(network, method, example=x)
    optimizer = torch.optim.SGD(ens.param_groups(lr=0.1))
    ens.loss(x, torch.arange(5) % 3).backward()
    optimizer.step()
    return ens.eval()


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize(
    "method", [covey.LowRank(rank=2), covey.BatchEnsemble(base=0.0)], ids=["low-rank", "rank-one"]
)
def test_only_what_the_ensemble_adds_is_stored(tmp_path: Path, method: covey.Method) -> None:
    network = base()
    ens = trained(network, method)
    covey.save(ens, tmp_path / "whole")
    covey.save(ens, tmp_path / "added", base=network)
    assert size(tmp_path / "added") < size(tmp_path / "whole") - 4 * 16 * 256
    again = covey.load(tmp_path / "added", network)
    ours, theirs = ens.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in ens.parameters()]


def test_the_base_is_not_shared_with_what_was_loaded(tmp_path: Path) -> None:
    network = base()
    covey.save(trained(network, covey.LowRank(rank=2)), tmp_path, base=network)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    again = covey.load(tmp_path, network)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_a_network_of_the_zoo_must_be_given_with_its_weights(tmp_path: Path) -> None:
    network = zoo.create("mlp", classes=3, features=16, hidden=(64,))
    covey.save(trained(network, covey.LowRank(rank=2)), tmp_path, base=network)
    with pytest.raises(StoreError, match="only what the ensemble adds"):
        covey.load(tmp_path)
    assert torch.equal(covey.load(tmp_path, network)(x), covey.load(tmp_path, network)(x))


def test_other_weights_and_other_networks_are_refused(tmp_path: Path) -> None:
    network = base()
    covey.save(trained(network, covey.LowRank(rank=2)), tmp_path, base=network)
    other = base()
    with torch.no_grad():
        other[0].weight[0, 0] += 1e-6
    with pytest.raises(StoreError, match="other weights: the checksum"):
        covey.load(tmp_path, other)
    with pytest.raises(StoreError, match="another architecture"):
        covey.load(tmp_path, base(width=32))


def test_a_base_that_was_trained_on_is_no_base(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    ens = trained(network, covey.BatchEnsemble())
    with pytest.raises(StoreError, match="base frozen"):
        covey.save(ens, tmp_path, base=network)
    assert not list(tmp_path.iterdir())


def test_a_name_is_no_base(tmp_path: Path) -> None:
    ens = covey.convert(base(), covey.MultiHead(members=2), example=x)
    with pytest.raises(OptionError, match="base is the network that the ensemble was made from; got str"):
        covey.save(ens, tmp_path / "run", base="resnet-18")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda stored: stored["tensors"].update({next(iter(stored["tensors"])): "no.such"}),
            "has no 'no.such'",
        ),
        (lambda stored: stored["tensors"].popitem(), "should be"),
        (lambda stored: stored.update(sha256="0" * 64), "checksum"),
        (lambda stored: stored.update(sha256=5), "should be a text"),
    ],
    ids=["name", "lacking", "checksum", "type"],
)
def test_a_changed_record_of_the_base_is_refused(tmp_path: Path, change: object, said: str) -> None:
    network = base()
    covey.save(trained(network, covey.LowRank(rank=2)), tmp_path, base=network)
    config = json.loads((tmp_path / "config.json").read_text())
    change(config["base"])  # type: ignore[operator]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(StoreError, match=said):
        covey.load(tmp_path, network)


def test_a_large_network_in_a_small_folder(tmp_path: Path) -> None:
    """The figure on the page docs/smaller.md."""
    network = zoo.create("cifar-resnet-18", classes=10, channels=3)
    method = covey.BatchEnsemble(members=4, base=0.0)
    ens = covey.convert(network, method, example=torch.randn(2, 3, 32, 32), check=False)
    covey.save(ens, tmp_path, base=network)
    weights = 4 * sum(p.numel() for p in network.parameters())
    print(f"{weights / 1e6:.1f} MB, stored in {size(tmp_path) / 1e6:.2f} MB")
    assert size(tmp_path) < 0.03 * weights
