"""The coverage table: what became of every tensor of a network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from covey.networks.layers import owner_of
from covey.tables import counted, html_table, text_table

if TYPE_CHECKING:
    from covey.ensemble import Ensemble

_HEADINGS = ("tensor", "layer", "shape", "role", "parameters", "note")


@dataclass(frozen=True)
class Row:
    """One tensor of the network.

    Args:
        name: the network's name of it.
        layer: the type of the layer that it belongs to.
        shape: of one member's.
        role: shared, replicated, rank-one, masked, ...
        parameters: how many the ensemble stores for it, all members together.
        note: what a user should know of it.
    """

    name: str
    layer: str
    shape: tuple[int, ...]
    role: str
    parameters: int
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        """As the table shows it."""
        shape = "x".join(map(str, self.shape)) or "scalar"
        return self.name, self.layer, shape, self.role, f"{self.parameters:,}", self.note


@dataclass(frozen=True)
class Coverage:
    """Every tensor of the network with its role and cost. Prints as an aligned table."""

    rows: tuple[Row, ...]
    network: int  # how many parameters the network itself has, or the networks on average
    title: str = ""
    checked: str = ""  # what conversion found out about the members

    @classmethod
    def of(cls, ensemble: Ensemble) -> Coverage:
        """The table of an ensemble; where networks differ, of all their tensors, each with its first shape."""
        rows = (*_parameter_rows(ensemble), *_buffer_rows(ensemble))
        title = f"{type(ensemble.method).__name__}, {counted(ensemble.members, 'member')}"
        return cls(rows, _size_given(ensemble), title, ensemble.checked)

    @property
    def total(self) -> int:
        """Parameters of the whole ensemble; buffers do not count."""
        return sum(row.parameters for row in self.rows if not row.role.endswith("buffer"))

    @property
    def ratio(self) -> float:
        """Parameters of the ensemble over those of the network."""
        return self.total / max(self.network, 1)

    def by_role(self) -> dict[str, tuple[int, int]]:
        """For each role, how many tensors have it and how many parameters are stored for them."""
        found: dict[str, tuple[int, int]] = {}
        for row in self.rows:
            tensors, parameters = found.get(row.role, (0, 0))
            found[row.role] = tensors + 1, parameters + row.parameters
        return found

    def summary(self) -> str:
        """The table in brief, one line per role."""
        lines = [f"{self.title}: {self._total_line()}"]
        for role, (tensors, parameters) in self.by_role().items():
            lines.append(f"  {role}: {counted(tensors, 'tensor')}, {parameters:,}")
        if self.checked:
            lines.append(f"  {self.checked}")
        return "\n".join(lines)

    def to_html(self) -> str:
        """The table in brief, for notebooks."""
        rows = [(role, tensors, f"{n:,}") for role, (tensors, n) in self.by_role().items()]
        headings = ("role", "tensors", "parameters")
        caption = f"{self.title}: {self._total_line()}"
        return html_table(headings, rows, right=headings[1:], caption=caption)

    def _total_line(self) -> str:
        return f"{self.total:,} parameters, {self.ratio:.3f} of the network's {self.network:,}"

    def __str__(self) -> str:
        cells = [row.cells() for row in self.rows]
        lines = [text_table(_HEADINGS, cells, right=("parameters",)), self._total_line()]
        return "\n".join([*lines, self.checked] if self.checked else lines)


def _networks(ensemble: Ensemble) -> list[nn.Module]:
    """The skeletons, each once, in the order of the ensemble's records."""
    first: dict[int, nn.Module] = {}
    for k in range(ensemble.members):
        first.setdefault(ensemble.network_of(k), ensemble.skeleton(k))
    return list(first.values())


def _parameter_rows(ensemble: Ensemble) -> Iterator[Row]:
    seen: set[str] = set()
    for network in _networks(ensemble):
        for name, tensor in network.named_parameters():
            if name in seen:
                continue
            seen.add(name)
            layer = _layer(network, name)
            # where networks differ, several parts may make tensors of one name
            for part in ensemble.parts.values():
                if name in part.names:
                    count = part.parameter_count(name)
                    yield Row(name, layer, tuple(tensor.shape), part.role, count, part.note(name))


def _buffer_rows(ensemble: Ensemble) -> Iterator[Row]:
    networks = _networks(ensemble)
    for k, network in enumerate(networks):
        buffers = ensemble.state[k]
        shapes = {name: tuple(tensor.shape) for name, tensor in network.named_buffers()}
        note = f"member {k}'s" if len(networks) > 1 else ""
        for role, store in (("shared buffer", buffers.shared), ("member buffer", buffers.own)):
            for name, tensor in store.items():
                yield Row(name, _layer(network, name), shapes[name], role, tensor.numel(), note)


def _size_given(ensemble: Ensemble) -> int:
    """Parameters of the network as the user gave it, on average; a packed member is narrower."""
    total = 0
    networks = _networks(ensemble)
    for record, network in zip(ensemble.records, networks, strict=True):
        for name, tensor in network.named_parameters():
            shape = record["tensors"][name][0] if name in record["tensors"] else tensor.shape
            total += math.prod(shape)
    return total // len(networks)


def _layer(network: nn.Module, name: str) -> str:
    return type(network.get_submodule(owner_of(name))).__name__
