"""A multilayer perceptron, for tables and for small images."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from covey.zoo.check import whole, wholes
from covey.zoo.layers import dropout as dropout_layer


class MLP(nn.Module):
    """Linear layers with a ReLU after each but the last.

    Args:
        classes: outputs; 2 for a mean and a variance.
        features: numbers in one sample, whatever its axes.
        hidden: units of each hidden layer; () is a linear model.
        dropout: probability of a hidden unit to be zeroed in training.

    Takes (B, ...) with `features` numbers a sample, returns (B, C).
    """

    def __init__(
        self, *, classes: int, features: int, hidden: Sequence[int] = (200, 200), dropout: float = 0.0
    ) -> None:
        super().__init__()
        widths = (whole("features", features), *wholes("hidden", hidden))
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), dropout_layer(dropout)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(widths[-1], whole("classes", classes))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (B, C) for samples (B, ...)."""
        return self.head(self.body(x.flatten(1)))
