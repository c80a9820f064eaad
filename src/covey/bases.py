"""Tensors that an ensemble has in common with a network kept elsewhere: named and checksummed, not stored again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import StoreError
from covey.schema import Named, Record, Word

SPEC = Record({"sha256": Word(), "tensors": Named(Word())})
"""What config.json says of a base: the ensemble's tensors by name with the network's that they are, and a checksum."""


def common(tensors: Mapping[str, Tensor], base: nn.Module) -> dict[str, str]:
    """The tensors that are in the base network bit for bit, each with the name that it has there."""
    known: dict[tuple, str] = {}
    for name, tensor in base.state_dict().items():
        known.setdefault(_identity(tensor), name)
    found = {}
    for name, tensor in tensors.items():
        identity = _identity(tensor)
        if identity in known:
            found[name] = known[identity]
    return found


def described(tensors: Mapping[str, Tensor], base: nn.Module) -> dict[str, Any]:
    """What config.json says of the base network of an ensemble with these tensors."""
    found = common(tensors, base)
    if not found:
        raise StoreError(
            "none of the ensemble's tensors is a tensor of the base network any more, so nothing would be left out. "
            "Train with the base frozen, as LowRank() and BatchEnsemble(base=0) do, or save without base=."
        )
    return {"sha256": checksum(base, found.values()), "tensors": found}


def borrowed(described: Mapping[str, Any], network: nn.Module | None, folder: Path) -> dict[str, Tensor]:
    """The tensors that were left out, taken from the base network, if it is the one that they were compared with."""
    names = described["tensors"]
    if network is None:
        raise StoreError(
            f"{folder} holds only what the ensemble adds to its base network; give that network with its weights: "
            "covey.load(folder, network)."
        )
    there = network.state_dict()
    lacking = sorted(set(names.values()) - set(there))
    if lacking:
        raise StoreError(
            f"{folder} was stored for another base network: the one given has no {lacking[0]!r}."
        )
    if checksum(network, names.values()) != described["sha256"]:
        raise StoreError(
            f"{folder} was stored for a base network with other weights: the checksum of {len(set(names.values()))} "
            "tensors of the one given differs. Load the pretrained weights that the ensemble was trained on."
        )
    return {name: there[of].detach().clone() for name, of in names.items()}


def checksum(network: nn.Module, names: Iterable[str]) -> str:
    """The SHA-256 of some of a network's tensors: their names, shapes, dtypes and values."""
    tensors = network.state_dict()
    total = hashlib.sha256()
    for name in sorted(set(names)):
        shape, dtype, digest = _identity(tensors[name])
        total.update(f"{name} {shape} {dtype} {digest}\n".encode())
    return total.hexdigest()


def _identity(tensor: Tensor) -> tuple:
    """Shape, dtype and a checksum of the values."""
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    values = plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return tuple(tensor.shape), str(tensor.dtype), hashlib.sha256(values).hexdigest()
