"""Members' outputs on disk, so that every score can be computed again without the network.

Axes: M members, N samples (for text, samples times positions), C classes, D regression outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.data.npy import read_npz
from covey.errors import DataError, EvaluationError, StoreError
from covey.files import check_stored, whole
from covey.quantiles import KIND, Quantiles, kind_of
from covey.schema import Many, Whole, Word, check, parse_json
from covey.schema import Record as Schema

FORMAT = 1
OOD, CORRUPTED = "ood:", "corrupted:"
"""What the names of sets begin with in the file."""

TASKS = ("classification", "language", "regression", "segmentation", "multilabel", KIND)
_ABOUT = Schema({"format": Whole()}, optional={"task": Word(), "classes": Many(Word())})


@dataclass(frozen=True)
class Record:
    """What the members answered on a test set, checked when it is made.

    Args:
        outputs: logits (M, N, C), or for regression the members' means (M, N, D), or their quantiles (M, N, Q),
            of D targets (M, N, D Q).
        targets: labels or numbers (N,); for regression, and for quantiles of several targets, (N, D); where several
            labels may be true 0 or 1, (N, C).
        task: "classification", "language" (labels are the next symbols), "segmentation" (samples are pixels),
            "multilabel" (labels are a column each), "regression", or quantiles such as "quantiles(0.05, 0.95)".
        variance: for regression the members' variances (M, N, D), if they give any.
        validation: outputs (M, V, C) and targets (V, ...) on validation data, for calibration.
        validation_variance: for regression the members' variances on it (M, V, D), if they give any.
        ood: name -> outputs (M, N', C) on inputs that are not like the training data.
        corrupted: "fog/3" -> outputs (M, K, C) on the first K test inputs, corrupted so.
        classes: the classes' names.
    """

    outputs: Tensor
    targets: Tensor
    task: str = "classification"
    variance: Tensor | None = None
    validation: tuple[Tensor, Tensor] | None = None
    ood: Mapping[str, Tensor] = field(default_factory=dict)
    corrupted: Mapping[str, Tensor] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    validation_variance: Tensor | None = None

    def __post_init__(self) -> None:
        kind = kind_of(self.task)
        if kind not in TASKS:
            raise EvaluationError(f"task: expected one of {', '.join(TASKS)}, got {self.task!r}")
        _check_outputs(self.outputs, "the test set")
        check_targets = _CHECKS.get(kind, _check_labels)
        check_targets(self._by_target(self.outputs), self.targets, "the test set")
        _check_variance(self.outputs, self.variance, "variance")
        if self.validation is not None:
            outputs, labels = self.validation
            _check_outputs(outputs, "the validation set", like=self.outputs)
            check_targets(self._by_target(outputs), labels, "the validation set")
            _check_variance(outputs, self.validation_variance, "the validation set's variance")
        for name, outputs in self.ood.items():
            _check_outputs(outputs, f"the OOD set {name!r}", like=self.outputs)
        for name, outputs in self.corrupted.items():
            _check_outputs(outputs, f"the corrupted set {name!r}", like=self.outputs)
            if outputs.shape[1] > len(self.targets):
                raise EvaluationError(
                    f"the corrupted set {name!r} has {outputs.shape[1]} samples, more than the test set's "
                    f"{len(self.targets)}: it must hold the first test samples, in their order"
                )

    def __repr__(self) -> str:
        members, samples, outputs = self.outputs.shape
        return f"Record(task={self.task!r}, members={members}, samples={samples}, outputs={outputs})"

    def _by_target(self, outputs: Tensor) -> Tensor:
        """Quantiles with those of each target apart, (M, N, Q) or (M, N, D, Q); other outputs as they are."""
        asked = Quantiles.of(self.task)
        return outputs if asked is None else asked.apart(outputs)

    @property
    def members(self) -> int:
        """Number of members M."""
        return len(self.outputs)

    def save(self, path: str | Path, *, half: bool = False) -> None:
        """Write one .npz file, in one step; `half` stores outputs as float16, half the size and 3 decimal digits."""
        arrays = {"outputs": _numpy(self.outputs, half, "outputs"), "targets": self.targets.numpy()}
        if self.variance is not None:
            arrays["variance"] = _numpy(self.variance, False, "variance")
        if self.validation is not None:
            outputs, labels = self.validation
            arrays["validation_outputs"] = _numpy(outputs, half, "validation outputs")
            arrays["validation_targets"] = labels.numpy()
        if self.validation_variance is not None:
            arrays["validation_variance"] = _numpy(self.validation_variance, False, "validation variance")
        for name, outputs in self.ood.items():
            arrays[OOD + name] = _numpy(outputs, half, f"outputs on {name!r}")
        for name, outputs in self.corrupted.items():
            arrays[CORRUPTED + name] = _numpy(outputs, half, f"outputs on {name!r}")
        about = {"format": FORMAT, "task": self.task, "classes": list(self.classes)}
        # An open file, because savez would add .npz to the draft's name. Two names of savez itself cannot be keys;
        # none of ours is "file" or "allow_pickle".
        with whole(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]

    @staticmethod
    def load(path: str | Path) -> Record:
        """Read what `save` wrote. Never unpickles, so a file from anyone is safe to read."""
        about, tensors = _read(Path(path))
        validation = None
        if "validation_outputs" in tensors:
            validation = (tensors["validation_outputs"], tensors["validation_targets"])
        return Record(
            outputs=tensors["outputs"],
            targets=tensors["targets"],
            task=about["task"],
            variance=tensors.get("variance"),
            validation=validation,
            ood=_named(tensors, OOD),
            corrupted=_named(tensors, CORRUPTED),
            classes=tuple(about["classes"]),
            validation_variance=tensors.get("validation_variance"),
        )


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The description and the tensors of a file, if it holds all that it must."""
    try:
        check_stored(path)
        arrays = read_npz(path)
        about = parse_json(str(arrays.pop("about")), path)
        check(about, _ABOUT, path)
        version = about["format"]
    except (DataError, StoreError, KeyError) as problem:
        reason = problem.__cause__ or problem  # without the advice for users' own arrays
        raise EvaluationError(
            f"{path}: not a whole file of members' outputs ({reason}); evaluate again to write it anew"
        ) from problem
    if version != FORMAT:
        raise EvaluationError(f"{path}: format {version!r}, this covey reads format {FORMAT}")
    needed = {"outputs", "targets"}
    if "validation_outputs" in arrays:
        needed.add("validation_targets")
    lacking = sorted(needed - set(arrays)) + sorted({"task", "classes"} - set(about))
    if lacking:
        raise EvaluationError(
            f"{path}: not a whole file of members' outputs, it lacks {', '.join(lacking)}; evaluate again to write "
            "it anew"
        )
    tensors = {}
    for name, array in arrays.items():
        if array.dtype.kind not in "iuf":
            raise EvaluationError(f"{path}: {name!r} holds {array.dtype}; expected numbers")
        tensor = torch.from_numpy(array)
        tensors[name] = tensor.float() if tensor.dtype == torch.float16 else tensor
    return about, tensors


def _named(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    found = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            found[name.removeprefix(prefix)] = tensor
    return found


def _numpy(outputs: Tensor, half: bool, what: str) -> np.ndarray:
    array = outputs.detach().cpu().numpy()
    if not half:
        return array
    largest = float(np.abs(array).max())
    if largest > float(np.finfo(np.float16).max):
        raise EvaluationError(f"{what} reach {largest:.3g}, float16 ends at 65504: store them without half")
    return array.astype(np.float16)


def _check_outputs(outputs: Tensor, where: str, like: Tensor | None = None) -> None:
    if outputs.ndim != 3:
        shape = tuple(outputs.shape)
        raise EvaluationError(f"{where}: expected outputs of shape (members, samples, classes), got {shape}")
    members, samples, classes = outputs.shape
    if members == 0 or samples == 0:
        raise EvaluationError(f"{where} is empty: outputs have shape {tuple(outputs.shape)}")
    if like is not None:
        test_members, _, test_classes = like.shape
        if (members, classes) != (test_members, test_classes):
            raise EvaluationError(
                f"{where}: {members} members and {classes} classes, "
                f"but the test set has {test_members} and {test_classes}"
            )
    broken = ~torch.isfinite(outputs)
    if broken.any():
        member, sample, _ = broken.nonzero()[0].tolist()
        broken_members = broken.flatten(1).any(1).nonzero().flatten().tolist()
        raise EvaluationError(
            f"{where}: outputs of member {', '.join(map(str, broken_members))} are not finite "
            f"({int(broken.sum())} values, the first at member {member}, sample {sample}): "
            "training diverged or the inputs are not finite"
        )


def _check_labels(outputs: Tensor, targets: Tensor, where: str) -> None:
    samples, classes = outputs.shape[1:]
    if classes < 2:
        raise EvaluationError(
            f"{where}: one class only; scores of a classifier need two logits or more per sample "
            "(for a single logit z use the two logits 0 and z; for regression set task='regression')"
        )
    if targets.shape != (samples,):
        raise EvaluationError(
            f"{where}: expected one label per sample, shape ({samples},), got {tuple(targets.shape)}"
        )
    if targets.is_floating_point() or targets.is_complex():
        raise EvaluationError(f"{where}: expected labels of an integer type, got {targets.dtype}")
    outside = (targets < 0) | (targets >= classes)
    if outside.any():
        first = int(outside.nonzero()[0])
        raise EvaluationError(
            f"{where}: labels out of range: expected 0 to {classes - 1} for {classes} classes, "
            f"got {int(targets[first])} at sample {first}"
        )


def _check_numbers(outputs: Tensor, targets: Tensor, where: str) -> None:
    if targets.shape != outputs.shape[1:]:
        raise EvaluationError(
            f"{where}: expected targets of shape {tuple(outputs.shape[1:])}, got {tuple(targets.shape)}"
        )
    if not torch.isfinite(targets).all():
        raise EvaluationError(f"{where}: targets are not finite")


def _check_quantiles(outputs: Tensor, targets: Tensor, where: str) -> None:
    _check_numbers(outputs[..., 0], targets, where)


def _check_truths(outputs: Tensor, targets: Tensor, where: str) -> None:
    if targets.shape != outputs.shape[1:]:
        raise EvaluationError(
            f"{where}: several labels may be true, so expected targets of shape {tuple(outputs.shape[1:])}, 1 where a "
            f"label is true and 0 where it is not; got {tuple(targets.shape)}"
        )
    if not ((targets == 0) | (targets == 1)).all():
        raise EvaluationError(f"{where}: labels of which several may be true are 0 or 1; some are neither")


_CHECKS = {"regression": _check_numbers, "multilabel": _check_truths, KIND: _check_quantiles}
"""How targets of a task are checked, where they are not one class for each sample."""


def _check_variance(outputs: Tensor, variance: Tensor | None, where: str) -> None:
    if variance is None:
        return
    if variance.shape != outputs.shape:
        raise EvaluationError(
            f"{where}: expected the means' shape {tuple(outputs.shape)}, got {tuple(variance.shape)}"
        )
    broken = ~(variance > 0)  # nan too
    if broken.any():
        member = int(broken.nonzero()[0, 0])
        raise EvaluationError(f"{where}: must be positive, member {member} has a value that is not")
