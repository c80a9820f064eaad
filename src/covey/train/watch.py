"""Watching a run: validation scores, early stopping, collapsed members, the progress bar."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.combine import Answer, MultiLabel, Prediction, Regression
from covey.data import Data, Split
from covey.ensemble import Ensemble
from covey.errors import OptionError, TrainingError
from covey.extras import load
from covey.networks.calls import arguments
from covey.quantiles import QuantileAnswer, Quantiles
from covey.seeds import reseed, seed_of
from covey.tensors import moved
from covey.train.samples import check_read, fault
from covey.train.state import Job, State
from covey.train.step import as_targets

BATCH = 512
COLLAPSED = 1e-3  # members' spread, relative to that of the outputs, below which they count as one
RISING = {"accuracy": True, "nll": False, "rmse": False, "pinball": False}


def chosen_score(data: Data, asked: str | None, loss: Any = None) -> str:
    """The validation score that the best epoch is chosen by."""
    if isinstance(loss, Quantiles):
        if asked not in (None, "pinball", "rmse"):
            raise OptionError(f"choose={asked!r} is not defined for quantiles; it is 'pinball' or 'rmse'.")
        return asked or "pinball"
    if asked is None:
        return "rmse" if data.task == "regression" else "accuracy"
    if asked == "pinball":
        raise OptionError("choose='pinball' is the score of quantiles, and none are asked for.")
    if (asked == "accuracy") == (data.task == "regression") and asked != "nll":
        raise OptionError(f"choose={asked!r} is not defined for {data.task}.")
    return asked


def validate(job: Job, ensemble: Ensemble, split: Split, epoch: int) -> dict[str, float]:
    """Scores of the ensemble and of its members, over all processes. In a regression's own unit."""
    device, fabric = job.fabric.device, job.fabric
    sums: Tensor | None = None
    names: list[str] = []
    reseed(seed_of(job.recipe.seed, "validate", epoch, fabric.global_rank), device)
    for raw, labels in split.in_order(BATCH, first=fabric.global_rank, every=fabric.world_size):
        if not split.in_memory:
            check_read(labels, "validation", job.data, job.recipe)
        args, kwargs = arguments(moved(job.data.prepare(raw), device))
        targets = as_targets(labels, job.data).to(device)
        with fabric.autocast():
            answer = ensemble.predict(*args, check=False, **kwargs)
        scores = SUMS[type(answer)](answer, targets, job)
        names = list(scores)
        found = torch.stack([torch.as_tensor(v, dtype=torch.float64, device=device) for v in scores.values()])
        sums = found if sums is None else sums + found
    if fabric.world_size > 1:
        names = fabric.broadcast(names)
        sums = torch.zeros(len(names), dtype=torch.float64, device=device) if sums is None else sums
        sums = fabric.all_reduce(sums, reduce_op="sum")  # type: ignore[assignment]
    assert sums is not None
    scores = _means(dict(zip(names, sums.tolist(), strict=True)), job.data)
    if not all(map(math.isfinite, scores.values())):
        reason = fault(split, torch.arange(len(split)), "validation") if split.in_memory else None
        if reason is not None:
            raise TrainingError(f"the validation scores after epoch {epoch} are not finite: {reason}")
    return scores


def _classes(answer: Prediction, targets: Tensor, job: Job) -> dict[str, Any]:
    """Sums over a batch of labels (B, ...), without those that are ignored."""
    answer = Prediction(answer.logits.float())  # whatever precision the network ran in
    ignored = job.recipe.ignore_index
    if ignored is not None:
        counts = targets != ignored
        answer, targets = Prediction(answer.logits[:, counts]), targets[counts]
    targets = targets.long()
    members, classes = len(answer.logits), answer.logits.shape[-1]
    votes = F.one_hot(answer.logits.argmax(-1), classes).sum(0)
    pairs = max(members * (members - 1), 1)
    own = answer.member_log_probs.gather(-1, targets.expand(members, *targets.shape)[..., None])
    return {
        "count": targets.numel(),
        "accuracy": (answer.label == targets).sum(),
        "member_accuracy": (answer.logits.argmax(-1) == targets).double().mean(0).sum(),
        "nll": -answer.log_probs.gather(-1, targets[..., None]).double().sum(),
        "member_nll": -own.double().mean(0).sum(),
        "disagreement": (1 - (votes * (votes - 1)).sum(-1) / pairs).double().sum() if members > 1 else 0.0,
        "between": answer.logits.double().var(0, correction=0).sum(),
        "within": answer.logits.double().mean(0).var(-1, correction=0).sum() * classes,
    }


def _labels(answer: MultiLabel, targets: Tensor, job: Job) -> dict[str, Any]:
    """Sums over a batch of labels that are 0 or 1, (B, L): each label of each sample counts."""
    answer = MultiLabel(answer.logits.float())
    members = len(answer.logits)
    said = answer.logits > 0
    votes = said.double().sum(0)
    pairs = max(members * (members - 1), 1)
    true = targets > 0.5
    own = F.binary_cross_entropy_with_logits(
        answer.logits, targets.expand_as(answer.logits), reduction="none"
    )
    return {
        "count": targets.numel(),
        "accuracy": (answer.labels == true).sum(),
        "member_accuracy": (said == true).double().mean(0).sum(),
        "nll": F.binary_cross_entropy_with_logits(answer.log_odds, targets, reduction="sum").double(),
        "member_nll": own.double().mean(0).sum(),
        "disagreement": (2 * votes * (members - votes) / pairs).sum() if members > 1 else 0.0,
        "between": answer.logits.double().var(0, correction=0).sum(),
        "within": answer.logits.double().mean(0).var(correction=0) * targets.numel(),
    }


def _regression(answer: Regression, targets: Tensor, job: Job) -> dict[str, Any]:
    """Sums over a batch of numbers (B, D), in their own unit."""
    if answer.mean.numel() == targets.numel():
        targets = targets.reshape(answer.mean.shape)
    else:
        # what outputs of another shape mean, only the user's loss knows: there is no error to take
        return {"count": targets.numel(), **_spread(answer, answer.mean)}
    variance = answer.member_variance
    answer = Regression(answer.member_mean.float(), None if variance is None else variance.float())
    unit = _unit(job, targets)
    scores = {
        "count": targets.numel(),
        "rmse": ((answer.mean - targets).double() * unit).square().sum(),
        "member_rmse": ((answer.member_mean - targets).double() * unit).square().mean(0).sum(),
        **_spread(answer, targets),
    }
    if answer.member_variance is not None:
        nll = F.gaussian_nll_loss(answer.mean, targets, answer.variance, full=True, reduction="none")
        scores["nll"] = (nll.double() + unit.log()).sum()
    return scores


def _spread(answer: Regression, beside: Tensor) -> dict[str, Any]:
    """How far members are apart, and the size of the numbers that this is compared with."""
    return {"between": answer.epistemic.double().sum(), "within": beside.double().square().sum()}


def _quantiles(answer: QuantileAnswer, targets: Tensor, job: Job) -> dict[str, Any]:
    """Sums over a batch of numbers (B, D): the pinball loss, and the error of the level nearest to the median."""
    answer, unit = QuantileAnswer(answer.members.float(), answer.asked), _unit(job, targets)
    members = len(answer.members)
    goal = targets.reshape(answer.centre.shape)
    centres = answer.asked.centre(answer.members).reshape(members, *targets.shape)
    points = _regression(Regression(centres), targets, job)
    losses = answer.asked.losses(answer.quantiles, goal).double().mean(-1)
    own = answer.asked.losses(answer.members, goal.expand(members, *goal.shape))
    return {
        **points,
        "pinball": (losses * unit).sum(),
        "member_pinball": (own.double().mean((0, -1)) * unit).sum(),
        "between": answer.epistemic.double().mean(-1).sum(),
    }


def _unit(job: Job, targets: Tensor) -> Tensor:
    """What one of the standardised targets is in its own unit, (D,)."""
    scale = job.data.target_normalisation
    unit = torch.ones(1) if scale is None else torch.tensor(scale.std)
    return unit.to(targets.device, torch.float64)


SUMS: dict[type[Answer], Callable[[Any, Tensor, Job], dict[str, Any]]] = {
    Prediction: _classes,
    MultiLabel: _labels,
    Regression: _regression,
    QuantileAnswer: _quantiles,
}
"""How a batch of each kind of answer adds to the validation scores."""


def _means(sums: dict[str, float], data: Data) -> dict[str, float]:
    count, between, within = sums.pop("count"), sums.pop("between"), sums.pop("within")
    scores = {name: value / count for name, value in sums.items()}
    for name in ("rmse", "member_rmse"):
        if name in scores:
            scores[name] = math.sqrt(scores[name])
    if data.task == "language":
        scores["bits"] = scores["nll"] / math.log(2)
    scores["spread"] = math.sqrt(between / within) if within > 0 else 0.0
    return scores


def warn_if_collapsed(scores: dict[str, float], members: int, epoch: int) -> None:
    """Say so where members answer the same, so that they are one network at the price of several."""
    if members > 1 and scores["spread"] < COLLAPSED:
        warnings.warn(
            f"after epoch {epoch} the {members} members have collapsed into one: their answers differ by "
            f"{scores['spread']:.1e} of their size. Give them different starts (init, noise) or different batches "
            "(plan='independent').",
            stacklevel=3,
        )


def note_best(state: State, name: str, value: float, weights: dict[str, Tensor]) -> None:
    """Keep the weights if the validation score is the best so far, and count the epochs since."""
    best = state.notes.get("best")
    better = best is None or (value > best if RISING[name] else value < best)
    if better:
        state.notes["best"], state.notes["best_epoch"], state.notes["waited"] = value, len(state.rows) + 1, 0
        state.keep("best", weights)
    else:
        state.notes["waited"] += 1


@contextmanager
def filled_with(ensemble: Ensemble, tensors: dict[str, Tensor]) -> Iterator[Ensemble]:
    """The ensemble with other tensors for a while; with none given, as it is."""
    if not tensors:
        yield ensemble
        return
    own = {name: tensor.clone() for name, tensor in ensemble.state_dict().items()}
    ensemble.load_state_dict(tensors)
    try:
        yield ensemble
    finally:
        ensemble.load_state_dict(own)


@torch.no_grad()
def update_average(state: State, decay: float) -> None:
    """Move the exponential average of weights and statistics towards the present ones."""
    present = state.ensemble.state_dict()
    average = state.recall("ema")
    if not average:
        state.keep("ema", present)
        return
    for name, tensor in present.items():
        if tensor.is_floating_point():
            average[name].lerp_(tensor, 1 - decay)
        else:
            average[name].copy_(tensor)


def progress_bar(job: Job, state: State) -> Any:
    """A bar over all minibatches of the run; silent in other processes and where it was not asked for."""
    return load("tqdm").tqdm(
        total=job.recipe.epochs * job.stream.per_epoch,
        initial=state.consumed,
        unit="batch",
        disable=None if job.leads and job.machine.progress else True,  # None: only on a terminal
        leave=False,
    )


def headline(row: dict[str, Any]) -> dict[str, str]:
    """The scores of an epoch that a reader wants first, short."""
    shown = {
        "loss": "loss",
        "accuracy": "accuracy",
        "member_accuracy": "members",
        "nll": "nll",
        "pinball": "pinball",
        "rmse": "rmse",
    }
    shown |= {"disagreement": "disagreement"}
    return {short: f"{row[name]:.4f}" for name, short in shown.items() if row.get(name) is not None}
