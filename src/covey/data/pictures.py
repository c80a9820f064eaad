"""Image files as one tensor, and folders of them as a data set."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from covey.data.container import Split
from covey.data.raw import Raw
from covey.errors import DataError
from covey.extras import load
from covey.files import is_ordinary
from covey.tables import counted

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
MOST_PIXELS = 89_478_485  # where Pillow begins to warn: a quarter of a GiB in three channels
# The formats that Pillow decodes itself. It would start Ghostscript for an EPS file, whatever its name ends in.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
Size = int | tuple[int, ...] | None
_NAMED = 10  # images in a message
_MODES = {1: "L", 3: "RGB"}
_PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_PARTS |= dict.fromkeys(("val", "valid", "validation"), "validation")


def read_images(paths: Sequence[Path], *, size: Size = None, channels: int | None = None) -> Tensor:
    """Image files as (N, C, H, W) uint8; those that cannot be read are listed in one error.

    Args:
        paths: the files.
        size: a side, (H, W), or (C, H, W) which also fixes the channels. Images are scaled until they just
            cover it, and their middle is taken. None: they must all have one size.
        channels: 1 for grey or 3 for colour; None: they must all be of one kind.
    """
    images, bad = read_good_images(paths, size=size, channels=channels)
    if bad:
        raise DataError(f"{_listed(paths, bad)}; remove or replace {'it' if len(bad) == 1 else 'them'}")
    return images


def read_good_images(
    paths: Sequence[Path], *, size: Size = None, channels: int | None = None
) -> tuple[Tensor, dict[int, str]]:
    """The images that can be read, (N, C, H, W) uint8, and the places of the others with what is wrong with them.

    Arguments as for `read_images`.
    """
    given = " x ".join(map(str, size)) if isinstance(size, tuple) else size
    if isinstance(size, tuple) and len(size) == 3:
        channels, size = size[0], size[1:]
    if not paths:
        raise DataError("there are no image files to read")
    if channels not in (None, *_MODES):
        raise DataError(
            f"images have 1 or 3 channels; got {channels}. A size is a side, or a height and a width"
        )
    wanted = (size, size) if isinstance(size, int) else size
    if wanted is not None and (len(wanted) != 2 or min(wanted) < 1):
        raise DataError(f"image_size is a side or a height and a width of at least 1 pixel; got {given}")
    if wanted is not None:
        _check_memory(len(paths) * (channels or 3) * wanted[0] * wanted[1])
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow decodes without the interpreter's lock
        results = list(pool.map(lambda path: _try(path, wanted, channels), paths))
    bad = {k: result for k, result in enumerate(results) if isinstance(result, str)}
    if len(bad) == len(paths):
        return torch.empty(0, channels or 1, 0, 0, dtype=torch.uint8), bad
    good = [path for k, path in enumerate(paths) if k not in bad]
    arrays = [result for result in results if not isinstance(result, str)]
    _check_alike(good, arrays)
    return torch.from_numpy(np.stack(arrays)), bad


def _listed(paths: Sequence[Path], bad: dict[int, str]) -> str:
    """Images that cannot be read, and why, in a sentence."""
    named = [f"{paths[k]}: {problem}" for k, problem in list(bad.items())[:_NAMED]]
    if len(bad) == 1:
        return f"cannot read the image {named[0]}"
    more = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
    return f"cannot read {len(bad)} of {len(paths)} images: {'; '.join(named)}{more}"


def _check_alike(paths: Sequence[Path], arrays: Sequence[np.ndarray]) -> None:
    """Refuse images of several sizes or kinds."""
    first = arrays[0].shape
    for path, array in zip(paths, arrays, strict=True):
        if array.shape[0] != first[0]:
            raise DataError(
                f"mixed channel counts: {paths[0]} has {first[0]}, {path} has {array.shape[0]}; give "
                "image_size=(3, H, W) to make all colour, or image_size=(1, H, W) to make all grey"
            )
        if array.shape != first:
            raise DataError(
                f"mixed sizes: {paths[0]} is {first[1]} x {first[2]}, {path} is {array.shape[1]} x "
                f"{array.shape[2]} (height x width); give image_size to bring all to one size"
            )


def _try(path: Path, size: tuple[int, ...] | None, channels: int | None) -> np.ndarray | str:
    """One image, (C, H, W) uint8, or what is wrong with it."""
    try:
        if not is_ordinary(path):
            raise ValueError("it is no ordinary file")
        return _decoded(path, size, channels)
    except Exception as error:  # decoders meet damaged content with errors of any kind
        return str(error) or type(error).__name__


def decode(content: BinaryIO, shape: tuple[int, ...]) -> np.ndarray:
    """The content of an image file as (C, H, W) uint8, scaled until it just covers the shape, and its middle taken."""
    try:
        return _decoded(content, shape[1:], shape[0])
    except Exception as error:
        said = str(error) or type(error).__name__
        if isinstance(error, load("PIL").UnidentifiedImageError):  # whose words name the object that was read
            said = "its format is not known"
        raise DataError(f"cannot be read as an image: {said}") from error


def _decoded(source: Path | BinaryIO, size: tuple[int, ...] | None, channels: int | None) -> np.ndarray:
    pil, operations = load("PIL.Image"), load("PIL.ImageOps")

    with pil.open(source, formats=_FORMATS) as image:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(
                f"it has {image.width:,} x {image.height:,} pixels, and at most {MOST_PIXELS:,} are read"
            )
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"it has mode {image.mode}; images of 8 bits a channel are expected")
        grey = image.mode in ("1", "L", "LA")
        picture = image.convert(_MODES[channels or (1 if grey else 3)])
        if size is not None and picture.size != size[::-1]:
            picture = operations.fit(picture, (size[1], size[0]), pil.Resampling.BILINEAR)
    # A copy, since what Pillow lends cannot be written to.
    pixels = np.array(picture)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _check_memory(needed: int) -> None:
    """Say so before an hour of decoding rather than after it."""
    if not hasattr(os, "sysconf"):
        return
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > 0.45 * there:  # the list of images and the stacked tensor exist at the same time
        raise DataError(
            f"the images need {2 * needed / 2**30:.1f} GiB of memory while they are read and this machine "
            f"has "
            f"{there / 2**30:.1f}; give a smaller image_size"
        )


def read_folder(folder: Path, size: Size, *, skip_bad: bool = False) -> Raw:
    """Images in folders named after their classes, below train/ (val/, test/) or directly below `folder`.

    Args:
        folder: where.
        size: as for `read_images`.
        skip_bad: go on without images that cannot be read, and note which.
    """
    present, notes = _parts(folder)
    classes: list[str] = []
    empty: list[str] = []
    for name in _class_folders(present["train"]):
        (classes if image_files(present["train"] / name) else empty).append(name)
    if not classes:
        raise DataError(
            f"{present['train']} holds no images below its class folders ({', '.join(empty[:5])}, ...); "
            f"{', '.join(sorted(SUFFIXES))} are read"
        )
    if empty:
        notes.append(f"class folders without images, which are no classes: {', '.join(empty[:_NAMED])}")
    files: dict[str, list[Path]] = {}
    labels: dict[str, list[int]] = {}
    for part, place in present.items():
        notes += _note_on_others(place)
        if unknown := sorted(set(_class_folders(place)) - {*classes, *empty}):
            raise DataError(f"{place} has classes that {present['train']} has not: {', '.join(unknown[:5])}")
        found = [(path, k) for k, name in enumerate(classes) for path in image_files(place / name)]
        if not found:
            raise DataError(
                f"{place} holds no images below its class folders ({', '.join(classes[:5])}, ...)"
            )
        files[part], labels[part] = [path for path, _ in found], [k for _, k in found]
    paths = [path for part in files.values() for path in part]
    images, bad = read_good_images(paths, size=size)
    if bad and not skip_bad:
        what = "it" if len(bad) == 1 else "them"
        raise DataError(
            f"{_listed(paths, bad)}; remove or replace {what}, or go on without {what} (skip_bad=True)"
        )
    if bad:
        notes.append(f"skipped, {_listed(paths, bad)}")
    parts = _dealt(images, labels, bad)
    return Raw(parts, "classification", tuple(classes), notes=tuple(notes))


def _parts(folder: Path) -> tuple[dict[str, Path], list[str]]:
    """Where the class folders of each part are, and what a user should be told of that."""
    present: dict[str, Path] = {}
    others = []
    for place in _folders(folder):
        part = _PARTS.get(place.name.lower())
        if part is None:
            others.append(place.name)
        elif part in present:
            raise DataError(
                f"{present[part]} and {place} are both called like the {part} part; rename or remove one"
            )
        else:
            present[part] = place
    if "train" not in present:
        if len(present) > 1 and not others:
            named = " and ".join(f"{place.name}/" for place in present.values())
            raise DataError(f"{folder} has {named}, but no train/ to train on")
        return {"train": folder}, []
    notes = []
    if others:
        notes.append(
            f"folders beside {present['train'].name}/ that are not read: {', '.join(others[:_NAMED])}"
        )
    if "validation" in present and "test" not in present:
        present["test"] = present.pop("validation")
        notes.append(
            f"{present['test'].name}/ is the test set, for want of one; validation comes from train/"
        )
    return present, notes


def _note_on_others(place: Path) -> list[str]:
    """That files in class folders are not called like images, if there are any."""
    inside = [path for folder in _folders(place) for path in _visible(folder)]
    others = [path for path in inside if path.suffix.lower() not in SUFFIXES]
    if not others:
        return []
    return [f"{counted(len(others), 'file')} not called like an image and not read, such as {others[0]}"]


def _dealt(images: Tensor, labels: dict[str, list[int]], bad: Collection[int]) -> dict[str, Split]:
    """The images of each part with their labels, where those at the places `bad` are away."""
    parts = {}
    place = used = 0
    for part, numbers in labels.items():
        kept = [label for k, label in enumerate(numbers, place) if k not in bad]
        if not kept:
            raise DataError(f"none of the {len(numbers)} images of the {part} part can be read")
        parts[part] = Split(images[used : used + len(kept)], torch.tensor(kept, dtype=torch.int64))
        place += len(numbers)
        used += len(kept)
    return parts


def _class_folders(place: Path) -> tuple[str, ...]:
    found = tuple(folder.name for folder in _folders(place))
    if not found:
        what = "holds images but no class folders" if image_files(place) else "has no class folders"
        raise DataError(f"{place} {what}; expected {place}/CLASS/IMAGE, with one folder for each class")
    return found


def _folders(place: Path) -> list[Path]:
    return sorted(p for p in place.iterdir() if p.is_dir() and not p.name.startswith("."))


def image_files(place: Path) -> list[Path]:
    """Whatever is called like an image anywhere below a folder, in order; folders may be called so too."""
    return [path for path in _visible(place) if path.suffix.lower() in SUFFIXES]


def _visible(place: Path) -> list[Path]:
    """The files anywhere below a folder, without hidden ones, such as those that macOS puts beside images."""
    found = []
    for path in sorted(place.rglob("*")):
        hidden = any(name.startswith(".") for name in path.relative_to(place).parts)
        if not hidden and not path.is_dir():
            found.append(path)
    return found
