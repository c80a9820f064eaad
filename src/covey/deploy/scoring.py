"""One number for an answer on held-out data: what selection and soups compare by."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from covey.combine import Prediction, answer
from covey.errors import OptionError
from covey.quantiles import Quantiles
from covey.scores import metrics, regression
from covey.scores.collect import collect
from covey.scores.held_out import HeldOut, held_out
from covey.scores.model import evaluated_model
from covey.scores.record import Record

LOWER_IS_BETTER = {"nll": True, "accuracy": False, "rmse": True, "pinball": True}
"""The scores by name, and which way is up."""

_BATCH = 256


@dataclass(frozen=True)
class Judge:
    """Scores answers on one set of held-out data.

    Args:
        data: read once.
        score: a name of LOWER_IS_BETTER.
    """

    data: HeldOut
    score: str

    def outputs(self, ensemble: Any) -> Record:
        """What an ensemble's members answer."""
        return collect(evaluated_model(ensemble), self.data, batch_size=_BATCH)

    def of_network(self, network: Any) -> float:
        """The score of a plain network, or of an ensemble of one."""
        model = evaluated_model(network)
        if model.task is None and self.score == "rmse":  # a plain network does not say what it answers with
            model = replace(model, task="regression")
        return self.of_members(collect(model, self.data, batch_size=_BATCH), [0])

    def of_members(self, record: Record, members: Sequence[int]) -> float:
        """The score of the combined answer of some members, who may stand there more than once."""
        outputs = record.outputs[list(members)]
        asked = Quantiles.of(record.task)
        if asked is not None:
            in_order = asked.answer(outputs).quantiles
            return float(self._known({"pinball": asked}, record)(in_order, record.targets))
        if record.task == "regression":
            return self._of_numbers(record, outputs, list(members))
        found = answer(outputs, "classification", -1)
        assert isinstance(found, Prediction)
        measure = {"nll": metrics.nll, "accuracy": metrics.accuracy}
        return self._known(measure, record)(found.log_probs, record.targets)

    def _of_numbers(self, record: Record, outputs: Tensor, members: list[int]) -> float:
        measure: dict[str, Callable[..., float]] = {"rmse": regression.rmse}
        if record.variance is None:
            return self._known(measure, record)(outputs.mean(0), record.targets)
        mixed = _mixed(outputs, record.variance[members])
        if self.score == "nll":
            return regression.gaussian_nll(mixed[0], mixed[1], record.targets)
        return self._known({**measure, "nll": regression.gaussian_nll}, record)(mixed[0], record.targets)

    def _known(self, measures: Mapping[str, Callable[..., Any]], record: Record) -> Callable[..., Any]:
        if self.score not in measures:
            names = " or ".join(map(repr, measures))
            raise OptionError(f"score is {names} for these {record.task} data; got {self.score!r}.")
        return measures[self.score]

    def is_better(self, new: float, old: float) -> bool:
        """Whether a score is strictly better than another."""
        return new < old if LOWER_IS_BETTER[self.score] else new > old


def judge(data: Any, score: str) -> Judge:
    """Read the held-out data, of a container its validation part."""
    if score not in LOWER_IS_BETTER:
        raise OptionError(f"score is one of {', '.join(map(repr, LOWER_IS_BETTER))}; got {score!r}.")
    found = held_out(data)
    if found.validation is not None:  # of data with several parts, test data are not to choose by
        found = replace(found, test=found.validation, validation=None)
    return Judge(replace(found, ood={}), score)


def _mixed(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the mixture of the members' Gaussians."""
    return mean.mean(0), variance.mean(0) + mean.var(0, correction=0)
