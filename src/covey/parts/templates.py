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
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from covey.parameterization import Group, Parameterization, places
from covey.parts.acting import differentiable, forward_mode
from covey.parts.banks import Bank, Piece
from covey.parts.recomputed import RecomputedWeight


@dataclass(frozen=True)
class Makeup:
    """A tensor's shape and the pieces that fill it."""

    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"shape": list(self.shape), "pieces": [piece.to_dict() for piece in self.pieces]}

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Makeup:
        """From what `to_dict` gave."""
        return Makeup(tuple(stored["shape"]), tuple(map(Piece.from_dict, stored["pieces"])))


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
        recompute: whether training in a loop makes a layer's weight when the layer runs, and once more for its backward
            pass, so that one layer's weight exists at a time.
    """

    def __init__(
        self,
        banks: Mapping[str, Bank],
        makeup: Sequence[Mapping[str, Makeup]],
        *,
        role: str,
        gamma: float = 1.0,
        keep: float = 256,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.recomputes = recompute
        self.banks = nn.ModuleDict(banks)
        self.makeup = [dict(each) for each in makeup]
        self.names = tuple(dict.fromkeys(name for each in self.makeup for name in each))
        self.role, self.gamma, self.keep = role, gamma, keep
        self._numbers = _shares(banks, self.makeup)
        self._generated = _generated(self.makeup)
        self._places = places(self.members(), len(self.makeup))
        self._kept: dict[tuple, dict[str, Tensor]] = {}
        self._kept_for: list[tuple] = []

    def place(self, k: int) -> tuple[int, int]:
        """Where member k is: the number of its network, and its row among that network's members."""
        return self._places[k]

    def member(self, k: int) -> dict[str, Tensor]:
        """Member k's tensors."""
        network, row = self._places[k]
        return self._tensors(network, (row,), alone=True)

    def stacked(self, members: Sequence[int]) -> dict[str, Tensor]:
        """Several members' tensors, (len(members), *shape)."""
        return self._tensors(0, tuple(members))

    @property
    def acts(self) -> bool:  # type: ignore[override]
        """In training, if weights are to be made layer by layer; torch's transforms know no such weights."""
        return self.recomputes and torch.is_grad_enabled() and not _transformed()

    def own(self, members: Sequence[int]) -> dict[str, Tensor]:
        """Which members they are: all else is read when a layer runs."""
        return {"member": torch.tensor(list(members))}

    def acting(self, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One member's tensors, each made when its layer runs."""
        network, row = self._places[int(own["member"])]
        banks = self.named_banks()
        found: dict[str, Tensor] = {}
        for name, how in self.makeup[network].items():
            sources: list[Tensor] = []
            for piece in how.pieces:
                sources += banks[piece.bank].theta, banks[piece.bank].alpha
            found[name] = RecomputedWeight(how.shape, sources, partial(self._one, how, row))
        return differentiable(found)

    def _one(self, how: Makeup, row: int, sources: Sequence[Tensor]) -> Tensor:
        """One tensor of one member, of the templates and coefficients of each piece."""
        banks = self.named_banks()
        with self._in_full_precision():
            parts = []
            for piece, theta, alpha in zip(how.pieces, sources[::2], sources[1::2], strict=True):
                parts.append(banks[piece.bank].alone(piece, row, self.gamma, theta, alpha)[None])
            return _filled(how, parts, 1)[0]

    def _in_full_precision(self) -> Any:
        """A context in which weights are made in full precision, whatever their use."""
        device = next(self.parameters()).device.type
        return torch.autocast("cpu" if device == "meta" else device, enabled=False)  # autocast knows no meta

    def groups(self) -> list[Group]:
        """Templates, and coefficients without decay: members' where each has its own."""
        found = [Group([bank.theta for bank in self.named_banks().values()], "shared")]
        own = [bank.alpha for bank in self.named_banks().values() if bank.alpha.ndim == 3]
        common = [bank.alpha for bank in self.named_banks().values() if bank.alpha.ndim == 2]
        if own:
            found.append(Group(own, "member", decay=0.0, by_row=True))
        if common:
            found.append(Group(common, "shared", decay=0.0))
        return found

    def parameter_count(self, name: str) -> int:
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
        if not _same(versions, self._kept_for):
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
        ready: dict[str, list[Tensor]] = {}
        made: dict[str, Tensor] = {}
        with self._in_full_precision():
            for name, how in makeup.items():
                parts = []
                for piece in how.pieces:
                    # a bank's blocks are made when first used and dropped after use, to hold little at a time
                    if piece.bank not in ready:
                        bank = self.named_banks()[piece.bank]
                        ready[piece.bank] = bank.blocks(users[piece.bank], members, self.gamma)[::-1]
                    parts.append(ready[piece.bank].pop())
                made[name] = _filled(how, parts, len(members))
                del parts
        return {name: tensor[0] for name, tensor in made.items()} if alone else made


def _same(versions: Sequence[tuple], before: Sequence[tuple]) -> bool:
    """Whether no parameter has changed; each is a tuple that begins with the parameter itself."""
    if len(versions) != len(before):
        return False
    for new, old in zip(versions, before, strict=True):
        # parameters are told apart by identity: == would compare their values
        if new[0] is not old[0] or new[1:] != old[1:]:
            return False
    return True


def _transformed() -> bool:
    """Whether one of torch.func's transforms or forward-mode differentiation is at work."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_mode()


def _generated(makeup: Sequence[Mapping[str, Makeup]]) -> int:
    """How many numbers the tensors of all members have."""
    count = 0
    for each in makeup:
        for made in each.values():
            members = len(made.pieces[0].rows)
            count += members * math.prod(made.shape)
    return count


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
