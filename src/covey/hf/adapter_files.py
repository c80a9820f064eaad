"""peft's adapter folders, read as a stranger's: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covey.errors import ConversionError, StoreError, suggest
from covey.networks.layers import canonical
from covey.schema import Either, Maybe, Named, Number, Record, Truth, Whole, Word, check, read_json
from covey.tensor_files import read_foreign_tensors

CONFIG = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""What peft's names of a network's tensors begin with."""

_SPEC = Record(
    {"peft_type": Word(), "r": Whole(1, 1 << 16), "lora_alpha": Number(0, 1e6)},
    optional={
        "lora_dropout": Number(0, 1),
        "use_rslora": Truth(),
        "alpha_pattern": Maybe(Named(Number(0, 1e6))),
        "rank_pattern": Maybe(Named(Whole(1, 1 << 16))),
        "init_lora_weights": Maybe(Either((Truth(), Word()))),
    },
)
_HARMLESS = frozenset(
    (
        "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying",
        "eva_config", "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern",
        "layers_to_transform", "loftq_config", "lora_alpha", "lora_dropout", "megatron_core", "modules_to_save",
        "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "runtime_config",
        "target_modules", "task_type", "use_rslora",
    )
)  # fmt: skip
"""Options that change nothing about what stored tensors mean, or that are understood here."""

_PLAIN_STARTS = ("gaussian", "orthogonal", "eva")
"""Ways to draw the first A and B that leave the base's weights as they are; others (pissa, olora, ...) change them."""

_FACTOR = re.compile(r"(?P<path>.+)\.lora_(?:embedding_)?(?P<factor>[AB])(?:\.weight)?")


@dataclass(frozen=True)
class Adapter:
    """One adapter, in covey's words.

    Args:
        folder: where it lies.
        updates: by the weight's name: A (rank, in ...), B (out, rank) and their factor.
        copies: tensors that stand in place of the base's, by name.
        dropout: on the updates' inputs, in training.
    """

    folder: Path
    updates: dict[str, tuple[Tensor, Tensor, float]]
    copies: dict[str, Tensor]
    dropout: float

    @property
    def rank(self) -> int:
        """The largest of its updates."""
        return max(len(a) for a, _, _ in self.updates.values())


def read_adapter(folder: str | Path, network: nn.Module) -> Adapter:
    """Read an adapter of `network`; an error names what does not fit it."""
    folder = Path(folder)
    config = _config(folder)
    tensors = read_foreign_tensors(folder / TENSORS)
    factors: dict[str, dict[str, Tensor]] = {}
    copies: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        if not key.startswith(PREFIX):
            raise StoreError(f"{folder}: {key!r} is no name of peft's, which begin with {PREFIX!r}.")
        name = key.removeprefix(PREFIX)
        found = _FACTOR.fullmatch(name)
        if found is not None:
            weight = _known(network, found["path"] + ".weight", folder)
            factors.setdefault(weight, {})[found["factor"]] = tensor
        elif ".lora_" in name:
            raise StoreError(f"{folder}: {key!r} belongs to a kind of LoRA that covey does not have.")
        else:
            # a layer that is wrapped for its update, or for its copy, has one more step in its path
            unwrapped = name.replace(".base_layer.", ".").replace(".modules_to_save.", ".")
            plain = _known(network, unwrapped, folder)
            copies[plain] = _fitting(tensor, network.get_parameter(plain), plain, folder)
    if not factors:
        raise StoreError(f"{folder} holds no low-rank update (no lora_A and lora_B).")
    updates = {}
    for name, pair in factors.items():
        a, b = _update(network, name, pair, folder)
        _check_rank(config, name, (a, b), folder)
        updates[name] = a, b, _scaling(config, name, len(a), folder)
        if name in copies:
            _check_base(copies.pop(name), network.get_parameter(name), name, folder)
    return Adapter(folder, updates, copies, float(config.get("lora_dropout", 0.0)))


def is_conv1d(module: nn.Module) -> bool:
    """Whether this is transformers' linear layer that stores its weight inputs first, as GPT-2 has it."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def _config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder; an adapter is a folder with {CONFIG} and {TENSORS}.")
    if not (folder / CONFIG).exists():
        raise StoreError(f"{folder} has no {CONFIG}: it is no adapter of peft's.")
    if not (folder / TENSORS).exists():
        pickled = (folder / "adapter_model.bin").exists()
        raise StoreError(
            f"{folder} has no {TENSORS}"
            + (
                ", only adapter_model.bin, which is a pickle and could run code. Save it again"
                if pickled
                else ""
            )
            + (" with peft's save_pretrained(..., safe_serialization=True)." if pickled else ".")
        )
    config = read_json(folder / CONFIG)
    check(config, _SPEC, folder / CONFIG)
    _check_options(config, folder)
    return config


def _check_options(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse adapters whose tensors mean something else than W + scaling B A."""
    kind = config["peft_type"]
    if kind != "LORA":
        raise ConversionError(f"{folder} is a {kind} adapter; covey makes ensembles of LORA adapters.")
    for name, value in config.items():
        if value and name not in _HARMLESS:
            raise ConversionError(
                f"{folder} was trained with {name}={value!r}, which covey's low-rank updates do not have. Merge such "
                "adapters into networks (peft's merge_and_unload) and take covey.gather."
            )
    start = config.get("init_lora_weights", True)
    if isinstance(start, str) and start not in _PLAIN_STARTS:
        raise ConversionError(
            f"{folder} was started with init_lora_weights={start!r}, which changes the base's weights too. Convert it "
            "to a plain adapter first (peft's path_initial_model_for_weight_conversion)."
        )


def _scaling(config: Mapping[str, Any], name: str, rank: int, folder: Path) -> float:
    """peft's factor of an update: alpha / r, or alpha / sqrt(r) for rank-stabilised LoRA."""
    alpha = config["lora_alpha"]
    path = name.removesuffix(".weight")
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if not re.fullmatch(r"[\w.]+", pattern):
            raise ConversionError(
                f"{folder}: alpha_pattern has the regular expression {pattern!r}; covey takes names of layers only."
            )
        if path == pattern or path.endswith("." + pattern):
            alpha = value
            break
    return float(alpha / (math.sqrt(rank) if config.get("use_rslora") else rank))


def _check_rank(config: Mapping[str, Any], name: str, update: tuple[Tensor, Tensor], folder: Path) -> None:
    """Refuse updates of another rank than the configuration says, and of more than their weight has."""
    a, b = update
    rank = len(a)
    said = {config["r"], *(config.get("rank_pattern") or {}).values()}
    if rank not in said:
        raise StoreError(
            f"{folder}: the update of {name!r} has rank {rank}, and {CONFIG} says {sorted(said)}. One of the two files "
            "is another adapter's."
        )
    most = min(a[0].numel(), len(b))
    if rank > most:
        raise ConversionError(
            f"{folder}: its update of {name!r} has rank {rank}, and the weight has rank {most} at most. Merge such "
            "adapters into networks (peft's merge_and_unload) and take covey.gather."
        )


def _check_base(stored: Tensor, base: Tensor, name: str, folder: Path) -> None:
    """peft stores an embedding that it updates whole, too; it must be the base's, as nothing else is kept of it."""
    if not torch.equal(stored.to(base.dtype), base.detach().cpu()):
        raise ConversionError(
            f"{folder} stores {name!r} beside its update, with other values than the network's: it was trained on "
            "another base, or changed with it. Load that base, or merge the adapter (peft's merge_and_unload)."
        )


def _known(network: nn.Module, name: str, folder: Path) -> str:
    """The name that a parameter of the network goes by; peft changes one place of a tied one, covey all of them."""
    names = canonical(network)
    if name in dict(network.named_buffers()):
        raise ConversionError(f"{folder} stores the buffer {name!r}; covey's adapters hold parameters only.")
    if name not in names:
        raise ConversionError(
            f"{folder} is an adapter of another base: it names {name!r}, which this network does not have"
            f"{suggest(name, names)}."
        )
    tied = [other for other, first in names.items() if first == names[name] and other != name]
    if tied:
        raise ConversionError(
            f"{folder} changes {name!r}, which this network ties to {tied[0]!r}: under peft only one of them changes, "
            "so that the answers would differ. Give each a tensor of its own (load the base with "
            "tie_word_embeddings=False)."
        )
    return names[name]


def _update(network: nn.Module, name: str, pair: Mapping[str, Tensor], folder: Path) -> tuple[Tensor, Tensor]:
    """A and B as covey has them, if both are there and fit the weight."""
    for factor in "AB":
        if factor not in pair:
            raise StoreError(f"{folder}: the update of {name!r} has no lora_{factor}.")
    a, b = pair["A"], pair["B"]
    owner = network.get_submodule(name.removesuffix(".weight"))
    weight = network.get_parameter(name)
    if weight.ndim > 2 and b.shape[2:].numel() == 1:
        b = b.flatten(1)
    inputs, outputs = weight.shape[1:], weight.shape[0]
    if isinstance(owner, nn.Embedding) or is_conv1d(owner):
        inputs, outputs = weight.shape[:1], weight.shape[1]
    rank = a.shape[0] if a.ndim else 0
    if tuple(a.shape) != (rank, *inputs) or tuple(b.shape) != (outputs, rank):
        raise ConversionError(
            f"{folder} is an adapter of another base: its update of {name!r} has the shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}; for the network's weight {tuple(weight.shape)} they would be ({rank}, "
            f"{', '.join(map(str, inputs))}) and ({outputs}, {rank})."
        )
    if is_conv1d(owner):
        return b.T, a.T  # covey reads every matrix that is no layer's of torch as (out, in)
    return a, b


def _fitting(tensor: Tensor, base: Tensor, name: str, folder: Path) -> Tensor:
    if tensor.shape != base.shape:
        raise ConversionError(
            f"{folder} is an adapter of another base: its {name!r} has shape {tuple(tensor.shape)}, and the network's "
            f"{tuple(base.shape)}."
        )
    return tensor
