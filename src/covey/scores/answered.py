"""A record of answers that somebody else's trainer collected."""

from __future__ import annotations

from torch import Tensor

from covey.combine import gaussian
from covey.errors import EvaluationError
from covey.quantiles import KIND, kind_of

from .record import Record

Answers = tuple[Tensor, Tensor]
"""Members' outputs (M, N, ..., C) and targets (N, ...)."""


def answered(
    test: Answers,
    task: str,
    *,
    language: bool = False,
    ignore_index: int | None = None,
    validation: Answers | None = None,
) -> Record:
    """Members' outputs with what they should have been, ready to be scored.

    Args:
        test: members' outputs (M, N, ..., C), classes last, and targets. Each position of a text is a sample.
        task: the ensemble's.
        language: whether classes are the next symbols of a text.
        ignore_index: the label of what does not count.
        validation: as `test`, for temperatures and conformal sets.
    """
    if task == "multilabel":
        outputs, truths = test
        return Record(outputs=outputs.float(), targets=truths.cpu(), task="multilabel")
    if kind_of(task) == KIND:
        outputs, numbers = test
        goal = numbers.float()
        if goal.numel() == len(goal):
            goal = goal.flatten()
        return Record(outputs=outputs.float(), targets=goal, task=task)
    if task != "classification":
        return _regression(*test, task=task)
    outputs, labels = _counted(*test, ignore_index)
    return Record(
        outputs=outputs,
        targets=labels,
        task="language" if language else "classification",
        validation=None if validation is None else _counted(*validation, ignore_index),
    )


def _counted(outputs: Tensor, labels: Tensor, ignore_index: int | None) -> Answers:
    """(M, n, C) and (n,), without what does not count."""
    return without_ignored(outputs.float().flatten(1, -2), labels.flatten(), ignore_index)


def without_ignored(outputs: Tensor, labels: Tensor, ignore_index: int | None) -> Answers:
    """Outputs (M, N, C) and labels (N,) of what counts."""
    if ignore_index is None:
        return outputs, labels
    counts = labels != ignore_index
    if not counts.any():
        raise EvaluationError(
            f"there is nothing to score: all labels are {ignore_index}, which does not count"
        )
    return outputs[:, counts], labels[counts]


def _regression(outputs: Tensor, targets: Tensor, task: str) -> Record:
    outputs = outputs.float()
    if outputs.ndim == 2:
        outputs = outputs[..., None]
    mean, variance = outputs.flatten(2), None
    if task == "gaussian":
        mean, variance = gaussian(mean)
    goal = targets.float()
    if goal.numel() == mean[0].numel():  # else `Record` says which shape it expected
        goal = goal.reshape(mean.shape[1:])
    return Record(outputs=mean, targets=goal, task="regression", variance=variance)
