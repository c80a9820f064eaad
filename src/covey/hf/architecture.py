"""The architecture of a network of transformers as a JSON file, and back; no code, no weights.

The class's name and its configuration are enough to build a network of transformers without memory. What in a
configuration could load code (kernels, remote classes, quantisers) is never written and refused when read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from covey.errors import CoveyError, StoreError
from covey.extras import load
from covey.files import write_text
from covey.schema import Named, Record, Whole, Word, read_json
from covey.seeds import random_state_kept
from covey.trial import Bounded

FILE = "network.json"
_SPEC = Record({"class": Word(), "config": Named(), "tensors": Whole(1, 1 << 20)})
_LOADS_CODE = ("auto_map", "quantization_config", "kernel", "implementation", "trust_remote_code")


def write_architecture(network: nn.Module, folder: Path) -> bool:
    """Write what the network is, if it is one of transformers' own; returns whether it is."""
    if not type(network).__module__.startswith("transformers.models."):
        return False
    made = {
        "class": type(network).__name__,
        "config": _cleaned(cast(Any, network.config).to_dict()),
        "tensors": len(list(network.parameters())) + len(list(network.buffers())),
    }
    write_text(folder / FILE, json.dumps(made, indent=1, sort_keys=True) + "\n")
    return True


def read_architecture(folder: Path) -> nn.Module | None:
    """The network without memory that a stranger's folder describes; None where the folder has no such file."""
    path = folder / FILE
    if not path.exists():
        return None
    stored = read_json(path, _SPEC)
    _check_config(stored["config"], path)
    transformers = load("transformers")
    kind: Any = getattr(transformers, stored["class"], None) if stored["class"].isidentifier() else None
    is_network = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    if not is_network or not kind.__module__.startswith("transformers.models."):
        raise StoreError(f"{path} names the class {stored['class']!r}, which is no network of transformers.")
    try:
        config = kind.config_class.from_dict(stored["config"])
        with random_state_kept(), Bounded(2_000 + 200 * stored["tensors"]), torch.device("meta"):
            return kind(config)
    except CoveyError as error:
        raise StoreError(f"{path} does not describe a network: {error}") from error
    except Exception as error:  # a configuration may be wrong in any way
        raise StoreError(
            f"{path} does not describe a network that can be built: {type(error).__name__}: {error}."
        ) from error


def _cleaned(value: Any) -> Any:
    """A configuration without what could load code."""
    if isinstance(value, dict):
        return {str(key): _cleaned(found) for key, found in value.items() if not _is_unsafe(str(key))}
    if isinstance(value, list | tuple):
        return [_cleaned(found) for found in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def _check_config(value: Any, path: Path) -> None:
    if isinstance(value, list):
        for found in value:
            _check_config(found, path)
    if not isinstance(value, dict):
        return
    for key, found in value.items():
        if _is_unsafe(key):
            raise StoreError(
                f"{path} sets {key!r}, which could load code. It was not written by covey; give the architecture "
                "yourself with network=... if you trust the rest."
            )
        _check_config(found, path)


def _is_unsafe(key: str) -> bool:
    return key.startswith("_") or any(word in key for word in _LOADS_CODE)
