"""Files of networks over sequences: of any length where the network takes any, else with a clear word."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covey
from covey.deploy import DeployedEnsemble
from covey.errors import DataError

STEPS = 8


class Attending(nn.Module):
    """A transformer's layer over tokens with 16 learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(20, 8), nn.Parameter(torch.randn(1, 16, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, 3)."""
        return self.head(self.layer(self.tokens(x) + self.positions[:, : x.shape[1]]).mean(1))


class Recurrent(nn.Module):
    """An LSTM over vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Vectors (B, T, 5) to logits (B, 3)."""
        return self.head(self.layer(x)[0][:, -1])


class Flat(nn.Module):
    """Takes one number of tokens alone."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(20, 4), nn.Linear(4 * STEPS, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, 8) to logits (B, 3)."""
        return self.head(self.tokens(x).flatten(1))


def inputs(network: type[nn.Module], length: int, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(4, length, 5) if network is Recurrent else torch.randint(0, 20, (4, length))


@pytest.mark.slow
@pytest.mark.parametrize("network", [Attending, Recurrent])
def test_any_length(network: type[nn.Module], tmp_path: Path) -> None:
    x = inputs(network, STEPS)
    ensemble = covey.convert(network(), covey.BatchEnsemble(members=2), example=x).eval()
    written = covey.export(ensemble, tmp_path / "a.onnx", x)
    assert written.lengths == "any"
    assert str(written).endswith("sequences of any length")
    found = DeployedEnsemble(tmp_path / "a.onnx")
    (about,) = found.about["inputs"].values()
    assert about["shape"][:2] == ["batch", "length"]
    for length in (1, 3, 11, 16):
        other = inputs(network, length, seed=length)
        expected = ensemble.predict(other).probs.detach().numpy()
        np.testing.assert_allclose(found(other.numpy())["probs"], expected, atol=1e-5)


def test_one_length_is_said(tmp_path: Path) -> None:
    x = inputs(Flat, STEPS)
    ensemble = covey.convert(Flat(), covey.BatchEnsemble(members=2), example=x).eval()
    written = covey.export(ensemble, tmp_path / "a.onnx", x)
    assert written.lengths == STEPS
    assert str(written).endswith("sequences of one length only, 8")
    found = DeployedEnsemble(tmp_path / "a.onnx")
    with pytest.raises(DataError, match=r"has shape \(4, 5\); the file takes \(batch, 8\)"):
        found(inputs(Flat, 5).numpy())
