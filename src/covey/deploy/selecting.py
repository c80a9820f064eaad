"""Fewer members: chosen greedily by what each adds to the answer on validation data.

Caruana et al. (2004). The first member is the best alone; each further one is the member with which the answer of all
chosen so far scores best. With repeats, one may be chosen again and then counts more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from covey.deploy.fusing import check_is_ensemble
from covey.deploy.picking import picked
from covey.deploy.scoring import judge
from covey.ensemble import Ensemble
from covey.errors import OptionError


@dataclass(frozen=True)
class Selection:
    """Some members of an ensemble, in the order in which they were chosen.

    Args:
        ensemble: whose members.
        members: the chosen ones; with repeats, one may be listed more than once.
        score: the score that was compared.
        scores: of the first, the first two, ... chosen members, as far as the search went.
        order: every choice of the search, of which `members` is the beginning.
        everyone: the score of all members.
    """

    ensemble: Ensemble = field(repr=False)
    members: tuple[int, ...]
    score: str
    scores: tuple[float, ...]
    order: tuple[int, ...] = field(repr=False)
    everyone: float

    def smaller(self) -> Ensemble:
        """The ensemble of the chosen members; calibrate it again."""
        return picked(self.ensemble, self.members)


def select_members(
    ensemble: Ensemble, data: Any, *, keep: int | None = None, repeats: bool = False, score: str = "nll"
) -> Selection:
    """Choose the members that answer best together.

    Args:
        ensemble: any, whose members have tensors of their own.
        data: validation data: whatever `covey.evaluate` takes. Of data with a validation part, that part; do not choose
            by test data that you report.
        keep: how many to keep; by default as many as give the best score.
        repeats: whether a member may be chosen more than once.
        score: "nll", "accuracy", or for regressions "rmse", for quantiles "pinball".
    """
    check_is_ensemble(ensemble, "select_members")
    is_whole = isinstance(keep, int) and not isinstance(keep, bool)
    if keep is not None and not (is_whole and 1 <= keep <= ensemble.members):
        raise OptionError(f"keep is a number of members from 1 to {ensemble.members}; got {keep!r}.")
    if not ensemble.differ:
        raise OptionError("members have no tensors of their own, so there is nothing to choose between.")
    judged = judge(data, score)
    record = judged.outputs(ensemble)
    order: list[int] = []
    scores: list[float] = []
    for _ in range(keep or ensemble.members):
        best: tuple[int, float] | None = None
        for k in range(ensemble.members):
            if k in order and not repeats:
                continue
            found = judged.of_members(record, [*order, k])
            if best is None or judged.is_better(found, best[1]):
                best = k, found
        assert best is not None
        order.append(best[0])
        scores.append(best[1])
    count = keep or _best_length(scores, judged.is_better)
    everyone = judged.of_members(record, range(ensemble.members))
    return Selection(ensemble, tuple(order[:count]), score, tuple(scores), tuple(order), everyone)


def _best_length(scores: list[float], is_better: Any) -> int:
    """The shortest beginning that no longer one beats."""
    best = 0
    for i, found in enumerate(scores):
        if is_better(found, scores[best]):
            best = i
    return best + 1
