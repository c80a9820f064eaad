"""Members as peft adapters, and adapters as members."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from covey.conversion import convert
from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError, StoreError
from covey.files import whole, write_text
from covey.hf.adapter_files import CONFIG, PREFIX, TENSORS, is_conv1d, read_adapter
from covey.methods.low_rank import LowRank
from covey.networks.calls import Output
from covey.networks.layers import owner_of, ties
from covey.parts.low_rank import LowRankUpdate
from covey.parts.plain import Replicated

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def save_adapters(ensemble: Ensemble, folder: str | Path, *, base: str | None = None) -> list[Path]:
    """Write each member's low-rank update as a folder that `peft.PeftModel.from_pretrained` reads.

    Member k is `folder/member-k`, with adapter_config.json and adapter_model.safetensors; put on the pretrained network
    it answers as `ensemble.member(k)` does. Members' own copies, such as heads, are stored as `modules_to_save`; so
    is an updated layer whose path ends as a copied one's ("pre_classifier", "classifier"): peft cannot tell them apart.

    Args:
        ensemble: by `LowRank` or `SharedLowRank`, whose base stayed as it was.
        folder: is made if it is not there.
        base: the pretrained network's name or folder, for the adapter's configuration; by default what its own says.

    Returns the members' folders.
    """
    update = _exportable(ensemble)
    network = ensemble.skeleton()
    kept = _modules_to_save(ensemble, update)
    updated = [name for name in update.names if owner_of(name) not in kept]
    rank = max(a.shape[0] for a, _ in update.update(0).values())
    config = {
        "peft_type": "LORA",
        "base_model_name_or_path": base
        or getattr(getattr(network, "config", None), "_name_or_path", None)
        or None,
        "task_type": None,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": rank * update.scaling,
        "lora_dropout": update.dropout,
        "target_modules": _target_modules(network, updated),
        "fan_in_fan_out": any(is_conv1d(network.get_submodule(owner_of(name))) for name in updated),
        "bias": "none",
        "modules_to_save": kept or None,
        "init_lora_weights": True,
    }
    written = []
    for k in range(ensemble.members):
        place = Path(folder) / f"member-{k}"
        with torch.no_grad():
            tensors = _adapter_tensors(ensemble, update, kept, k)
        try:
            place.mkdir(parents=True, exist_ok=True)
            with whole(place / TENSORS) as temporary:
                save_file(tensors, temporary, {"format": "pt"})
            write_text(place / CONFIG, json.dumps(config, indent=2) + "\n")
        except OSError as error:
            raise StoreError(f"cannot write the adapter {place}: {error}.") from error
        written.append(place)
    return written


def from_adapters(
    network: nn.Module,
    folders: Sequence[str | Path],
    *,
    example: Any = None,
    output: Output = None,
    task: str = "classification",
    base: float = 0.0,
    check: bool | None = None,
) -> Ensemble:
    """An ensemble out of peft adapters that were trained on one network: member k is the k-th adapter.

    Adapters may differ in rank, scaling and in the layers that they update. The ensemble's rank is the largest; smaller
    updates are filled up with rows of A that multiply zeros of B, which changes no answer and can still learn.
    Scalings that differ are folded into B. What an adapter stores whole (`modules_to_save`, trained biases) is the
    member's own copy; members whose adapter does not have it keep the base's. Rank-stabilised LoRA is understood; DoRA
    and other relatives are refused, and so are pickles (adapter_model.bin).

    Args:
        network: the base that the adapters were trained on; it stays as it is.
        folders: one per member, each with adapter_config.json and adapter_model.safetensors.
        example: as in `covey.convert`.
        output: likewise.
        task: likewise.
        base: factor of the base's learning rate in further training; 0 freezes it.
        check: as in `covey.convert`.
    """
    if isinstance(folders, str | Path) or not folders:
        raise OptionError("folders is a list of adapters' folders, one per member, at least one.")
    adapters = [read_adapter(folder, network) for folder in folders]
    updated = [name for name, _ in network.named_parameters() if any(name in one.updates for one in adapters)]
    copied = [name for name, _ in network.named_parameters() if any(name in one.copies for one in adapters)]
    both = sorted({*updated} & {*copied})
    if both:
        raise ConversionError(
            f"{both[0]!r} is stored whole in one adapter and has an update in another; they cannot be one ensemble."
        )
    scaling = next(iter(adapters[0].updates.values()))[2]
    dropouts = {one.dropout for one in adapters}
    method = LowRank(
        members=len(adapters),
        rank=max(one.rank for one in adapters),
        scaling=scaling,
        where=tuple(updated),
        own=tuple(copied),
        base=base,
        dropout=dropouts.pop() if len(dropouts) == 1 else 0.0,
    )
    ensemble = convert(network, method, example=example, output=output, task=task, check=check)
    part = ensemble.parts["low_rank"]
    assert isinstance(part, LowRankUpdate)
    with torch.no_grad():
        for k, one in enumerate(adapters):
            for name, (a, b, factor) in one.updates.items():
                part.a[name][k, : len(a)] = a
                part.b[name][k, :, : len(a)] = b * (factor / scaling)
            for name, tensor in one.copies.items():
                copies = ensemble.parts["replicated"]
                assert isinstance(copies, Replicated)
                copies.phi[name][k] = tensor
    return ensemble


def _exportable(ensemble: Ensemble) -> LowRankUpdate:
    """The members' updates, if each of them with the pretrained network is all that a member is."""
    part = dict(ensemble.parts.items()).get("low_rank")
    if not isinstance(part, LowRankUpdate):
        raise ConversionError(
            f"members of {type(ensemble.method).__name__} are no low-rank updates of a network, so they are no "
            "adapters. LowRank's and SharedLowRank's are; other members can be stored whole: ensemble.member(k)."
        )
    if part.base:
        raise ConversionError(
            f"the base was trained too (base={part.base:g}), so that an adapter on the pretrained network would not be "
            "the member. Store members whole: ensemble.member(k).save_pretrained(...)."
        )
    moving = [name for buffers in ensemble.state for name in buffers.own.names]
    if moving:
        raise ConversionError(
            f"each member has running statistics of its own ({moving[0]!r}), which an adapter cannot hold. Store "
            "members whole: ensemble.member(k)."
        )
    network = ensemble.skeleton()
    tied = {first: name for name, first in ties(network).items()}
    for name in part.names:
        owner = network.get_submodule(owner_of(name))
        grouped = isinstance(owner, _CONVOLUTIONS) and owner.groups > 1
        known = isinstance(owner, (nn.Linear, nn.Embedding, *_CONVOLUTIONS)) or is_conv1d(owner)
        if not known or grouped or not name.endswith(".weight"):
            raise ConversionError(
                f"{name!r} belongs to a {type(owner).__name__}, for which peft's adapters have no such update: convert "
                "with where= that leaves it out."
            )
        if name in tied:
            raise ConversionError(
                f"{name!r} is tied to {tied[name]!r}, and peft would update only one of them: convert with where= that "
                "leaves it out."
            )
    return part


def _modules_to_save(ensemble: Ensemble, update: LowRankUpdate) -> list[str]:
    """Paths of the layers that are stored whole: members' copies, and updated ones that peft would take for them."""
    network = ensemble.skeleton()
    tied = ties(network)
    updated = {owner_of(name) for name in update.names}
    found: dict[str, None] = {}
    for part in ensemble.parts.values():
        if part is update or not part.varies:
            continue
        for name in part.names:
            path = owner_of(name)
            if path in updated:
                raise ConversionError(
                    f"members have copies of {name!r} beside an update of the same layer, which peft's adapters cannot "
                    "hold: convert with own= that leaves it out."
                )
            if name in tied.values():
                raise ConversionError(
                    f"members have copies of {name!r}, which is tied to another layer, and a peft adapter would change "
                    "only one of them: convert with own=()."
                )
            found[path] = None
    # peft compares the ends of paths, without regard to dots
    alike = [path for path in sorted(updated) if path.endswith(tuple(found))]
    if len(alike) == len(updated):
        raise ConversionError(
            f"paths of all updated layers, such as {alike[0]!r}, end as that of a copied one, and peft would copy them "
            "too: convert with own=()."
        )
    return [*found, *alike]


def _target_modules(network: nn.Module, names: Sequence[str]) -> list[str] | str:
    """The layers' paths; as a regular expression where peft would take another layer's path for one of them."""
    paths = [owner_of(name) for name in names]
    for path, _ in network.named_modules():
        if path not in paths and any(path.endswith("." + one) for one in paths):
            return "|".join(map(re.escape, paths))
    return paths


def _adapter_tensors(
    ensemble: Ensemble, update: LowRankUpdate, kept: Sequence[str], k: int
) -> dict[str, Tensor]:
    network = ensemble.skeleton(k)
    found: dict[str, Tensor] = {}
    for name, (a, b) in update.update(k).items():
        path = owner_of(name)
        if path in kept:
            continue
        owner = network.get_submodule(path)
        keys = "lora_A.weight", "lora_B.weight"
        if isinstance(owner, nn.Embedding):
            keys = "lora_embedding_A", "lora_embedding_B"
        elif is_conv1d(owner):
            a, b = b.T, a.T  # covey reads every matrix that is no layer's of torch as (out, in)
        elif isinstance(owner, _CONVOLUTIONS):
            b = b[(...,) + (None,) * (a.ndim - 2)]
        for key, tensor in zip(keys, (a, b), strict=True):
            found[f"{PREFIX}{path}.{key}"] = tensor
    member = ensemble.tensors(k)
    for path in kept:
        for leaf, _ in network.get_submodule(path).named_parameters():
            found[f"{PREFIX}{path}.{leaf}"] = member[f"{path}.{leaf}"]
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in found.items()}
