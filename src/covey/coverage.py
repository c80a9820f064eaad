"""The coverage table: what became of every tensor of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from covey.edit.layers import owner_of

if TYPE_CHECKING:
    from covey.ensemble import Ensemble

_HEADINGS = ("tensor", "layer", "shape", "role", "numbers", "note")


@dataclass(frozen=True)
class Row:
    """One tensor: its role is shared, replicated, rank-one, masked, ...; `numbers` is what is stored for it."""

    name: str
    layer: str
    shape: tuple[int, ...]
    role: str
    numbers: int
    note: str = ""


@dataclass(frozen=True)
class Coverage:
    """Every tensor of the network with its role and cost. Prints as an aligned table."""

    rows: tuple[Row, ...]
    network: int  # how many parameters the network itself has

    @classmethod
    def of(cls, ensemble: Ensemble) -> Coverage:
        """The table of an ensemble; for members that differ in shape, of each member's tensors in turn."""
        skeleton = ensemble.skeleton()
        shapes = {name: tuple(tensor.shape) for name, tensor in skeleton.named_parameters()}
        part_of = {name: part for part in ensemble.parts.values() for name in part.names}
        rows = [
            Row(
                name,
                type(skeleton.get_submodule(owner_of(name))).__name__,
                shape,
                part_of[name].role,
                part_of[name].numbers(name),
                part_of[name].note(name),
            )
            for name, shape in shapes.items()
        ]
        buffers, _ = ensemble.buffers_of(0)
        for role, store in (("shared buffer", buffers.shared), ("member buffer", buffers.own)):
            for name, tensor in store.items():
                shape = tuple(tensor.shape)[1 if store is buffers.own else 0 :]
                rows.append(
                    Row(
                        name,
                        type(skeleton.get_submodule(owner_of(name))).__name__,
                        shape,
                        role,
                        tensor.numel(),
                    )
                )
        return cls(tuple(rows), sum(t.numel() for t in skeleton.parameters()))

    @property
    def total(self) -> int:
        """Parameters of the whole ensemble; buffers do not count."""
        return sum(row.numbers for row in self.rows if "buffer" not in row.role)

    @property
    def ratio(self) -> float:
        """Parameters of the ensemble over those of the network."""
        return self.total / max(self.network, 1)

    def __str__(self) -> str:
        cells = [
            (r.name, r.layer, "x".join(map(str, r.shape)) or "scalar", r.role, f"{r.numbers:,}", r.note)
            for r in self.rows
        ]
        widths = [max(len(row[i]) for row in [_HEADINGS, *cells]) for i in range(len(_HEADINGS))]
        lines = [_line(row, widths) for row in [_HEADINGS, tuple("-" * w for w in widths), *cells]]
        total = f"{self.total:,} parameters, {self.ratio:.3f} of the network's {self.network:,}"
        return "\n".join([*lines, total])


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    aligned = (
        cell.rjust(width) if heading == "numbers" else cell.ljust(width)
        for heading, cell, width in zip(_HEADINGS, cells, widths, strict=True)
    )
    return "  ".join(aligned).rstrip()
