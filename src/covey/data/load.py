"""From a name, a folder or a file to data that is ready to train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covey.data import arrays, normalising, pictures, table, text
from covey.data.catalogue import KNOWN, Asked
from covey.data.columns import column_notes, encode, fit_columns
from covey.data.container import Data, Normalisation, Split, Task
from covey.data.inputs import read_inputs
from covey.data.known import data_folder, read_known
from covey.data.raw import Raw, check_file, check_targets, hold_out
from covey.data.splits import digest, stratified
from covey.data.tokens import fit_text
from covey.errors import DataError

if TYPE_CHECKING:
    import pandas

_TEXT = {".txt", ".text", ".md", ""}
_PARTS = ("train", "validation", "test")

LENGTH = 128
"""Bytes in a window of text, or most tokens of a sample, if nothing else is said."""


def load(
    source: str | Path,
    root: str | Path | None = None,
    seed: int = 0,
    *,
    target: str | None = None,
    task: Task | None = None,
    validation: float | None = None,
    test: float | None = None,
    image_size: int | tuple[int, ...] | None = None,
    length: int = LENGTH,
    split: int = 0,
    held_out: tuple[int | str, ...] = (),
    ood: tuple[str, ...] = (),
    download: bool = True,
    ignore: tuple[str, ...] = (),
    skip_bad: bool = False,
    text: str | None = None,
    tokenizer: str | None = None,
    normalisation: Normalisation | None = None,
) -> Data:
    """Load a data set.

    Args:
        source: a known name (`covey.data.KNOWN`), a folder of images, a CSV, TSV, Parquet or .npz file, or a
            text.
        root: where known sets are kept; $COVEY_DATA if not given, else ~/.cache/covey/data.
        seed: fixes the splits.
        target: tables: the column that is to be predicted.
        task: "classification", "regression", "segmentation" (a class for each pixel) or "multilabel" (several labels
            may be true), where it should not be found out from the targets; "language" for a text whose file name does
            not tell.
        validation: share of the training part that is held back to choose by, where the source has no
            validation part of its own. 0.1 if not given; 0.05 for text; 0 for none.
        test: share that is held back for the test, where the source has no test part. 0.2 if not given; 0.05
            for text.
        image_size: image folders: side, (H, W) or (C, H, W) that all images are brought to.
        length: text: bytes in a window, or most tokens of a sample.
        split: UCI sets: number of the standard split.
        held_out: classes, by number or name, that are taken away and become the out-of-distribution set
            "held-out".
        ood: known sets whose test inputs become further out-of-distribution sets, brought to the same shape; or
            inputs of your own: a folder of images, a table with the same columns, an .npy or .npz array.
        download: whether files of known sets that are not there may be downloaded.
        ignore: tables: columns to leave out.
        skip_bad: image folders: go on without images that cannot be read, and note which.
        text: tables: the column of texts to classify, which is then the only input; may be left out if there is no
            other column. Needs a tokenizer.
        tokenizer: what cuts those texts into at most `length` tokens: a folder of Hugging Face's, or a name whose files
            are in the hub's cache.
        normalisation: images: mean and deviation to normalise with, of intensities from 0 to 1, such as a pretrained
            network wants; by default those of the training images.
    """
    name, folder = str(source), data_folder(root)
    ask = Asked(
        target=target,
        task=task,
        validation=validation,
        test=test,
        image_size=image_size,
        length=length,
        split=split,
        download=download,
        ignore=ignore,
        skip_bad=skip_bad,
        text=text,
        tokenizer=tokenizer,
    )
    raw = check_targets(_read(name, folder, ask), name)
    if length != LENGTH and raw.task != "language" and tokenizer is None:
        raise DataError(
            f"{name}: length is for texts, and these data are for {raw.task}; leave it out (--length)"
        )
    held: dict[str, Tensor] = {}
    if held_out:
        raw, held["held-out"] = hold_out(raw, held_out)
    rows = _rows(raw, 0.1 if validation is None else validation, 0.2 if test is None else test, seed)
    parts = {part: raw.parts[origin].take(numbers) for part, (origin, numbers) in rows.items()}
    columns: list[dict[str, Any]] = []
    if raw.frame is not None:
        columns, whole = _encoded(raw.frame, parts["train"].inputs, ask, name)
        parts = {part: Split(whole[s.inputs], s.targets) for part, s in parts.items()}
        held = {other: whole[numbers] for other, numbers in held.items()}
    parts, target_normalisation = normalising.standardised_targets(parts, raw.task)
    shape = tuple(parts["test"].inputs.shape[1:])
    images = parts["train"] if len(parts["train"]) else parts["test"]
    if normalisation is None:
        normalisation = normalising.of_images(images, shape)
    else:
        normalisation = normalising.fitting(normalisation, images.inputs, name)
    strange = held | out_of_distribution(ood, {"shape": list(shape), "columns": columns}, root, ask)
    data = Data(
        parts["train"],
        parts["validation"],
        parts["test"],
        task=raw.task,
        classes=raw.classes,
        shape=shape,
        ood=strange,
        normalisation=normalisation,
        target_normalisation=target_normalisation,
    )
    chosen = {
        "source": name,
        "seed": seed,
        "indices_sha256": {part: digest(numbers) for part, (_, numbers) in rows.items()},
        "taken_from": {part: origin for part, (origin, _) in rows.items()},
        "held_out": [str(h) for h in held_out],
        "columns": columns,
        "notes": [*raw.notes, *column_notes(raw.frame, columns)],
    }
    return replace(data, record={**_described(data), **chosen})


def _encoded(
    frame: pandas.DataFrame, train: Tensor, ask: Asked, name: str
) -> tuple[list[dict[str, Any]], Tensor]:
    """A table's columns as they were fitted on the training rows, and the whole table as tensors."""
    if ask.tokenizer is None:
        columns = fit_columns(frame, train.numpy())
    else:
        columns = [fit_text(frame.iloc[:, 0], ask.tokenizer, ask.length)]
    return columns, encode(frame, columns, name)


def out_of_distribution(
    names: Sequence[str], record: dict[str, Any], root: str | Path | None = None, ask: Asked | None = None
) -> dict[str, Tensor]:
    """Inputs of other sets, known ones or the user's own, as those of the data with this record.

    Args:
        names: of known sets, or paths.
        record: `Data.record` of the training data; its shape and columns say what inputs look like.
        root: where known sets are kept.
        ask: what else is wanted from a reader of known sets.
    """
    found: dict[str, Tensor] = {}
    for name in names:
        # Tensors that fit was given were prepared in a way that is not known, so known sets cannot be.
        own = "tensors" in record or (name not in KNOWN and Path(name).expanduser().exists())
        called = Path(name).name if own else name
        if called in found:
            raise DataError(
                f"two out-of-distribution sets are called {called!r}; rename one, or leave it out"
            )
        if own:
            found[called] = read_inputs(name, record)[1]
        else:
            other = read_known(name, data_folder(root), replace(ask or Asked(), parts=("test",)))
            found[called] = like(_test_inputs(other, name), tuple(record["shape"]), name)
    return found


def _described(data: Data) -> dict[str, Any]:
    """What a run's record says of data that are ready."""
    parts = dict(zip(_PARTS, (data.train, data.validation, data.test), strict=True))
    return {
        "task": data.task,
        "classes": [] if data.task == "language" else list(data.classes),
        "shape": list(data.shape),
        "counts": {part: len(split) for part, split in parts.items()},
        "ood": {other: len(inputs) for other, inputs in data.ood.items()},
        "normalisation": normalising.listed(data.normalisation),
        "target_normalisation": normalising.listed(data.target_normalisation),
    }


def _read(name: str, folder: Path, ask: Asked) -> Raw:
    """Read the samples, and refuse what was asked for and does not apply to them."""
    raw = _chosen(name, folder, ask)
    if ask.task is not None and ask.task != raw.task:
        raise DataError(
            f"{name} is for {raw.task}, so it cannot be used for {ask.task}; leave the task out (--task)"
        )
    return raw


def _chosen(name: str, folder: Path, ask: Asked) -> Raw:
    """Choose the reader."""
    if not name:
        raise DataError("the name of the data is empty; give a known set, a folder or a file")
    path = Path(name).expanduser()
    if name in KNOWN:
        _check_asked(name, ask, known=True)
        return read_known(name, folder, ask)
    if not path.exists():
        return read_known(name, folder, ask)  # which says what is known
    _check_asked(name, ask, is_table=table.is_table(path), is_folder=path.is_dir())
    return _read_own(path, ask)


def _check_asked(
    name: str, ask: Asked, *, known: bool = False, is_table: bool = False, is_folder: bool = False
) -> None:
    """Refuse options that mean nothing for these data; what would be left unused was meant for others."""
    if ask.target is not None and not is_table:
        raise DataError(
            f"{name}: a target is a column of a table of your own ({', '.join(sorted(table.SUFFIXES))}), and this is "
            "none; leave it out (--target)"
        )
    if ask.image_size is not None and not is_folder:
        raise DataError(f"{name}: an image size is for folders of images; leave it out (--image-size)")
    if ask.split and not (known and name.startswith("uci/")):
        raise DataError(f"{name} has no standard splits, which UCI's sets have; leave split out (--split)")
    if ask.ignore and not is_table:
        raise DataError(
            f"{name}: ignore names columns of a table of your own, and this is none; leave it out"
        )
    if (ask.text is not None or ask.tokenizer is not None) and not is_table:
        raise DataError(
            f"{name}: text and tokenizer are for texts in a table of your own, and this is none; leave them out"
        )
    if ask.text is not None and ask.tokenizer is None:
        raise DataError(
            f"{name}: texts need a tokenizer that cuts them into tokens: give a network of Hugging Face "
            "(--network hf:NAME) or --tokenizer"
        )
    if ask.skip_bad and not is_folder:
        raise DataError(f"{name} is no folder of images, some of which could be skipped; leave skip_bad out")


def _read_own(path: Path, ask: Asked) -> Raw:
    """A folder or file of the user's."""
    if path.is_dir():
        return pictures.read_folder(path, ask.image_size, skip_bad=ask.skip_bad)
    check_file(path, "a folder of images, a table, arrays or a text")
    if table.is_table(path):
        raw = table.read_table(path, ask.target, ask.task, ask.ignore)
        return raw if ask.tokenizer is None else table.texts_of(raw, ask.text, str(path))
    if path.suffix == ".npz":
        return arrays.read_arrays(path, ask.task)
    if path.suffix in _TEXT or ask.task == "language":
        return text.read_text(path, ask.length, ask.validation, ask.test)
    raise DataError(
        f"{path}: no reader for {path.suffix!r}; expected a folder of images, "
        f"{', '.join(sorted(table.SUFFIXES))}, .npz, or a text (.txt, or task='language')"
    )


def _rows(raw: Raw, validation: float, test: float, seed: int) -> dict[str, tuple[str, Tensor]]:
    """For each of train, validation and test: the part of the source, and which of its samples."""
    own = {part: (part, torch.arange(len(split))) for part, split in raw.parts.items()}
    found = dict(own)
    if raw.task != "language" and "train" in raw.parts:
        wanted = {p: share for p, share in (("validation", validation), ("test", test)) if p not in own}
        classes = raw.classes if raw.task == "classification" else None
        cut = stratified(raw.parts["train"].targets, wanted, seed=seed, classes=classes)
        found |= {part: ("train", numbers) for part, numbers in cut.items()}
    nothing = (next(iter(own)), torch.arange(0))
    return {part: found.get(part, nothing) for part in _PARTS}


def _test_inputs(raw: Raw, name: str) -> Tensor:
    """The inputs of a known set that serve as out-of-distribution ones."""
    if raw.frame is not None or raw.task == "language":
        raise DataError(
            f"{name} holds no images, so it cannot be an out-of-distribution set; use one that does"
        )
    return raw.parts["test" if "test" in raw.parts else "train"].inputs


def like(inputs: Tensor, shape: tuple[int, ...], name: str) -> Tensor:
    """Images of another set (N, C', H', W') brought to the shape (C, H, W) of this one."""
    if tuple(inputs.shape[1:]) == shape:
        return inputs
    if inputs.dim() != 4 or len(shape) != 3 or {inputs.shape[1], shape[0]} - {1, 3}:
        raise DataError(
            f"{name} has inputs of shape {tuple(inputs.shape[1:])}, which cannot be brought to {shape}; "
            "only images of 1 or 3 channels can"
        )
    pieces = []
    for piece in inputs.split(4096):
        images = piece.float()
        if shape[0] == 1 and images.shape[1] == 3:
            images = (images * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
        if tuple(images.shape[2:]) != shape[1:]:
            images = F.interpolate(
                images, size=shape[1:], mode="bilinear", antialias=True, align_corners=False
            )
        pieces.append(images.round().clamp(0, 255).byte() if inputs.dtype == torch.uint8 else images)
    return torch.cat(pieces).expand(-1, *shape).contiguous()
