"""The loss around and between the members of a run that is done, for the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from covey.cli import reading
from covey.cli.planned import PlannedRun
from covey.ensemble import Ensemble


@dataclass(frozen=True)
class Around:
    """What to compute, on how many test samples each; 0 for nothing.

    Args:
        flatness: the rise of the loss with noise on the first member's weights.
        interpolation: loss and accuracy on the line between the first two members.
    """

    flatness: int = 0
    interpolation: int = 0

    @property
    def asked(self) -> bool:
        """Whether there is anything to compute."""
        return bool(self.flatness or self.interpolation)

    def found(self, one: PlannedRun) -> dict[str, Any]:
        """What the report takes of a run, by the names of `covey.scores.landscape`."""
        from covey.scores.landscape import flatness
        from covey.scores.subsets import spread

        code = one.settings.network.network if one.settings.network.code else None
        ensemble = reading.read_ensemble(one.folder, code)
        data = one.settings.dataset.load()

        def some(samples: int) -> tuple[Tensor, Tensor]:
            rows = spread(len(data.test), samples)
            return data.prepare(data.test.inputs[rows]), data.test.targets[rows]

        result: dict[str, Any] = {}
        if self.flatness:
            result["flatness"] = flatness(ensemble.member(0), *some(self.flatness))
        if self.interpolation and _alike(ensemble):
            result["interpolation"] = _between(ensemble, *some(self.interpolation))
        return result


def _alike(ensemble: Ensemble) -> bool:
    """Whether there are two members of one shape, between which a line can be drawn."""
    return ensemble.members > 1 and _shapes(ensemble, 0) == _shapes(ensemble, 1)


def _shapes(ensemble: Ensemble, member: int) -> dict[str, Any]:
    network = ensemble.member(member)
    return {name: tensor.shape for name, tensor in network.state_dict().items()}


def _between(ensemble: Ensemble, inputs: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """On the line, norms use the statistics of the inputs: those of the members mean little in between."""
    from covey.scores.landscape import interpolation

    first, second = ensemble.member(0), ensemble.member(1)
    return interpolation(first, second, inputs, labels, batch_statistics=True)
