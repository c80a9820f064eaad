"""What would be trained on: a summary in words and a contact sheet."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from covey.data.catalogue import KNOWN
from covey.data.container import Data, Split
from covey.errors import DataError, reason
from covey.extras import load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ACROSS = 12  # samples in a row of the contact sheet
_ROWS = 20  # classes at most on it


def list_known() -> str:
    """The known sets, one a line, from the same records that `load` uses."""
    width = max(map(len, KNOWN))
    return "\n".join(f"{name:{width}}  {source.description}" for name, source in KNOWN.items())


def summary(data: Data) -> str:
    """Counts, class balance, sizes, normalisation and notes, in lines of text."""
    record = data.record
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    size = sum(t.numel() * t.element_size() for s in parts.values() for t in (s.inputs, s.targets))
    lines = [
        f"source         {record.get('source', '')}",
        f"task           {data.task}" + (f", {len(data.classes)} classes" if data.classes else ""),
        f"inputs         {' x '.join(map(str, data.shape))} "
        f"{str(data.test.inputs.dtype).removeprefix('torch.')}",
        "samples        " + ", ".join(f"{len(s):,} {part}" for part, s in parts.items()),
        f"in memory      {size / 2**20:,.1f} MiB",
        f"split          seed {record.get('seed')}, train rows sha256 "
        f"{record.get('indices_sha256', {}).get('train', '')[:12]}",
    ]
    if data.normalisation is not None:
        numbers = zip(data.normalisation.mean, data.normalisation.std, strict=True)
        lines.append("normalisation  " + ", ".join(f"mean {m:.4f} std {s:.4f}" for m, s in numbers))
    if data.target_normalisation is not None:
        scale = data.target_normalisation
        lines.append(f"target         mean {scale.mean[0]:.6g}, std {scale.std[0]:.6g} (standardised)")
    for name, inputs in data.ood.items():
        lines.append(f"ood            {name}: {len(inputs):,}")
    for column in record.get("columns", [])[:40]:
        lines.append(f"column         {_described(column)}")
    lines += [f"note           {note}" for note in record.get("notes", [])]
    if data.task == "classification":
        lines += ["", *_balance(data, parts)]
    return "\n".join(lines)


def _described(column: dict) -> str:
    if column["kind"] == "text":
        return f"{column['name']}: text, up to {column['length']} tokens of {column['tokenizer']}"
    if column["kind"] == "number":
        missing = ", some missing" if column["missing"] else ""
        return f"{column['name']}: number, mean {column['mean']:.4g}, std {column['std']:.4g}{missing}"
    if column["kind"] == "date":
        missing = ", some missing" if column["missing"] else ""
        middle = date(1970, 1, 1) + timedelta(days=column["mean"])
        return (
            f"{column['name']}: date in days since 1970, mean {middle} ({column['mean']:.6g}), "
            f"std {column['std']:.4g}{missing}"
        )
    rare = f", {column['rare']} rarer ones together" if column["rare"] else ""
    return f"{column['name']}: {len(column['values'])} categories{rare}"


def _balance(data: Data, parts: dict[str, Split]) -> list[str]:
    """A table of the classes' counts, with a bar for their share of the largest."""
    counts = {part: torch.bincount(s.targets, minlength=len(data.classes)) for part, s in parts.items()}
    shown = counts["train"] if len(data.train) else counts["test"]
    width = min(24, max(5, *(len(c) for c in data.classes)))
    lines = [f"{'class':{width}} " + "".join(f"{part:>12}" for part in parts)]
    for k, name in enumerate(data.classes[:200]):
        bar = "#" * round(20 * int(shown[k]) / max(1, int(shown.max())))
        lines.append(
            f"{name[:width]:{width}} " + "".join(f"{int(c[k]):12,}" for c in counts.values()) + f"  {bar}"
        )
    if len(data.classes) > 200:
        lines.append(f"... and {len(data.classes) - 200} more classes")
    return lines


def contact_sheet(data: Data, path: str | Path) -> Path:
    """Write a PNG that shows samples of each class and out-of-distribution set, or columns, or text."""
    backend = load("matplotlib.backends.backend_agg")

    path = Path(path)
    if path.suffix.lower() != ".png":
        raise DataError(f"the contact sheet is a PNG; got {path.name}, expected a name that ends in .png")
    split = data.train if len(data.train) else data.test
    if any(column["kind"] == "text" for column in data.record.get("columns", [])):
        raise DataError("there is no contact sheet of texts that were cut into tokens; leave it out")
    if len(data.shape) == 3:
        figure = _image_sheet(data, split)
    elif data.task == "language":
        figure = _text_sheet(split)
    else:
        figure = _table_sheet(data, split)
    backend.FigureCanvasAgg(figure)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110, facecolor="white", bbox_inches="tight")
    except OSError as error:
        raise DataError(f"cannot write the contact sheet {path}: {reason(error)}") from error
    return path


def _image_sheet(data: Data, split: Split) -> Figure:
    figures = load("matplotlib.figure")

    rows: dict[str, Tensor] = {}
    if data.task == "classification":
        for k, name in enumerate(data.classes[:_ROWS]):
            rows[name] = split.inputs[(split.targets == k).nonzero()[:_ACROSS, 0]]
    else:
        rows = {f"{n}": piece for n, piece in enumerate(split.inputs[: 4 * _ACROSS].split(_ACROSS))}
    for name, inputs in data.ood.items():
        rows[f"ood: {name}"] = inputs[torch.linspace(0, len(inputs) - 1, min(_ACROSS, len(inputs))).long()]
    channels, height, width = data.shape
    gap = max(1, height // 14)
    whole = torch.full((channels, len(rows) * (height + gap), _ACROSS * (width + gap)), 1.0)
    for n, images in enumerate(rows.values()):
        for m, image in enumerate(_unit(images)):
            top, left = n * (height + gap), m * (width + gap)
            whole[:, top : top + height, left : left + width] = image
    inches = 9 * whole.shape[1] / whole.shape[2]
    figure = figures.Figure(figsize=(11, inches + 0.8), layout="constrained")
    axes = figure.subplots()
    axes.imshow(
        whole.permute(1, 2, 0).expand(-1, -1, 3 if channels == 1 else channels)[..., :3].numpy(),
        interpolation="nearest",
    )
    axes.set_yticks([n * (height + gap) + height / 2 for n in range(len(rows))], [name[:24] for name in rows])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    more = f" (first {_ROWS} of {len(data.classes)} classes)" if len(data.classes) > _ROWS else ""
    axes.set_title(
        f"{data.record.get('source', '')}: {len(split):,} samples of {height} x {width}{more}", loc="left"
    )
    return figure


def _unit(images: Tensor) -> Tensor:
    """Images of any range as floats from 0 to 1."""
    if images.dtype == torch.uint8:
        return images.float() / 255
    low, high = images.min(), images.max()
    return (images - low) / (high - low).clamp_min(1e-12)


def _table_sheet(data: Data, split: Split) -> Figure:
    """A histogram of each column, as the network sees it, and of the target."""
    figures = load("matplotlib.figure")

    names = [f"x{k}" for k in range(data.shape[0])]
    if len(data.record.get("columns", [])) == len(names):
        names = [column["name"] for column in data.record["columns"]]
    panels = [*zip(names[:35], split.inputs.T[:35], strict=False), ("target", split.targets)]
    rows = -(-len(panels) // 6)
    figure = figures.Figure(figsize=(14, 1.9 * rows))
    figure.subplots_adjust(hspace=0.6, top=0.85)
    for axes, panel in zip(
        figure.subplots(rows, 6, squeeze=False).flat, [*panels, *[None] * 6], strict=False
    ):
        axes.set_visible(panel is not None)
        if panel is None:
            continue
        name, values = panel
        if name == "target" and data.task == "classification":
            axes.bar(range(len(data.classes)), torch.bincount(values, minlength=len(data.classes)).tolist())
        else:
            axes.hist(values.numpy(), bins=30)
        axes.set_title(name[:26], fontsize=8)
        axes.tick_params(labelsize=6)
    figure.suptitle(f"{data.record.get('source', '')}: {len(split):,} training rows, standardised")
    return figure


def _text_sheet(split: Split) -> Figure:
    figures = load("matplotlib.figure")

    lines = [bytes(window[:128].tolist()).decode("utf-8", "replace") for window in split.inputs[:24]]
    printable = ("".join(c if c.isprintable() and c.isascii() else "·" for c in line) for line in lines)
    figure = figures.Figure(figsize=(11, 6))
    figure.text(0, 1, "\n".join(printable), family="monospace", fontsize=7, va="top", parse_math=False)
    return figure
