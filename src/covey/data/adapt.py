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

from covey.data.container import Data, Split, Task
from covey.data.fields import NOTHING, Columns, check_lengths, collated
from covey.data.indexed import Indexed
from covey.data.load import load
from covey.data.splits import check_shares, digest, stratified
from covey.data.streams import Passing, left_alone
from covey.data.targets import COUNTED, TARGETS, task_of
from covey.data.weights import with_class_weights, with_sample_weights
from covey.errors import DataError, OptionError

PART_NAMES = {
    "train": "train",
    "validation": "validation",
    "val": "validation",
    "valid": "validation",
    "test": "test",
}
"""The parts of data, by the names that people give them."""
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
    if task is not None and task not in TARGETS:
        raise OptionError(f"task is one of {', '.join(map(repr, TARGETS))}; got {task!r}.")
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
    found = with_class_weights(found, class_weight)
    return with_sample_weights(found, _values(sample_weight), total, rows)


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
    task, why = task_of(parts, names, wanted.task)
    parts = {name: TARGETS[task](part, name) for name, part in parts.items()}
    if not names and task in COUNTED:
        names = COUNTED[task](parts)
    total = len(parts["train"]) if "train" in parts and parts["train"].by_number else 0
    parts, rows, split_off = _with_validation(parts, share, seed)
    notes = [f"{task}, {why}", *split_off]
    for note in notes:
        _log.info("data: %s", note)
    example = next(iter(parts.values())).example()
    shape = tuple(example.shape[1:]) if isinstance(example, Tensor) else ()
    record = {
        "source": ", ".join(f"{name}: {_described(part)}" for name, part in given.items()),
        "task": task,
        "classes": list(names),
        "shape": list(shape),
        "seed": seed,
        "counts": {name: len(part) if part.by_number else None for name, part in parts.items()},
        "indices_sha256": {"train": digest(rows)},
        "normalisation": None,
        "target_normalisation": None,
        "columns": [],
        "notes": notes,
    }
    empty = Split(torch.zeros(0, *shape), torch.zeros(0, dtype=torch.long))
    train, held, test = (parts.get(name, empty) for name in ("train", "validation", "test"))
    return Data(train, held, test, task=task, classes=names, shape=shape, record=record), total, rows


def _with_validation(
    parts: dict[str, Split], share: float, seed: int
) -> tuple[dict[str, Split], Tensor, list[str]]:
    """The parts with one for validation, the training rows that are left, and what to say of it."""
    if "train" not in parts:
        return parts, torch.arange(0), []
    if not parts["train"].by_number:
        if "validation" in parts:
            return parts, torch.arange(0), []
        note = "training batches come as a stream, so nothing is split off for validation"
        return parts, torch.arange(0), [note]
    if "validation" in parts or not share:
        return parts, torch.arange(len(parts["train"])), []
    rows, held = _split_off(parts, share, seed)
    note = f"{len(held)} training samples are split off for validation"
    return {**parts, "train": parts["train"].take(rows), "validation": held}, rows, [note]


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
