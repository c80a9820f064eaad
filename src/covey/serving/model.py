"""What is served: an ensemble, what its inputs look like, and how its answers are told."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from covey.data import tokens
from covey.data.inputs import prepare
from covey.ensemble import Ensemble
from covey.errors import EvaluationError, OptionError
from covey.quantiles import KIND, Quantiles, kind_of
from covey.scores.subsets import Anytime
from covey.serving.batcher import Columns
from covey.serving.deployed import ServedFile
from covey.serving.refusals import RefusedError
from covey.version import __version__

FINITE = "finite"  # a column that says whether all numbers of a sample's answer are
MEMBERS = "members"  # a column with the members' own answers
_NUMBERS = ("mean", "std", "epistemic", "aleatoric")
_ANSWERS = {
    "classification": ("label", "probs", "entropy", "mutual_information"),
    "regression": _NUMBERS,
    "gaussian": _NUMBERS,
    KIND: ("prediction", "quantiles", "width", "epistemic"),
}
"""The names of what is answered, by the ensemble's task."""

_DEFER_BY = {
    "classification": ("entropy", "mutual_information"),
    "regression": ("std", "epistemic"),
    "gaussian": ("std", "epistemic"),
    KIND: ("width", "epistemic"),
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """An ensemble that is ready to be served.

    Args:
        ensemble: in eval mode, or an exported file.
        record: of the training data, `Data.record`: shape, columns, classes and normalisation.
        name: in the paths of the Open Inference Protocol.
        defer: answers whose uncertainty is above it are marked; None for no mark.
        defer_by: "entropy" (nats) or "mutual_information" of classes, "std" or "epistemic" of numbers, "width" or
            "epistemic" of quantiles; the first by default.
        anytime: what subsets of members cost, for requests that name a budget of time.
    """

    ensemble: Ensemble | ServedFile
    record: Mapping[str, Any]
    name: str = "covey"
    defer: float | None = None
    defer_by: str | None = None
    anytime: Anytime | None = None

    def __post_init__(self) -> None:
        for task in (self.record["task"], self.ensemble.task):
            if kind_of(task) not in _ANSWERS:
                raise OptionError(
                    f"only runs that answer with one class or one number are served; this one's task is {task}."
                )
        if not re.fullmatch(r"[\w.-]{1,200}", self.name, re.ASCII):
            raise OptionError(f"--name has letters, digits, '.', '_' and '-' alone; got {self.name!r}.")
        if self.defer is not None and not (math.isfinite(self.defer) and self.defer >= 0):
            raise OptionError(f"--defer is a finite number of at least 0; got {self.defer}.")
        if (self.task == "regression") != (self.ensemble.task != "classification"):
            raise OptionError(
                f"the data are for {self.task}, and what is served answers a {self.ensemble.task}: they do not belong "
                "together."
            )
        known = _DEFER_BY[self.kind]
        if self.defer_by is not None and self.defer_by not in known:
            raise OptionError(
                f"--defer-by is one of {', '.join(known)} for {self.task}; got {self.defer_by!r}."
            )

    @property
    def task(self) -> str:
        """ "classification" or "regression"."""
        return self.record["task"]

    @property
    def kind(self) -> str:
        """What the ensemble answers with: its task, without the levels of quantiles."""
        return kind_of(self.ensemble.task)

    @property
    def levels(self) -> tuple[float, ...]:
        """Of the quantiles that are answered; none for another task."""
        asked = Quantiles.of(self.ensemble.task)
        return () if asked is None else asked.levels

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample."""
        return tuple(self.record["shape"])

    @property
    def columns(self) -> list[dict[str, Any]]:
        """How the columns of a table are encoded; none where inputs are arrays."""
        return self.record["columns"]

    @property
    def takes(self) -> str:
        """What inputs are: "table", "text", "image" or "array"."""
        if self.columns:
            return "text" if self.columns[0]["kind"] == tokens.KIND else "table"
        return "image" if len(self.shape) == 3 and self.shape[0] in (1, 3) else "array"

    @property
    def uncertainty(self) -> str:
        """The number that is compared with the threshold."""
        return self.defer_by or _DEFER_BY[self.kind][0]

    @property
    def answers(self) -> tuple[str, ...]:
        """The names of what is answered for each sample."""
        ends = ("low", "high") if self.task == "regression" and self.guaranteed else ()
        return (*_ANSWERS[self.kind], *ends, "defer")

    @property
    def guaranteed(self) -> bool:
        """Whether answers have conformal sets or intervals."""
        served = self.ensemble
        return served.guaranteed if isinstance(served, ServedFile) else served.conformal is not None

    @property
    def coverage(self) -> float | None:
        """The share of truths that conformal sets or intervals hold at least; None where there are none."""
        served = self.ensemble
        fitted = served.alpha if isinstance(served, ServedFile) else getattr(served.conformal, "alpha", None)
        return None if fitted is None else 1 - fitted

    @property
    def tells_members(self) -> bool:
        """Whether each member's own answer is known."""
        return isinstance(self.ensemble, Ensemble) or self.ensemble.tells_members

    def classes(self, outputs: int) -> list[str]:
        """A name for each output; a network may have more outputs than the data have classes."""
        named = list(self.record["classes"])[:outputs]
        return named + [f"class {i}" for i in range(len(named), outputs)]

    def prepared(self, inputs: Tensor) -> Tensor:
        """Raw inputs, (N, ...), as the ensemble takes them."""
        return prepare(inputs, dict(self.record))

    def chosen(self, budget_ms: float | None, samples: int) -> tuple[int, ...] | None:
        """The members that answer within a budget of time; None for all."""
        if budget_ms is None:
            return None
        if self.anytime is None:
            raise RefusedError(
                422,
                "budget_ms needs a service that has measured the members of a run: start it with --anytime",
            )
        try:
            return self.anytime.best(budget_ms, samples).members
        except EvaluationError as error:
            raise RefusedError(422, str(error)) from error

    def run(self, inputs: Tensor, members: Sequence[int] | None = None, each: bool = False) -> Columns:
        """The answer to prepared inputs, (N, ...), by name with one entry per sample."""
        subset = {} if members is None else {"members": members}
        # Not checked here, where several requests share a batch: `FINITE` tells which samples are to blame.
        found: Any = self.ensemble.predict(inputs, check=False, **subset)
        # What was fitted for all members guarantees nothing for some of them.
        guaranteed = found.guaranteed and members is None
        columns = self._TELLS[self.kind](self, found, each, guaranteed)
        if self.defer is None:
            columns["defer"] = [None] * len(inputs)
        else:
            columns["defer"] = [value > self.defer for value in columns[self.uncertainty]]
        return columns

    def _of_classes(self, found: Any, each: bool, guaranteed: bool) -> Columns:
        names = self.classes(found.probs.shape[-1])
        columns: Columns = {
            "label": [names[i] for i in found.label.tolist()],
            "probs": found.probs.tolist(),
            "entropy": found.entropy.tolist(),
            "mutual_information": found.mutual_information.tolist(),
            FINITE: found.probs.isfinite().all(-1).tolist(),
        }
        if guaranteed:
            columns["set"] = [[names[i] for i in row.nonzero().flatten().tolist()] for row in found.sets]
        if each:
            columns[MEMBERS] = found.member_log_probs.exp().transpose(0, 1).tolist()
        return columns

    def _of_numbers(self, found: Any, each: bool, guaranteed: bool) -> Columns:
        scale, _ = self._unit
        variance = found.variance.flatten()
        columns: Columns = {
            "mean": self._restored(found.mean.flatten()).tolist(),
            "std": (found.std.flatten().double() * scale).tolist(),
            "epistemic": (found.epistemic.flatten().double() * scale**2).tolist(),
            "aleatoric": (found.aleatoric.flatten().double() * scale**2).tolist(),
            FINITE: (variance.isfinite() & found.mean.flatten().isfinite()).tolist(),
        }
        if guaranteed:
            columns |= self._ends(found)
        if each:
            means = found.member_mean.flatten(1).transpose(0, 1)
            columns[MEMBERS] = self._restored(means).tolist()
        return columns

    def _of_quantiles(self, found: Any, each: bool, guaranteed: bool) -> Columns:
        scale, _ = self._unit
        spread = found.asked.centre(found.epistemic).flatten().double()
        width = (found.quantiles[:, -1] - found.quantiles[:, 0]).double()
        columns: Columns = {
            "prediction": self._restored(found.centre).tolist(),
            "quantiles": self._restored(found.quantiles).tolist(),
            "width": (width * scale).tolist(),
            "epistemic": (spread * scale**2).tolist(),
            FINITE: found.quantiles.isfinite().all(-1).flatten().tolist(),
        }
        if guaranteed:
            columns |= self._ends(found)
        if each:
            columns[MEMBERS] = self._restored(found.members.transpose(0, 1)).tolist()
        return columns

    def _ends(self, found: Any) -> Columns:
        """The ends of the conformal intervals."""
        return {name: self._restored(getattr(found, name).flatten()).tolist() for name in ("low", "high")}

    def _restored(self, numbers: Tensor) -> Tensor:
        """Answers in the target's own unit, as float64, which tells even dates in seconds apart."""
        scale, shift = self._unit
        return numbers.double() * scale + shift

    @property
    def _unit(self) -> tuple[float, float]:
        """What leads answers back to the target's own unit: a factor, and what is added then."""
        unit = self.record["target_normalisation"] or {"mean": [0.0], "std": [1.0]}
        return unit["std"][0], unit["mean"][0]

    _TELLS: ClassVar[Mapping[str, Callable[..., Columns]]] = {
        "classification": _of_classes,
        "regression": _of_numbers,
        "gaussian": _of_numbers,
        KIND: _of_quantiles,
    }

    def warm_up(self, batch: int = 1) -> None:
        """Answer once, so that a run that cannot be served says so before the first request, and none waits for it."""
        dtype = torch.int64 if self.takes == "text" else torch.float32
        for size in sorted({1, batch}):
            columns = self.run(self.prepared(torch.zeros(size, *self.shape, dtype=dtype)))
            nested = any(
                isinstance(row, list) and isinstance(row[0], list) for row in columns.get("probs", ())
            )
            if len(columns[FINITE]) != size or nested:
                raise OptionError(
                    "only networks that answer with one class or one number per sample are served; this one gives more."
                )

    @property
    def _method(self) -> str:
        served = self.ensemble
        return served.method if isinstance(served, ServedFile) else type(served.method).__name__

    @property
    def _calibrated(self) -> bool:
        served = self.ensemble
        return served.calibrated if isinstance(served, ServedFile) else served.temperature is not None

    def metadata(self) -> dict[str, Any]:
        """What a client needs to know."""
        sets = ("set",) if self.task == "classification" and self.guaranteed else ()
        found: dict[str, Any] = {
            "name": self.name,
            "version": __version__,
            "task": self.task,
            "method": self._method,
            "members": self.ensemble.members,
            "tells_members": self.tells_members,
            "takes": self.takes,
            "shape": list(self.shape),
            "answers": [*self.answers, *sets],
            "coverage": self.coverage,
            "classes": list(self.record["classes"]),
            "levels": list(self.levels),
            "columns": [_described(column) for column in self.columns],
            "defer": None if self.defer is None else {"above": self.defer, "of": self.uncertainty},
            "calibrated": self._calibrated,
        }
        if self.anytime is not None:
            found["anytime"] = [
                {"members": list(subset.members), "ms": subset.milliseconds, "score": subset.score}
                for subset in self.anytime.front()
            ]
        return found


def _described(column: Mapping[str, Any]) -> dict[str, Any]:
    """A column for a client: its name, its kind and the values it may have."""
    told = {"name": column["name"], "kind": column["kind"]}
    for name in ("values", "format", "missing"):
        if name in column:
            told[name] = column[name]
    return told
