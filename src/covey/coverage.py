"""The coverage table: what became of every tensor of a network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from covey.networks.layers import owner_of

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
    network: int  # how many parameters the network itself has, or the networks on average

    @classmethod
    def of(cls, ensemble: Ensemble) -> Coverage:
        """The table of an ensemble; where networks differ, of all their tensors, each with its first shape."""
        networks = [ensemble.skeleton(k) for k in range(len(ensemble.state))]
        parts = list(ensemble.parts.values())
        home: dict[str, nn.Module] = {}
        for network in networks:
            for name, _ in network.named_parameters():
                home.setdefault(name, network)
        rows = [
            Row(name, *_layer(network, name), part.role, part.numbers(name), part.note(name))
            for name, network in home.items()
            for part in parts
            if name in part.names
        ]
        for k, network in enumerate(networks):
            buffers, note = ensemble.buffers_of(k)[0], f"member {k}'s" if len(networks) > 1 else ""
            for role, store in (("shared buffer", buffers.shared), ("member buffer", buffers.own)):
                rows += [
                    Row(name, *_layer(network, name), role, tensor.numel(), note)
                    for name, tensor in store.items()
                ]
        # as the user gave it: a packed member is narrower
        given = [
            math.prod(record["tensors"].get(name, [tensor.shape])[0])
            for record, net in zip(ensemble.records, networks, strict=True)
            for name, tensor in net.named_parameters()
        ]
        return cls(tuple(rows), sum(given) // len(networks))

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


def _layer(network: nn.Module, name: str) -> tuple[str, tuple[int, ...]]:
    """The type of the layer that a tensor belongs to, and the tensor's shape."""
    owner = network.get_submodule(owner_of(name))
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return type(owner).__name__, tuple(tensors[name].shape)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    aligned = (
        cell.rjust(width) if heading == "numbers" else cell.ljust(width)
        for heading, cell, width in zip(_HEADINGS, cells, widths, strict=True)
    )
    return "  ".join(aligned).rstrip()
