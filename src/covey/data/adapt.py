"""adapt(): whatever people have as data, as what `fit` and `evaluate` work with."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from covey.data.container import IGNORED, Data, Split, Task
from covey.data.load import load
from covey.data.sources import (
    NOTHING,
    Columns,
    Indexed,
    Passing,
    check_lengths,
    collated,
    left_alone,
    tensors,
)
from covey.data.splits import check_shares, digest, stratified
from covey.errors import DataError, OptionError

PART_NAMES = {
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "test": "test",
}
"""The parts of data, by the names that people give them."""
_FEW = 20  # distinct whole numbers, at most, that could be classes written as floats
_NO_CLASS = -100  # what torch's losses ignore by default
_log = logging.getLogger("covey")


@dataclass(frozen=True)
class _Wanted:
    """What was asked for, by the names of `adapt`'s arguments."""

    task: Task | None
    columns: Columns
    collate: Callable[[Sequence[Any]], Any] | None
    steps: int | None


def adapt(
    data: Any,
    *,
    task: Literal["classification", "regression", "segmentation", "multilabel"] | None = None,
    classes: Sequence[str] | None = None,
    label: str | None = None,
    inputs: str | Sequence[str] | None = None,
    validation: float = 0.1,
    seed: int = 0,
    collate: Callable[[Sequence[Any]], Any] | None = None,
    steps_per_epoch: int | None = None,
    transform: Callable[[Any], Any] | None = None,
    class_weight: Literal["balanced"] | Mapping[int, float] | Sequence[float] | Tensor | None = None,
    sample_weight: Any = None,
) -> Data:
    """Data of any usual kind as `covey.fit` and `covey.evaluate` take them; both call it themselves.

    Args:
        data: one of these for training, or a dict of them with the keys "train", "validation" and "test":
            a pair (X, y) of tensors, NumPy arrays, lists or pandas objects, where X may be a tuple or dict of
            several; a dict of columns; a map-style torch `Dataset`, whose samples are read by number and never all
            held in memory; an `IterableDataset`; a `DataLoader`, whose batches are taken as they come; a Hugging Face
            `Dataset` or `DatasetDict`; the name of a known set, such as "digits"; or covey's own `Data`.
        task: "classification"; "regression", of one number or several; "segmentation", a class for each pixel,
            (N, H, W), where 255 does not count; or "multilabel", where several labels may be true, (N, L) of 0 and 1.
            By default whole numbers and words are classes, and other numbers are regressed on.
        classes: the classes' names in the order of their numbers, which labels that are words need.
        label: the column of the answers, where samples are dicts; "labels", "label", "target", "targets" or "y" if
            None.
        inputs: the columns that go to the network by keyword, or the name of one that is its only argument; by default
            all but the label, by keyword.
        validation: the share of the training samples that is split off where no validation data are given; 0 for none.
            A stream of batches cannot be split.
        seed: of that split.
        collate: makes a batch of a list of samples, as in `DataLoader(collate_fn=...)`.
        steps_per_epoch: batches that count as an epoch, for a stream that has no length.
        transform: called on the inputs of each training batch, and of nothing else; what it draws from torch's random
            numbers repeats when a run is resumed.
        class_weight: factor of the loss of each class's samples: a number for each, a dict of those that are not 1, or
            "balanced" for samples / (classes x samples of the class).
        sample_weight: factor of the loss of each training sample, (N,), of those in `data` before the split; brought
            to a mean of 1.

    >>> X, y = torch.randn(20, 4), torch.arange(20) % 3
    >>> found = adapt((X, y), validation=0.25)
    >>> found.task, found.classes, len(found.train), len(found.validation)
    ('classification', ('0', '1', '2'), 15, 5)
    """
    if task is not None and task not in _TARGETS:
        raise OptionError(f"task is one of {', '.join(map(repr, _TARGETS))}; got {task!r}.")
    if steps_per_epoch is not None and steps_per_epoch < 1:
        raise OptionError(f"steps_per_epoch is a whole number of at least 1; got {steps_per_epoch}.")
    if isinstance(data, str):
        data = load(data)
    if isinstance(data, Data):
        found, total = data, len(data.train) if data.train.by_number else 0
        rows = torch.arange(total)
    else:
        columns = Columns(label, inputs, tuple(map(str, classes or ())))
        wanted = _Wanted(task, columns, collate, steps_per_epoch)
        found, total, rows = _put_together(_named_parts(data), wanted, validation, seed)
    if transform is not None:
        found = replace(found, transform=transform)
    found = _with_class_weights(found, class_weight)
    return _with_sample_weights(found, sample_weight, total, rows)


def _named_parts(data: Any) -> dict[str, Any]:
    """Training, validation and test data by these names."""
    if not isinstance(data, Mapping) or not any(name in PART_NAMES for name in data):
        return {"train": data}
    found: dict[str, Any] = {}
    for name, part in data.items():
        if name not in PART_NAMES:
            raise DataError(
                "data are given by the names 'train', 'validation' and 'test'; got "
                f"{', '.join(map(repr, data))}. Leave {name!r} out."
            )
        if PART_NAMES[name] in found:
            raise DataError(f"there are two sets of {PART_NAMES[name]} data; leave {name!r} out.")
        found[PART_NAMES[name]] = part
    return found


def _put_together(
    given: dict[str, Any], wanted: _Wanted, share: float, seed: int
) -> tuple[Data, int, Tensor]:
    """The data, how many training samples were given, and the numbers of those that are trained on."""
    wanted = _with_words(given, wanted)
    parts = {name: _part(part, f"the {name} data", wanted) for name, part in given.items()}
    names = _class_names(given, parts, wanted)
    task, why = _task(parts, names, wanted)
    parts = {name: _TARGETS[task](part, name) for name, part in parts.items()}
    if not names and task in _COUNTED:
        names = _COUNTED[task](parts)
    notes = [f"{task}, {why}"]
    rows, total = torch.arange(0), 0
    if "train" in parts and parts["train"].by_number:
        total = len(parts["train"])
        rows = torch.arange(total)
        if "validation" not in parts and share:
            rows, parts["validation"] = _split_off(parts, share, seed)
            parts["train"] = parts["train"].take(rows)
            notes.append(f"{len(parts['validation'])} training samples are split off for validation")
    elif "train" in parts and "validation" not in parts:
        notes.append("training batches come as a stream, so nothing is split off for validation")
    some = next(iter(parts.values()))
    example = some.example()
    shape = tuple(example.shape[1:]) if isinstance(example, Tensor) else ()
    counts = {name: len(part) if part.by_number else None for name, part in parts.items()}
    record = {
        "source": ", ".join(f"{name}: {_described(part)}" for name, part in given.items()),
        "task": task,
        "classes": list(names),
        "shape": list(shape),
        "seed": seed,
        "counts": counts,
        "indices_sha256": {"train": digest(rows)},
        "normalisation": None,
        "target_normalisation": None,
        "columns": [],
        "notes": notes,
    }
    for note in notes:
        _log.info("data: %s", note)
    empty = Split(torch.zeros(0, *shape), torch.zeros(0, dtype=torch.long))
    train, held, test = (parts.get(name, empty) for name in ("train", "validation", "test"))
    return Data(train, held, test, task=task, classes=names, shape=shape, record=record), total, rows


def _split_off(parts: dict[str, Split], share: float, seed: int) -> tuple[Tensor, Split]:
    check_shares({"validation": share})
    train = parts["train"]
    if len(train) < 2:
        raise DataError(
            "there is one training sample, of which none can be split off for validation; give validation data, or "
            "validation=0."
        )
    rows = stratified(torch.zeros(len(train)), {"validation": share}, seed=seed, classes=None)
    return rows["train"], train.take(rows["validation"])


def samples(given: Any, where: str, *, columns: Columns | None = None) -> Split:
    """One set of samples of any kind that `adapt` takes, without a word about its task.

    Args:
        given: the samples.
        where: what to call them in an error.
        columns: what is the label, and what goes to the network.
    """
    return _part(given, where, _Wanted(None, columns or Columns(), None, None))


def _part(given: Any, where: str, wanted: _Wanted) -> Split:
    """One set of samples, in memory or where it is."""
    if isinstance(given, Split):
        return given
    if isinstance(given, TensorDataset) and len(given.tensors) == 2 and wanted.collate is None:
        given = given.tensors
    if isinstance(given, tuple | list) and len(given) == 2:
        return _in_memory(_values(given[0]), _values(given[1]), where, wanted)
    if isinstance(given, Mapping):
        batch = {column: _values(values) for column, values in given.items()}
        inputs, targets = wanted.columns.parts(batch, where)
        check_lengths(inputs, targets, where)
        return Split(inputs, targets)
    if isinstance(given, DataLoader | IterableDataset):
        return _stream(given, where, wanted)
    if _is_pandas(given):
        raise DataError(
            f"{where}: a {type(given).__name__} alone does not say what its label is; give a pair, such as "
            "(frame.drop(columns='label'), frame['label'])."
        )
    if not isinstance(given, Tensor | np.ndarray | str | bytes | tuple | list):
        kind = type(given)
        if hasattr(kind, "__getitem__") and hasattr(kind, "__len__"):
            return _indexed(given, where, wanted)
        if hasattr(kind, "__iter__") and not hasattr(kind, "__next__"):
            raise DataError(
                f"{where}: a {kind.__name__} can be iterated over, but does not say whether it gives samples or "
                "batches. Samples are an IterableDataset of torch's (derive from it), batches a "
                "DataLoader(..., batch_size=None) of one."
            )
    raise DataError(
        f"{where}: expected a pair (X, y), a torch Dataset or DataLoader, a Hugging Face dataset, or a dict "
        f"of these by 'train', 'validation' and 'test'; got {type(given).__name__}."
    )


def _in_memory(inputs: Any, targets: Any, where: str, wanted: _Wanted) -> Split:
    found, answers = wanted.columns.parts((inputs, targets), where)
    if isinstance(found, Tensor) and found.ndim == 0:
        raise DataError(f"{where}: inputs are a single number; expected (N, ...).")
    check_lengths(found, answers, where)
    return Split(found, answers)


def _indexed(given: Any, where: str, wanted: _Wanted) -> Split:
    if not len(given):
        raise DataError(f"{where} are empty: there are no samples.")
    source, whole = given, False
    if _is_hugging_face(given) and wanted.collate is None:
        source, whole = _formatted(given), True
    collate = wanted.collate or collated
    return Indexed(source, NOTHING, torch.arange(len(given)), wanted.columns, collate, whole)


def _stream(given: Any, where: str, wanted: _Wanted) -> Split:
    """A stream of batches, of which the first is looked at."""
    source = _formatted(given) if _is_hugging_face(given) and wanted.collate is None else given
    found = Passing(source, NOTHING, wanted.columns, wanted.collate or collated, wanted.steps)
    with left_alone(given):
        first = next(found.in_order(2), None)
    if first is None:
        raise DataError(f"{where} are empty.")
    inputs, targets = first
    two = Split(inputs, targets).example()
    return replace(found, first=two, targets=targets[:0])


def _is_hugging_face(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "datasets"


def _formatted(given: Any) -> Any:
    """A Hugging Face data set that gives tensors, unless its owner chose a format."""
    chosen = (
        getattr(given, "format", {}).get("type") if isinstance(getattr(given, "format", None), dict) else None
    )
    return given if chosen is not None else given.with_format("torch")


def _values(given: Any) -> Any:
    """The values of a pandas object; anything else as it is."""
    return given.to_numpy() if _is_pandas(given) else given


def _is_pandas(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "pandas"


def _with_words(given: dict[str, Any], wanted: _Wanted) -> _Wanted:
    """Labels that are words, in memory, are classes in alphabetical order, of all parts together."""
    if wanted.columns.classes:
        return wanted
    words: set[str] = set()
    for part in given.values():
        if isinstance(part, tuple | list) and len(part) == 2:
            labels = _values(part[1])
            if isinstance(labels, np.ndarray) and labels.dtype.kind in "OSU":
                labels = labels.tolist()
            if isinstance(labels, tuple | list) and labels and isinstance(labels[0], str):
                words |= {str(label) for label in labels}
    return replace(wanted, columns=replace(wanted.columns, classes=tuple(sorted(words)))) if words else wanted


def _class_names(given: dict[str, Any], parts: dict[str, Split], wanted: _Wanted) -> tuple[str, ...]:
    """Names that the user or the data set gives its classes; none where nobody does."""
    if wanted.columns.classes or wanted.task == "regression":
        return wanted.columns.classes
    for name, part in given.items():
        features = getattr(part, "features", None)
        if _is_hugging_face(part) and features:
            label = wanted.columns.label_in(features, f"the {name} data")
            if getattr(features[label], "names", None):
                return tuple(features[label].names)
    return ()


def _task(parts: dict[str, Split], names: tuple[str, ...], wanted: _Wanted) -> tuple[Task, str]:
    """What is to be predicted, and why that is thought."""
    if wanted.task is not None:
        return wanted.task, "as asked for"
    if names:
        return "classification", "since the classes have names"
    part = next(iter(parts.values()))
    targets = _some_targets(part)
    if targets.dtype.is_complex:
        raise DataError(f"targets are {targets.dtype}, which is neither a class nor a number.")
    if not targets.is_floating_point():
        return "classification", f"since targets are {str(targets.dtype).removeprefix('torch.')}"
    if part.in_memory and bool((targets == targets.round()).all()) and len(targets.unique()) <= _FEW:
        raise DataError(
            f"targets are floats, but all of them whole ({targets.unique().tolist()[:5]} ...): classes, or numbers to "
            "regress on? Say which: covey.data.adapt(data, task='classification') or task='regression'."
        )
    return "regression", f"since targets are {str(targets.dtype).removeprefix('torch.')}"


def _some_targets(part: Split) -> Tensor:
    """Targets to judge by: all that are in memory, else a few."""
    if part.in_memory or not part.by_number:
        return part.targets  # an empty tensor of the first batch's type for a stream
    return part.read(torch.arange(min(2, len(part))))[1]


def _numbers_of(part: Split, name: str) -> Split:
    """The part with one number, or several, for each sample."""
    targets = _some_targets(part)
    if targets.ndim not in (1, 2):
        raise DataError(
            f"the {name} data: targets of a regression are one number for each sample, (N,), or several, (N, D); got "
            f"{tuple(targets.shape)}."
        )
    return part if targets.is_floating_point() or not part.in_memory else Split(part.inputs, targets.float())


def _classes_of(part: Split, name: str) -> Split:
    """The part with class numbers."""
    targets = _some_targets(part)
    if targets.is_floating_point():
        if targets.ndim > 1 or not part.in_memory or bool((targets != targets.round()).any()):
            raise DataError(
                f"the {name} data: labels of classes are whole numbers, (N,); got {targets.dtype} of shape "
                f"{tuple(targets.shape)}. Give the number of each sample's class, such as probabilities.argmax(-1)."
            )
        return Split(part.inputs, targets.long())
    return Split(part.inputs, targets.long()) if part.in_memory else part


def _pixels_of(part: Split, name: str) -> Split:
    """The part with a class for each pixel."""
    targets = _some_targets(part)
    if targets.is_floating_point() or (part.in_memory and targets.ndim != 3):
        raise DataError(
            f"the {name} data: classes of pixels are whole numbers, (N, H, W); got {targets.dtype} of shape "
            f"{tuple(targets.shape)}."
        )
    return part


def _truths_of(part: Split, name: str) -> Split:
    """The part with 0 or 1 for each label of each sample."""
    targets = _some_targets(part)
    if targets.ndim != 2:
        raise DataError(
            f"the {name} data: labels of which several may be true have a column each, (N, L); got "
            f"{tuple(targets.shape)}."
        )
    return part if targets.is_floating_point() or not part.in_memory else Split(part.inputs, targets.float())


_TARGETS: dict[str, Callable[[Split, str], Split]] = {
    "classification": _classes_of,
    "regression": _numbers_of,
    "segmentation": _pixels_of,
    "multilabel": _truths_of,
}
"""How each task has its targets."""


def _counted_pixels(parts: dict[str, Split]) -> tuple[str, ...]:
    """As many classes as the pixels have, without those that do not count."""
    counted = {}
    for name, part in parts.items():
        counted[name] = Split(part.inputs, part.targets.flatten()[part.targets.flatten() != IGNORED])
    if not all(part.in_memory and len(part.targets) for part in counted.values()):
        raise DataError("the classes of pixels are not in memory, or none counts: say classes=[...].")
    return _counted_classes(counted)


def _counted_labels(parts: dict[str, Split]) -> tuple[str, ...]:
    """A name for each column of labels."""
    labels = next(iter(parts.values())).targets.shape[1]
    return tuple(f"label {k}" for k in range(labels))


def _counted_classes(parts: dict[str, Split]) -> tuple[str, ...]:
    """As many classes as the labels in memory have; none where labels are read later."""
    if not all(part.in_memory for part in parts.values()):
        return ()
    largest = max(int(part.targets.max()) for part in parts.values())
    lowest = min(int(part.targets.min()) for part in parts.values())
    if lowest < 0 and (lowest != _NO_CLASS or largest < 0):
        raise DataError(
            f"labels go from {lowest} to {largest}; expected class numbers from 0 on, or {_NO_CLASS} for "
            "samples that do not count (Recipe(ignore_index=-100)). If they are numbers to regress on, say "
            "task='regression'."
        )
    return tuple(map(str, range(largest + 1)))


_COUNTED: dict[str, Callable[[dict[str, Split]], tuple[str, ...]]] = {
    "classification": _counted_classes,
    "segmentation": _counted_pixels,
    "multilabel": _counted_labels,
}
"""How many classes or labels there are, where nobody names them."""


def _with_class_weights(data: Data, given: Any) -> Data:
    if given is None:
        return data
    if data.task in ("regression", "multilabel"):
        raise OptionError(f"class_weight is for classes, and the data are for {data.task}; leave it out.")
    if isinstance(given, str):
        if given != "balanced" or not data.train.in_memory:
            raise OptionError(
                "class_weight is 'balanced', where all labels are in memory, or a number for each class; "
                f"got {given!r}."
            )
        counts = torch.bincount(data.train.targets.flatten().clamp_min(0), minlength=len(data.classes))
        return replace(data, class_weights=counts.sum() / (len(data.classes) * counts.clamp_min(1)))
    if isinstance(given, Mapping):
        outside = [k for k in given if not isinstance(k, int) or not 0 <= k < len(data.classes)]
        if outside:
            raise OptionError(
                f"class_weight names class {outside[0]!r}; there are 0 to {len(data.classes) - 1}. Where the number of "
                "classes is not known, give it by classes=[...]."
            )
        given = [given.get(k, 1.0) for k in range(len(data.classes))]
    weights = torch.as_tensor(given, dtype=torch.get_default_dtype())
    if weights.ndim != 1 or (data.classes and len(weights) != len(data.classes)):
        raise OptionError(
            f"class_weight has shape {tuple(weights.shape)}; expected a number for each of {len(data.classes)} classes."
        )
    _check_weights(weights, "class_weight")
    return replace(data, class_weights=weights)


def _with_sample_weights(data: Data, given: Any, total: int, rows: Tensor) -> Data:
    if given is None:
        return data
    if not data.train.by_number:
        raise OptionError(
            "sample_weight needs samples with numbers; a stream of batches has none. Weigh them in a loss."
        )
    weights = tensors(_values(given), "sample_weight")
    if tuple(weights.shape) != (total,):
        raise OptionError(
            f"sample_weight has shape {tuple(weights.shape)}; expected one number for each of {total} training samples."
        )
    _check_weights(weights, "sample_weight")
    weights = weights.to(torch.get_default_dtype())[rows]
    return replace(data, sample_weights=weights / weights.mean())


def _check_weights(weights: Tensor, what: str) -> None:
    if not bool((weights >= 0).all()) or not bool(weights.isfinite().all()) or not bool(weights.sum() > 0):
        raise OptionError(
            f"{what} are at least 0, finite, and not all 0; the smallest is {float(weights.min()):.3g}, the largest "
            f"{float(weights.max()):.3g}."
        )


def _described(given: Any) -> str:
    """A set of samples in words, the same for the same data."""
    if isinstance(given, tuple | list) and len(given) == 2:
        targets = _values(given[1])
        content = targets.cpu().numpy() if isinstance(targets, Tensor) else np.asarray(targets)
        told = hashlib.sha256(repr((content.shape, content.tolist())).encode()).hexdigest()[:16]
        return f"{content.shape} targets {told}"
    length = getattr(given, "__len__", None)
    try:
        return f"{type(given).__name__} of {length()}" if length is not None else type(given).__name__
    except TypeError:
        return type(given).__name__
