"""Banks: templates that layers share, and the coefficients by which each piece of a layer combines them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import ConversionError
from covey.networks.layers import Axes
from covey.parts.summed import Sums, mixed
from covey.tensors import scale_gradient


@dataclass(frozen=True)
class Piece:
    """A part of one tensor.

    Args:
        bank: which bank it is made from.
        rows: the bank's rows of coefficients, one for each member of the network.
        shape: of the part; where the bank's templates are larger, their leading corner is taken.
        into: which part of the tensor it fills; () is all of it.
        start: where a flat bank's templates begin.
        scale: a fixed factor.
    """

    bank: str
    rows: tuple[int, ...]
    shape: tuple[int, ...]
    into: tuple[slice, ...] = ()
    start: int = 0
    scale: float = 1.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        into = [[part.start, part.stop, part.step] for part in self.into]
        return {**asdict(self), "into": into}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Piece:
        """From what `to_dict` gave."""
        return Piece(
            bank=stored["bank"],
            rows=tuple(stored["rows"]),
            shape=tuple(stored["shape"]),
            into=tuple(slice(*part) for part in stored["into"]),
            start=stored["start"],
            scale=stored["scale"],
        )


@dataclass(frozen=True)
class BankSpec:
    """The sizes of a bank, and how it is initialised.

    Args:
        theta: shape of the templates: (T, *block), or (n,) for a flat bank.
        alpha: shape of the coefficients: (M, R, t) where each member has rows of its own, or (R, t).
        fan: how many inputs an output of the layers sums over, for the variance of the templates.
        scales: a factor of each of the R rows of coefficients at the start; 1 for all if empty.
        slots: which t templates each row combines; all T if empty.
    """

    theta: tuple[int, ...]
    alpha: tuple[int, ...]
    fan: float
    scales: tuple[float, ...] = ()
    slots: tuple[tuple[int, ...], ...] = ()

    @property
    def parameters(self) -> int:
        """How many the bank stores."""
        return math.prod(self.theta) + math.prod(self.alpha)

    def draw(self, like: Tensor) -> Bank:
        """The bank, in `like`'s dtype and on its device. Uses the global random state."""
        theta = kaiming(self.theta, self.fan, like)
        sets = self.alpha[0] if len(self.alpha) == 3 else 1
        rows, columns = self.alpha[-2:]
        alpha = orthogonal(sets, rows, columns, like)
        if self.scales:
            alpha *= torch.tensor(self.scales).to(like)[:, None]
        alpha = alpha.reshape(self.alpha)
        if len(self.theta) == 1:
            return FlatBank(theta, alpha)
        where = "cpu" if like.device.type == "meta" else like.device
        slots = torch.tensor(self.slots, device=where) if self.slots else None
        return Bank(theta, alpha, slots)

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> BankSpec:
        """From JSON's form of it."""
        slots = tuple(tuple(row) for row in stored["slots"])
        templates = stored["theta"][0]
        if any(not 0 <= slot < templates for row in slots for slot in row):
            raise ConversionError(f"a row combines templates 0 to {templates - 1}; the layout names others.")
        return BankSpec(
            theta=tuple(stored["theta"]),
            alpha=tuple(stored["alpha"]),
            fan=stored["fan"],
            scales=tuple(stored["scales"]),
            slots=slots,
        )


class Bank(nn.Module):
    """Templates of one shape and rows of coefficients.

    Args:
        theta: templates, (T, *block).
        alpha: coefficients, (M, R, t) where each member has rows of its own, or (R, t); rows count through.
        slots: which t templates each row combines, (rows, t); all T by default.
    """

    slots: Tensor | None

    def __init__(self, theta: Tensor, alpha: Tensor, slots: Tensor | None = None) -> None:
        super().__init__()
        self.theta, self.alpha = nn.Parameter(theta), nn.Parameter(alpha)
        self.register_buffer("slots", slots, persistent=False)  # stands in the layout
        self._sums = Sums()

    def coefficients(self, rows: Sequence[int], alpha: Tensor) -> Tensor:
        """These rows of the coefficients, (len(rows), t)."""
        flat = alpha.flatten(0, -2)
        return flat[_index(rows, len(flat))]

    def blocks(self, pieces: Sequence[Piece], members: Sequence[int], gamma: float) -> list[Tensor]:
        """Each piece for these members, (len(members), *piece.shape), all in one product."""
        made = self._mix(pieces, members, self.alpha) @ scale_gradient(self.theta, gamma).flatten(1)
        made = made.view(len(members), len(pieces), *self.theta.shape[1:])
        return [_cut(made[:, i], (len(members), *piece.shape)) for i, piece in enumerate(pieces)]

    def alone(self, piece: Piece, k: int, gamma: float, theta: Tensor, alpha: Tensor) -> Tensor:
        """One piece of one member, (*piece.shape), whose gradient of the templates is summed in place.

        Templates and coefficients are the bank's, as they were when the member's forward pass began.
        """
        made = mixed(self, self._sums, theta, self._mix([piece], [k], alpha), piece, gamma)
        return _cut(made.view(theta.shape[1:]), piece.shape)

    def _mix(self, pieces: Sequence[Piece], members: Sequence[int], alpha: Tensor) -> Tensor:
        """Coefficients of all templates for each piece of each member, (len(members) * len(pieces), T)."""
        rows = [piece.rows[k] for k in members for piece in pieces]
        mix = self.coefficients(rows, alpha)
        if self.slots is not None:
            slots = self.slots[_index(rows, len(self.slots))]
            mix = mix.new_zeros(len(rows), len(self.theta)).scatter(1, slots, mix)
        if any(piece.scale != 1 for piece in pieces):
            mix = mix * mix.new_tensor([piece.scale for _ in members for piece in pieces])[:, None]
        return mix

    def read(self, theta: Tensor, piece: Piece) -> Tensor:
        """All templates, (T, n); a piece is a corner of what they are mixed to."""
        return theta.flatten(1)

    def add_(self, total: Tensor, piece: Piece, mix: Tensor, gradient: Tensor) -> None:
        """See `summed.Readable`."""
        total.view(len(total), -1).addmm_(mix.T, gradient)


class FlatBank(Bank):
    """One vector, out of which every piece reads t templates of its own shape, round and round.

    The i-th template of a piece begins `i * step` numbers after `piece.start`, with a step of the piece's size, or
    of n / t where t templates would be longer than the n numbers there are.

    Args:
        theta: the vector, (n,).
        alpha: as in `Bank`.
    """

    def blocks(self, pieces: Sequence[Piece], members: Sequence[int], gamma: float) -> list[Tensor]:
        """Each piece for these members, (len(members), *piece.shape)."""
        theta = scale_gradient(self.theta, gamma)
        made = []
        for piece in pieces:
            mix = self.coefficients([piece.rows[k] for k in members], self.alpha) * piece.scale
            made.append((mix @ self.read(theta, piece)).view(len(members), *piece.shape))
        return made

    def alone(self, piece: Piece, k: int, gamma: float, theta: Tensor, alpha: Tensor) -> Tensor:
        """One piece of one member, (*piece.shape), whose gradient of the vector is summed in place."""
        mix = self.coefficients([piece.rows[k]], alpha) * piece.scale
        return mixed(self, self._sums, theta, mix, piece, gamma).view(piece.shape)

    def read(self, theta: Tensor, piece: Piece) -> Tensor:
        """The piece's templates, (t, size)."""
        return torch.stack([_cyclic(theta, start, math.prod(piece.shape)) for start in self._starts(piece)])

    def add_(self, total: Tensor, piece: Piece, mix: Tensor, gradient: Tensor) -> None:
        """See `summed.Readable`."""
        for i, start in enumerate(self._starts(piece)):
            done = 0
            for part in _round(start, gradient.shape[1], len(total)):
                length = part.stop - part.start
                total[part] += mix[0, i] * gradient[0, done : done + length]
                done += length

    def _starts(self, piece: Piece) -> list[int]:
        """Where each of the piece's templates begins."""
        count = self.alpha.shape[-1]
        step = flat_step(math.prod(piece.shape), len(self.theta), count)
        return [piece.start + i * step for i in range(count)]


# --- starting values ----------------------------------------------------------------------------------------------


def fan_in(weight: Tensor, how: Axes) -> float:
    """How many inputs one output of the layer sums over."""
    return weight.numel() / how.outputs


def kaiming(shape: Sequence[int], fan: float, like: Tensor) -> Tensor:
    """Normal numbers of variance 2 / fan, in `like`'s dtype and on its device."""
    return torch.randn(*shape, dtype=like.dtype, device=like.device).mul_(math.sqrt(2 / fan))


def orthogonal(sets: int, rows: int, columns: int, like: Tensor) -> Tensor:
    """Rows of length 1, (sets, rows, columns): orthogonal where there are columns enough, each set drawn apart."""
    if like.device.type == "meta":
        return like.new_empty(sets, rows, columns)
    drawn = torch.stack([nn.init.orthogonal_(torch.empty(rows, columns)) for _ in range(sets)])
    return (drawn / drawn.norm(dim=-1, keepdim=True)).to(like)


def corner(shape: Sequence[int]) -> tuple[slice, ...]:
    """The index of a tensor's leading corner of this shape."""
    return tuple(slice(size) for size in shape)


def flat_step(size: int, numbers: int, count: int) -> int:
    """How far apart templates of `size` lie in a vector of `numbers` out of which `count` are read."""
    return min(size, max(numbers // count, 1))


def flat_bank(
    label: str,
    shapes: Sequence[tuple[int, ...]],
    fans: Sequence[float],
    numbers: int,
    templates: int,
    members: int | None,
) -> tuple[BankSpec, list[Piece]]:
    """A bank of `numbers` in one vector, and the pieces of layers, each of which begins to read where the last ended.

    Args:
        label: the bank's name.
        shapes: of the layers.
        fans: their fan-ins.
        numbers: in the vector.
        templates: how many templates a layer mixes.
        members: M where each member has a row of coefficients for each layer; None where a layer is one member's.
    """
    rows = len(shapes)
    alpha = (rows, templates) if members is None else (members, rows, templates)
    scales = tuple((max(fans) / fan) ** 0.5 for fan in fans)
    pieces, start = [], 0
    for j, shape in enumerate(shapes):
        own_rows = tuple(k * rows + j for k in range(members or 1))
        pieces.append(Piece(label, own_rows, shape, start=start))
        start = (start + templates * flat_step(math.prod(shape), numbers, templates)) % numbers
    return BankSpec((numbers,), alpha, max(fans), scales), pieces


# --- private --------------------------------------------------------------------------------------------------------


def _index(rows: Sequence[int], count: int) -> slice | list[int]:
    """Rows as a slice where they follow each other, which needs no copy."""
    first = rows[0]
    if min(rows) < 0 or max(rows) >= count:
        raise ConversionError(f"there are rows 0 to {count - 1}; the layout asks for rows {list(rows)}.")
    if list(rows) == list(range(first, first + len(rows))):
        return slice(first, first + len(rows)) if len(rows) < count else slice(None)
    return list(rows)


def _cyclic(vector: Tensor, start: int, length: int) -> Tensor:
    """`length` numbers of a vector from `start` on, going round."""
    parts = [vector[part] for part in _round(start, length, len(vector))]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _cut(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The leading corner of this shape; a cut that takes all would still be copied on the way back."""
    return tensor if tensor.shape == shape else tensor[corner(shape)]


def _round(start: int, length: int, size: int) -> Iterator[slice]:
    """The parts of a vector of this size that `length` numbers from `start` on take up, going round."""
    start %= size
    while length > 0:
        stop = min(start + length, size)
        yield slice(start, stop)
        length -= stop - start
        start = 0
