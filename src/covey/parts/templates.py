"""Tensors made of shared templates: what Hypernetwork, Mixture, SuperWeights and ShapeShifter have in common.

    w_k[part] = crop( sum_i alpha_{k,i} T_i )        T in a bank, one row of coefficients alpha a part and member

A bank holds templates and rows of coefficients. A tensor is made of pieces: each says which bank and which row it
takes, and which part of the tensor it fills. A method is only the rule that chooses banks and pieces.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from covey.ensemble import Group, Parameterization
from covey.networks.layers import Axes
from covey.tensors import Tensors, scale_gradient


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


@dataclass(frozen=True)
class Makeup:
    """A tensor's shape and the pieces that fill it."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


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
        self.register_buffer("slots", slots, persistent=False)  # follows from the method's options

    def coefficients(self, rows: Sequence[int]) -> Tensor:
        """These rows, (len(rows), t)."""
        alpha = self.alpha.flatten(0, -2)
        return alpha[_index(rows, len(alpha))]

    def blocks(self, pieces: Sequence[Piece], members: Sequence[int], gamma: float) -> list[Tensor]:
        """Each piece for these members, (len(members), *piece.shape), all in one product."""
        rows = [piece.rows[k] for k in members for piece in pieces]
        mix = self.coefficients(rows)
        if self.slots is not None:
            slots = self.slots[_index(rows, len(self.slots))]
            mix = mix.new_zeros(len(rows), len(self.theta)).scatter(1, slots, mix)
        if any(piece.scale != 1 for piece in pieces):
            mix = mix * mix.new_tensor([piece.scale for _ in members for piece in pieces])[:, None]
        made = mix @ scale_gradient(self.theta, gamma).flatten(1)
        made = made.view(len(members), len(pieces), *self.theta.shape[1:])
        return [made[:, i][(slice(None), *corner(piece.shape))] for i, piece in enumerate(pieces)]


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
        theta, count = scale_gradient(self.theta, gamma), self.alpha.shape[-1]
        made = []
        for piece in pieces:
            size = math.prod(piece.shape)
            step = flat_step(size, len(theta), count)
            templates = torch.stack([_cyclic(theta, piece.start + i * step, size) for i in range(count)])
            mix = self.coefficients([piece.rows[k] for k in members]) * piece.scale
            made.append((mix @ templates).view(len(members), *piece.shape))
        return made


class Templates(Parameterization):
    """Tensors made of banks.

    Args:
        banks: by name.
        makeup: how each tensor is made, by name; one dict, or one a member where networks differ.
        role: for the coverage table.
        gamma: factor of the templates' gradient.
        keep: megabytes of generated weights that eval mode may keep for the next call. Kept weights are made anew
            when a parameter changes and on every `train()` or `eval()`; only writing through `.data` goes unseen.
            Above the limit, one member's weights exist at a time in a loop run.
    """

    def __init__(
        self,
        banks: Mapping[str, Bank],
        makeup: Sequence[Mapping[str, Makeup]],
        *,
        role: str,
        gamma: float = 1.0,
        keep: float = 256,
    ) -> None:
        super().__init__()
        self.banks = nn.ModuleDict(banks)
        self.makeup = [dict(each) for each in makeup]
        self.names = tuple(dict.fromkeys(name for each in self.makeup for name in each))
        self.role, self.gamma, self.keep = role, gamma, keep
        self._numbers = _shares(banks, self.makeup)
        self._generated = sum(
            math.prod(made.shape) * len(made.pieces[0].rows) for each in self.makeup for made in each.values()
        )
        self._kept: dict[tuple, dict[str, Tensor]] = {}
        self._kept_for: list[tuple] = []

    def member(self, k: int) -> dict[str, Tensor]:
        """Member k's tensors."""
        body, row = (k, 0) if len(self.makeup) > 1 else (0, k)
        return self._tensors(body, (row,), alone=True)

    def stacked(self, members: Sequence[int]) -> dict[str, Tensor]:
        """Several members' tensors, (len(members), *shape)."""
        return self._tensors(0, tuple(members))

    def groups(self) -> list[Group]:
        """Templates, and coefficients without decay: members' where each has its own."""
        found = [Group([bank.theta for bank in self.named_banks().values()], "shared")]
        for kind, ndim in (("member", 3), ("shared", 2)):
            alphas = [bank.alpha for bank in self.named_banks().values() if bank.alpha.ndim == ndim]
            if alphas:
                found.append(Group(alphas, kind, decay=0.0))
        return found

    def numbers(self, name: str) -> int:
        """Its coefficients, and its share of the templates that it uses together with others."""
        return self._numbers[name]

    def note(self, name: str) -> str:
        """Which banks."""
        pieces = [piece for each in self.makeup if name in each for piece in each[name].pieces]
        used = dict.fromkeys(piece.bank for piece in pieces)
        counts = [f"{bank} ({len(self.named_banks()[bank].theta):,})" for bank in used]
        return "templates of " + (", ".join(counts) if len(counts) < 3 else f"{counts[0]} to {counts[-1]}")

    def collapsed(self) -> dict[str, Tensor]:
        """The mean of the members' tensors, which is the tensor of their mean coefficients."""
        return {name: tensor.mean(0) for name, tensor in self.stacked(range(self.members())).items()}

    def refresh(self) -> None:
        """Count again and forget kept weights, after the banks or the makeup were changed."""
        self._numbers = _shares(self.banks, self.makeup)  # type: ignore[arg-type]
        self._kept.clear()

    def train(self, mode: bool = True) -> Templates:
        """As on any module; forgets kept weights."""
        self._kept.clear()
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}, "_kept_for": []}  # copies make their own

    def named_banks(self) -> dict[str, Bank]:
        """The banks by name."""
        return dict(self.banks.items())  # type: ignore[arg-type]

    def _tensors(self, body: int, members: tuple[int, ...], alone: bool = False) -> dict[str, Tensor]:
        """Tensors of some members; with `alone` of a single one, without an axis of members. Kept where they may be."""
        if self.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._generate(body, members, alone)
        versions = self._versions()
        if versions is None or self._generated * versions[0][0].element_size() > self.keep * 2**20:
            return self._generate(body, members, alone)
        if len(versions) != len(self._kept_for) or any(
            new[0] is not old[0] or new[1:] != old[1:]
            for new, old in zip(versions, self._kept_for, strict=True)
        ):
            self._kept, self._kept_for = {}, versions
        key = (body, alone, *members)
        if key not in self._kept:
            if sum(len(kept) - 2 for kept in self._kept) > 2 * self.members():
                self._kept.clear()  # ever other subsets of members
            with torch.inference_mode(False), torch.no_grad():
                self._kept[key] = _compact(self._generate(body, members, alone))
        return self._kept[key]

    def _versions(self) -> list[tuple] | None:
        """What tells whether a parameter has changed; None where that cannot be told."""
        found = []
        # not self.parameters(), which takes longer than a small network
        for bank in self.banks._modules.values():
            for p in bank._parameters.values():
                if type(p) is not nn.Parameter or p.is_inference():
                    return None  # a transform's stand-in, or a tensor that does not count its changes
                found.append((p, p._version, p.dtype, p.data_ptr()))
        return found

    def members(self) -> int:
        """M."""
        rows = next(iter(self.makeup[0].values())).pieces[0].rows
        return max(len(self.makeup), len(rows))

    def _generate(self, body: int, members: tuple[int, ...], alone: bool) -> dict[str, Tensor]:
        makeup = self.makeup[body]
        users: dict[str, list[Piece]] = defaultdict(list)
        for how in makeup.values():
            for piece in how.pieces:
                users[piece.bank].append(piece)
        device = next(self.parameters()).device.type
        ready: dict[str, list[Tensor]] = {}
        made: dict[str, Tensor] = {}
        with torch.autocast(device, enabled=False):  # weights in full precision, whatever their use
            for name, how in makeup.items():
                parts = []
                for piece in how.pieces:
                    if (
                        piece.bank not in ready
                    ):  # made when first used, and dropped after use, to hold little at a time
                        bank = self.named_banks()[piece.bank]
                        ready[piece.bank] = bank.blocks(users[piece.bank], members, self.gamma)[::-1]
                    parts.append(ready[piece.bank].pop())
                made[name] = _filled(how, parts, len(members))
                del parts
        return {name: tensor[0] for name, tensor in made.items()} if alone else made


class Separate(Parameterization):
    """w_k = phi_k: every member's own tensors where members differ in shape, so that they cannot be stacked."""

    role = "member's own"

    def __init__(self, tensors: Sequence[Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.names = tuple(dict.fromkeys(name for each in tensors for name in each))
        self.phi = nn.ModuleList(
            Tensors({n: nn.Parameter(t.detach().clone(), t.requires_grad) for n, t in each.items()})
            for each in tensors
        )

    def member(self, k: int) -> dict[str, Tensor]:
        """Member k's tensors."""
        return dict(self.phi[k].items())  # type: ignore[operator]

    def groups(self) -> list[Group]:
        """One group."""
        return [Group(list(self.phi.parameters()), "own")]

    def numbers(self, name: str) -> int:
        """All members' together."""
        return sum(each[name].numel() for each in self.phi if name in each)  # type: ignore[operator,index]


# --- starting values ----------------------------------------------------------------------------------------------


def fan_in(weight: Tensor, how: Axes) -> float:
    """How many inputs one output of the layer sums over."""
    return weight.numel() / how.outputs


def kaiming(shape: Sequence[int], fan: float, like: Tensor) -> Tensor:
    """Normal numbers of variance 2 / fan, in `like`'s dtype and on its device."""
    return torch.randn(*shape, dtype=like.dtype, device=like.device) * math.sqrt(2 / fan)


def orthogonal(sets: int, rows: int, columns: int, like: Tensor) -> Tensor:
    """Rows of length 1, (sets, rows, columns): orthogonal where there are columns enough, each set drawn apart."""
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
    members: int,
    like: Tensor,
) -> tuple[FlatBank, list[Piece]]:
    """A bank of `numbers` in one vector, and the pieces of layers, each of which begins to read where the last ended.

    Args:
        label: the bank's name.
        shapes: of the layers.
        fans: their fan-ins.
        numbers: in the vector.
        templates: how many a layer mixes.
        members: rows of coefficients for each layer, (M, R, t).
        like: gives dtype and device.
    """
    rows = len(shapes)
    alpha = orthogonal(members, rows, templates, like)
    alpha *= torch.tensor([(max(fans) / fan) ** 0.5 for fan in fans]).to(like)[:, None]
    pieces, start = [], 0
    for j, shape in enumerate(shapes):
        pieces.append(Piece(label, tuple(k * rows + j for k in range(members)), shape, start=start))
        start = (start + templates * flat_step(math.prod(shape), numbers, templates)) % numbers
    return FlatBank(kaiming((numbers,), max(fans), like), alpha), pieces


# --- private --------------------------------------------------------------------------------------------------------


def _index(rows: Sequence[int], count: int) -> slice | list[int]:
    """Rows as a slice where they follow each other, which needs no copy."""
    first = rows[0]
    if list(rows) == list(range(first, first + len(rows))):
        return slice(first, first + len(rows)) if len(rows) < count else slice(None)
    return list(rows)


def _cyclic(vector: Tensor, start: int, length: int) -> Tensor:
    """`length` numbers of a vector from `start` on, going round."""
    parts = []
    start %= len(vector)
    while length > 0:
        parts.append(vector[start : start + length])
        length -= len(parts[-1])
        start = 0
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _filled(made: Makeup, parts: Sequence[Tensor], members: int) -> Tensor:
    if len(parts) == 1 and not made.pieces[0].into:
        return parts[0]
    tensor = parts[0].new_empty(members, *made.shape)
    for piece, part in zip(made.pieces, parts, strict=True):
        tensor[(slice(None), *piece.into)] = part
    return tensor


def _compact(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, copied where they are views of more than themselves."""
    memory = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors.values()}
    if sum(memory.values()) <= sum(t.nbytes for t in tensors.values()):
        return tensors
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _shares(banks: Mapping[str, Bank], makeup: Sequence[Mapping[str, Makeup]]) -> dict[str, int]:
    """Stored numbers by tensor name; what several tensors share is divided among them, and the sum is exact."""
    users: dict[tuple[str, int | None], dict[str, None]] = defaultdict(dict)
    for each in makeup:
        for name, made in each.items():
            for piece in made.pieces:
                users[piece.bank, None][name] = None
                for row in piece.rows:
                    users[piece.bank, row][name] = None
    numbers: dict[str, int] = defaultdict(int)
    for (label, used), names in users.items():
        total = banks[label].theta.numel() if used is None else banks[label].alpha.shape[-1]
        share, left = divmod(total, len(names))
        for i, name in enumerate(names):
            numbers[name] += share + (i < left)
    return dict(numbers)
