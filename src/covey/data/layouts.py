"""Readers of known sets in the layouts that their publishers gave them. None of them unpickles anything."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covey.data.container import Split
from covey.data.npy import map_npy
from covey.data.pictures import read_images
from covey.data.raw import Raw, check_file
from covey.errors import DataError
from covey.extras import load

_PIECE = 1 << 22  # bytes
Parts = Sequence[str]  # which of "train" and "test" to read
_CORRUPTIONS = (
    "gaussian_noise shot_noise impulse_noise defocus_blur glass_blur motion_blur zoom_blur snow frost fog "
    "brightness contrast elastic_transform pixelate jpeg_compression speckle_noise gaussian_blur spatter "
    "saturate"
)
CORRUPTIONS = tuple(_CORRUPTIONS.split())


def find(root: Path, path: str) -> Path | None:
    """The file or folder below root, or its twin without .gz; None if neither is there."""
    for candidate in (root / path, root / path.removesuffix(".gz")):
        if candidate.exists():
            return candidate
    return None


def _file(root: Path, path: str) -> Path:
    found = find(root, path)
    if found is None:
        raise DataError(f"{root / path} is not there")
    return found


def read_idx(path: Path) -> Tensor:
    """An array of bytes in the idx format of MNIST, gzipped or not."""
    check_file(path, "an idx file")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            start = file.read(4)
            axes = start[3] if len(start) == 4 and start[:3] == b"\0\0\x08" else 0
            shape = tuple(int(n) for n in np.frombuffer(file.read(4 * axes), ">u4"))
            expected = math.prod(shape)
            content = bytearray()
            # No more than the header asks for, and that piece by piece: a little gzipped can be much.
            while piece := file.read(min(_PIECE, expected + 1 - len(content))):
                content += piece
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); delete it and fetch it again") from error
    if not axes or len(shape) != axes or len(content) != expected:
        raise DataError(
            f"{path} is not an idx file of bytes: its header {start.hex()} asks for {shape}, {expected} bytes, and "
            f"there are {'more' if len(content) > expected else len(content)}; delete it and fetch it again"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8).reshape(shape).copy())


def read_mnist(
    root: Path,
    parts: Parts,
    *,
    files: dict[str, tuple[str, str]],
    classes: tuple[str, ...],
    letters: bool = False,
) -> Raw:
    """A set like MNIST: images and labels in idx files. EMNIST's letters start at 1 and lie on their side."""
    found = {}
    for part in parts:
        images, labels = (read_idx(_file(root, path)) for path in files[part])
        if len(images) != len(labels):
            raise DataError(
                f"{root / files[part][0]} has {len(images)} images, but there are {len(labels)} labels"
            )
        if letters:
            images, labels = images.transpose(1, 2).contiguous(), labels - 1
        found[part] = Split(images[:, None], labels.long())
    return Raw(found, "classification", classes)


def read_cifar(
    root: Path, parts: Parts, *, files: dict[str, tuple[str, ...]], label_bytes: int, classes: tuple[str, ...]
) -> Raw:
    """CIFAR's binary release: records of one or two labels and 3 x 32 x 32 pixels; the last label counts."""
    record = label_bytes + 3072
    found = {}
    for part in parts:
        pieces = []
        for path in files[part]:
            content = np.fromfile(_file(root, path), np.uint8)
            if len(content) == 0 or len(content) % record:
                raise DataError(
                    f"{root / path} has {len(content)} bytes, which is not a whole number of records of "
                    f"{record} "
                    "bytes; it was cut off: delete it and fetch it again"
                )
            pieces.append(content.reshape(-1, record))
        whole = torch.from_numpy(np.concatenate(pieces))
        images = whole[:, label_bytes:].reshape(-1, 3, 32, 32).contiguous()
        found[part] = Split(images, whole[:, label_bytes - 1].long())
    return Raw(found, "classification", classes)


def read_svhn(root: Path, parts: Parts) -> Raw:
    """SVHN's cropped digits: MATLAB files with X (32, 32, 3, N) and y (N, 1), where 10 stands for 0."""
    found = {}
    for part in parts:
        images, labels = _matlab_images(_file(root, f"SVHN/{part}_32x32.mat"))
        images = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
        found[part] = Split(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64) % 10))
    return Raw(found, "classification", tuple("0123456789"))


def _matlab_images(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """X (32, 32, 3, N) and y (N,) of a MATLAB file."""
    loadmat = load("scipy.io").loadmat
    try:
        content = loadmat(path)
        images, labels = np.asarray(content["X"]), np.asarray(content["y"]).reshape(-1)
    except Exception as error:  # scipy raises many kinds at files that are damaged, its own among them
        raise DataError(
            f"{path} is not a MATLAB file with X and y ({error}); delete it and fetch it again"
        ) from error
    if images.ndim != 4 or images.shape != (32, 32, 3, len(labels)) or images.dtype != np.uint8:
        raise DataError(
            f"{path}: expected X of shape (32, 32, 3, n) of bytes and as many labels; got {images.dtype} "
            f"{images.shape} and {len(labels)} labels"
        )
    if labels.dtype.kind not in "iuf" or not np.isin(labels, np.arange(1, 11)).all():
        raise DataError(f"{path}: expected labels from 1 to 10, where 10 stands for 0")
    return images, labels


def read_tiny_imagenet(root: Path, parts: Parts) -> Raw:
    """Tiny ImageNet: train/<id>/images, and val with its annotations, which serves as test."""
    folder = root / "tiny-imagenet-200"
    annotated = _annotations(_file(folder, "val/val_annotations.txt"))
    listed = folder / "wnids.txt"
    ids = sorted(_text(listed).split() if listed.is_file() else {name for _, name in annotated})
    number = {name: k for k, name in enumerate(ids)}
    for line, (_, name) in enumerate(annotated, start=1):
        if name not in number:
            raise DataError(
                f"{folder / 'val/val_annotations.txt'}: line {line} names the class {name!r}, which wnids.txt does "
                "not; fetch it again"
            )
    found = {}
    for part in parts:
        if part == "test":
            paths = [folder / "val" / "images" / file for file, _ in annotated]
            labels = [number[name] for _, name in annotated]
        else:
            folders = [_file(folder, f"train/{name}/images") for name in ids]
            paths = [path for each in folders for path in sorted(each.iterdir())]
            labels = [number[path.parent.parent.name] for path in paths]
        found[part] = Split(read_images(paths, channels=3), torch.tensor(labels))
    notes = ("test is the official validation set: the labels of the official test set are not public",)
    return Raw(found, "classification", tuple(ids), notes=notes)


def _text(path: Path) -> str:
    """What a list that comes with images says."""
    check_file(path, "a text")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no text: {error}; fetch it again") from error


def _annotations(path: Path) -> list[tuple[str, str]]:
    """Pictures and their classes, a line each."""
    found = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        file, _, rest = line.partition("\t")
        name = rest.split("\t")[0]
        if not name or not file or Path(file).name != file:
            raise DataError(f"{path}: line {number} is not a picture and its class; fetch it again")
        found.append((file, name))
    return found


def read_corruption(root: Path, folder: str, corruption: str, severity: int, classes: tuple[str, ...]) -> Raw:
    """One corruption of CIFAR-10-C or CIFAR-100-C at one of its five severities."""
    images = _array(_file(root, f"{folder}/{corruption}.npy"))
    labels = _array(_file(root, f"{folder}/labels.npy"))
    if (
        images.shape[1:] != (32, 32, 3)
        or images.dtype != np.uint8
        or len(images) % 5
        or len(images) != len(labels)
    ):
        raise DataError(
            f"{root / folder / corruption}.npy: expected uint8 (5 n, 32, 32, 3) with as many labels; got "
            f"{images.dtype} {images.shape} and {labels.shape}"
        )
    rows = slice((severity - 1) * len(images) // 5, severity * len(images) // 5)
    pixels = np.ascontiguousarray(images[rows].transpose(0, 3, 1, 2))
    split = Split(torch.from_numpy(pixels), torch.from_numpy(labels[rows].astype(np.int64)))
    return Raw({"test": split}, "classification", classes)


def _array(path: Path) -> np.ndarray:
    try:
        return map_npy(path)
    except DataError as error:
        reason = error.__cause__ or error  # without the advice for users' own arrays
        raise DataError(f"{path} is not a plain .npy array ({reason}); fetch it again") from error


def read_uci(root: Path, name: str, split: int) -> Raw:
    """A UCI regression set with one of its standard splits (Hernandez-Lobato and Adams, 2015)."""
    pandas = load("pandas")

    folder = root / "UCI_Datasets" / name / "data"
    splits = len(list(folder.glob("index_train_*.txt")))
    if not 0 <= split < splits:
        raise DataError(f"uci/{name} has the splits 0 to {splits - 1}; got split={split}")
    table = _numbers(folder / "data.txt")
    if table.ndim != 2:
        raise DataError(f"{folder / 'data.txt'}: expected rows and columns; got shape {table.shape}")
    features = _columns(folder / "index_features.txt", table.shape[1])
    targets = _columns(folder / "index_target.txt", table.shape[1])
    if len(targets) != 1:
        raise DataError(f"{folder / 'index_target.txt'} names {len(targets)} columns; expected one")
    target = int(targets[0])
    rows = {part: _whole_numbers(folder / f"index_{part}_{split}.txt") for part in ("train", "test")}
    if not np.array_equal(np.sort(np.concatenate(list(rows.values()))), np.arange(len(table))):
        raise DataError(
            f"{folder}: split {split} does not name each of the {len(table)} rows once; fetch it again"
        )
    parts = {
        part: Split(torch.from_numpy(numbers), torch.from_numpy(table[numbers, target]))
        for part, numbers in rows.items()
    }
    frame = pandas.DataFrame(table[:, features], columns=[f"x{k}" for k in range(len(features))])
    return Raw(parts, "regression", frame=frame, notes=(f"standard split {split} of {splits}",))


def _columns(path: Path, columns: int) -> np.ndarray:
    """Numbers of columns of a table."""
    found = _whole_numbers(path)
    for column in found:
        if not 0 <= column < columns:
            raise DataError(
                f"{path} names column {column}, and the table has the columns 0 to {columns - 1}; fetch it again"
            )
    return found


def _whole_numbers(path: Path) -> np.ndarray:
    found = _numbers(path).reshape(-1)
    if not np.array_equal(found, np.round(found)):  # which NaN is not equal to either
        raise DataError(f"{path}: expected whole numbers; fetch it again")
    return found.astype(np.int64)


def _numbers(path: Path) -> np.ndarray:
    try:
        numbers = np.loadtxt(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a table of numbers ({error}); fetch it again") from error
    return numbers
