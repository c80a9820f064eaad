"""Ensembles in folders: tensors as safetensors, everything else as JSON; no pickle, no code.

A folder holds `config.json` and the tensor file that it names. The tensor file is written first, under a name that
comes from its content; then config.json is replaced in one step. So a save that is killed leaves the old ensemble
whole, and one that ends leaves the new one.

Loading decides nothing: config.json holds the method's layout, and the ensemble is built from it without memory (on the
meta device) before the stored tensors are put in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from covey import registry, zoo
from covey.calibration import Temperature, from_dict
from covey.ensemble import Ensemble
from covey.errors import CoveyError, StoreError
from covey.files import write_text
from covey.layout import Layout
from covey.networks.anatomy import Anatomy, listing, recalled
from covey.networks.layers import hollow
from covey.seeds import random_state_kept
from covey.tensor_files import digest, read_tensors, regular, shapes_in, write_tensors
from covey.version import __version__

FORMAT = 2
FIRST_FORMAT = 1  # had no layout; it is worked out from what it had
CONFIG = "config.json"
_KEYS = (
    "method", "options", "bodies", "output", "task", "class_dim", "seed", "runs", "memory_format", "training",
    "calibration", "file", "sha256",
)  # fmt: skip
_MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib", ".ckpt")


def save(ensemble: Ensemble, folder: str | Path) -> None:
    """Write an ensemble to `folder`, atomically; what was there before stays whole until the new one is.

    Args:
        ensemble: what to write. Its method must be registered, so that it can be loaded again.
        folder: is made if it is not there.
    """
    folder = Path(folder)
    config = _config(ensemble)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = write_tensors(folder, "tensors", ensemble.state_dict())
        config |= {"file": path.name, "sha256": digest(path)}
        write_text(folder / CONFIG, json.dumps(config, indent=1) + "\n")
        for old in folder.glob("tensors-*.safetensors"):
            if old.name != path.name:
                old.unlink()
    except OSError as error:
        raise StoreError(
            f"cannot save to {folder}: {error}. What was there before is still whole."
        ) from error


def load(folder: str | Path, network: nn.Module | list[nn.Module] | None = None) -> Ensemble:
    """Read an ensemble back.

    Args:
        folder: what `save` wrote.
        network: the architecture (its weights do not matter), or a list of them where members differ;
            not needed for networks of `covey.zoo`.
    """
    folder = Path(folder)
    config = _read_config(folder)
    path = folder / config["file"]
    try:
        networks = _networks(config, network)
        for net, body in zip(networks, config["bodies"], strict=True):
            _check_architecture(net, body["tensors"], folder)
        ensemble = _built(config, networks, path)
    except (KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError) as error:
        raise StoreError(
            f"{folder / CONFIG} does not describe an ensemble: {type(error).__name__}: {error}. "
            "It was changed after it was written."
        ) from error
    _fill(ensemble, path)
    frozen = config.get("frozen")  # the first format did not say
    if frozen is not None:
        for name, parameter in ensemble.named_parameters():
            parameter.requires_grad_(name not in frozen)
    return ensemble.train(config["training"])


def _built(config: Mapping[str, Any], networks: list[nn.Module], path: Path) -> Ensemble:
    """The ensemble that config.json describes, without memory."""
    method = registry.revived(config["method"], config["options"])
    records = config["bodies"]
    bodies = [recalled(net, body, config["output"]) for net, body in zip(networks, records, strict=True)]
    layout = _layout(config, method, bodies, path)
    with random_state_kept():
        try:
            ensemble = method.build(bodies, layout)
        except CoveyError as error:
            raise StoreError(f"{path.parent} does not describe an ensemble: {error}") from error
    ensemble.task, ensemble.class_dim = config["task"], config["class_dim"]
    ensemble.seed, ensemble.runs = config["seed"], dict(config["runs"])
    ensemble.memory_format = getattr(torch, config["memory_format"])
    for found in map(from_dict, config["calibration"]):
        if isinstance(found, Temperature):
            ensemble.temperature = found
        else:
            ensemble.conformal = found
    return ensemble


def _layout(config: Mapping[str, Any], method: Any, bodies: list[Anatomy], path: Path) -> Layout:
    if config["format"] == FORMAT:
        return Layout.from_dict(config["layout"])
    shared = tuple(tuple(body["shared"]) for body in config["bodies"])
    layout = method.recall(bodies, config["extra"], shapes_in(path))
    return Layout(shared, layout.tensors, layout.notes, layout.facts)


def _config(ensemble: Ensemble) -> dict[str, Any]:
    calibrations = (ensemble.temperature, ensemble.conformal)
    return {
        "format": FORMAT,
        "covey": __version__,
        **registry.described(ensemble.method),
        "layout": ensemble.layout.to_dict(),
        "bodies": list(ensemble.records),
        "output": ensemble.output,
        "task": ensemble.task,
        "class_dim": ensemble.class_dim,
        "seed": ensemble.seed,
        "runs": ensemble.runs,
        "memory_format": str(ensemble.memory_format).removeprefix("torch."),
        "training": ensemble.training,
        "frozen": [name for name, parameter in ensemble.named_parameters() if not parameter.requires_grad],
        "calibration": [found.to_dict() for found in calibrations if found is not None],
    }


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a folder; an ensemble is stored as a folder with {CONFIG}.")
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    if pickles:
        raise StoreError(
            f"{folder} contains {pickles[0]}, which looks like a pickle. covey does not touch such folders."
        )
    path = folder / CONFIG
    if not path.exists():
        raise StoreError(f"{folder} has no {CONFIG}: it is no stored ensemble, or the file was lost.")
    regular(path)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is broken or cut short: {error}.") from error
    found = config.get("format") if isinstance(config, dict) else None
    if found not in (FIRST_FORMAT, FORMAT):
        writer = config.get("covey", "unknown") if isinstance(config, dict) else "unknown"
        raise StoreError(
            f"{path} has format {found!r} (written by covey {writer}); this covey reads formats "
            f"{FIRST_FORMAT} and {FORMAT}. Load it with the version that wrote it."
        )
    _check_keys(path, config)
    return config


def _check_keys(path: Path, config: dict[str, Any]) -> None:
    wanted = (*_KEYS, "extra" if config["format"] == FIRST_FORMAT else "layout")
    lacks = [key for key in wanted if key not in config]
    if lacks:
        raise StoreError(f"{path} lacks {lacks[0]!r}; it was changed after it was written.")
    file = config["file"]
    if config["memory_format"] not in _MEMORY_FORMATS or not _is_beside(file):
        raise StoreError(
            f"{path} names the memory format {config['memory_format']!r} and the file {file!r}; expected one "
            f"of {', '.join(_MEMORY_FORMATS)} and a file beside it."
        )
    if not (path.parent / file).exists():
        raise StoreError(
            f"{path.parent} lacks {file}, which {CONFIG} names; the folder was not copied whole."
        )
    if not isinstance(config["bodies"], list) or not config["bodies"]:
        raise StoreError(f"{path} names no networks; it was changed after it was written.")


def _is_beside(file: Any) -> bool:
    return isinstance(file, str) and file not in ("", ".", "..") and Path(file).name == file


def _networks(config: dict[str, Any], network: nn.Module | list[nn.Module] | None) -> list[nn.Module]:
    """The architectures, without memory: as given, or made by the zoo."""
    bodies = config["bodies"]
    if network is not None:
        given = [network] if isinstance(network, nn.Module) else network
        if not isinstance(given, list | tuple) or not all(isinstance(net, nn.Module) for net in given):
            raise StoreError(
                f"network is the architecture as a torch.nn.Module, or a list of them; got {network!r}."
            )
        if len(given) != len(bodies):
            raise StoreError(f"the stored ensemble has {len(bodies)} networks; got {len(given)}.")
        return [hollow(net) for net in given]
    made = []
    for body in bodies:
        if body["zoo"] is None:
            raise StoreError(
                "the stored network is not one of covey.zoo's, so give its architecture: "
                "covey.load(folder, network=...)."
            )
        with random_state_kept(), torch.device("meta"):
            made.append(zoo.create(body["zoo"]["name"], **body["zoo"]["arguments"]))
    return made


def _check_architecture(network: nn.Module, stored: dict[str, Any], folder: Path) -> None:
    given = listing(network)
    for name in [*stored, *given]:
        theirs, ours = (listed.get(name, [None])[0] for listed in (stored, given))
        if theirs != ours:
            raise StoreError(
                f"{folder} was stored for another architecture: {name!r} has shape {theirs or 'none (no such tensor)'} "
                f"there and {ours or 'none (no such tensor)'} in the network given."
            )


def _fill(ensemble: Ensemble, path: Path) -> None:
    """Put the stored tensors in, when it is sure that they fit."""
    _, tensors = read_tensors(path)
    expected = ensemble.state_dict()
    for name in [*expected, *tensors]:
        ours, theirs = (_described(store, name) for store in (expected, tensors))
        if ours != theirs:
            raise StoreError(f"{path} does not fit: {name!r} should be {ours} and is {theirs}.")
    ensemble.load_state_dict(tensors, assign=True)


def _described(tensors: Mapping[str, torch.Tensor], name: str) -> str:
    """A tensor's shape and whether it holds fractions; members may be stored in another precision."""
    if name not in tensors:
        return "no such tensor"
    tensor = tensors[name]
    kind = "floating point" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
    return f"{tuple(tensor.shape)} of {kind}"
