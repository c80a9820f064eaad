"""Ensembles in folders: tensors as safetensors, everything else as JSON; no pickle, no code.

A folder holds `config.json` and the tensor file that it names. The tensor file is written first, under a name that
comes from its content; then config.json is replaced in one step. So a save that is killed leaves the old ensemble
whole, and one that ends leaves the new one.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from covey.calibration import Temperature, from_dict
from covey.ensemble import Ensemble, Method
from covey.errors import CoveyError, StoreError, suggest
from covey.files import draft, settle, write_text
from covey.networks.anatomy import Anatomy, listing

FORMAT = 1
CONFIG = "config.json"
_KEYS = (
    "method", "options", "bodies", "output", "task", "class_dim", "seed", "extra", "runs", "memory_format", "training",
    "calibration", "file", "sha256",
)  # fmt: skip
_MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib", ".ckpt")


def save(ensemble: Ensemble, folder: str | Path) -> None:
    """Write an ensemble to `folder`, atomically; what was there before stays whole until the new one is."""
    folder = Path(folder)
    config = _config(ensemble)
    tensors = {name: t.detach().contiguous() for name, t in ensemble.state_dict().items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with draft(folder) as path:
            save_file(tensors, path)
            digest = _digest(path)
            name = f"tensors-{digest[:16]}.safetensors"
            settle(path, folder / name)
        write_text(folder / CONFIG, json.dumps({**config, "file": name, "sha256": digest}, indent=1) + "\n")
        for old in folder.glob("tensors-*.safetensors"):
            if old.name != name:
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
    networks = _networks(config, network)
    for net, body in zip(networks, config["bodies"], strict=True):
        _check_architecture(net, body["tensors"], folder)
    method = _method(config)
    bodies = [
        Anatomy(
            network=net,
            head=tuple(body["head"]),
            stem=tuple(body["stem"]),
            state=frozenset(body["state"]),
            shared=frozenset(body["shared"]),
            extra=config["extra"],
            output=config["output"],
            given=body["tensors"],
            random=True,
        )
        for net, body in zip(networks, config["bodies"], strict=True)
    ]
    with torch.random.fork_rng(devices=[]):
        ensemble = method.build(bodies)
    ensemble.about.task, ensemble.about.class_dim = config["task"], config["class_dim"]
    ensemble.about.seed, ensemble.runs = config["seed"], dict(config["runs"])
    ensemble.memory_format = getattr(torch, config["memory_format"])
    _fill(ensemble, folder, config)
    _calibrate(ensemble, config["calibration"])
    return ensemble.train(config["training"])


def options(method: Method) -> dict[str, Any]:
    """A method's options as JSON holds them."""
    kept = {f.name for f in fields(method) if f.metadata.get("stored", True)}
    return {name: value for name, value in asdict(method).items() if name in kept}


def method_name(method: Method) -> str:
    """The name of a method in `covey.METHODS`."""
    from covey.methods import METHODS

    for name, kind in METHODS.items():
        if kind is type(method):
            return name
    raise StoreError(
        f"{type(method).__name__} is not in covey.METHODS; add it there so that it can be loaded again."
    )


def _config(ensemble: Ensemble) -> dict[str, Any]:
    from covey import __version__

    bodies = [
        {
            **record,
            "shared": list(buffers.shared.names),
            "state": sorted({*buffers.changing, *buffers.own.names}),
        }
        for record, buffers in zip(ensemble.records, ensemble.state, strict=True)
    ]
    return {
        "format": FORMAT,
        "covey": __version__,
        "method": method_name(ensemble.method),
        "options": options(ensemble.method),
        "bodies": bodies,
        "output": ensemble.about.output,
        "task": ensemble.about.task,
        "class_dim": ensemble.about.class_dim,
        "seed": ensemble.about.seed,
        "extra": ensemble.about.extra,
        "runs": ensemble.runs,
        "memory_format": str(ensemble.memory_format).removeprefix("torch."),
        "training": ensemble.training,
        "calibration": [c.to_dict() for c in (ensemble.temperature, ensemble.conformal) if c is not None],
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
    try:
        config = json.loads(path.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise StoreError(f"{path} is broken or cut short: {error}.") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        found = config.get("format") if isinstance(config, dict) else None
        raise StoreError(
            f"{path} has format {found!r} (written by covey {config.get('covey') if found else 'unknown'}); "
            f"this covey reads format {FORMAT}. Load it with the version that wrote it."
        )
    lacks = [key for key in _KEYS if key not in config]
    if lacks:
        raise StoreError(f"{path} lacks {lacks[0]!r}; it was changed after it was written.")
    if config["memory_format"] not in _MEMORY_FORMATS or Path(config["file"]).name != config["file"]:
        raise StoreError(
            f"{path} names the memory format {config['memory_format']!r} and the file {config['file']!r}; expected one "
            f"of {', '.join(_MEMORY_FORMATS)} and a file beside it."
        )
    return config


def _networks(config: dict[str, Any], network: nn.Module | list[nn.Module] | None) -> list[nn.Module]:
    if network is not None:
        given = [network] if isinstance(network, nn.Module) else list(network)
        if len(given) != len(config["bodies"]):
            raise StoreError(f"the stored ensemble has {len(config['bodies'])} networks; got {len(given)}.")
        return [copy.deepcopy(net) for net in given]
    made = []
    for body in config["bodies"]:
        if body["zoo"] is None:
            raise StoreError(
                "the stored network is not one of covey.zoo's, so give its architecture: "
                "covey.load(folder, network=...)."
            )
        from covey import zoo

        with torch.random.fork_rng(devices=[]):
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


def _method(config: dict[str, Any]) -> Method:
    from covey.methods import METHODS

    name = config["method"]
    if name not in METHODS:
        raise StoreError(f"the stored method {name!r} is not in covey.METHODS{suggest(name, METHODS)}.")
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in config["options"].items()}
    try:
        return METHODS[name](**given)
    except (TypeError, CoveyError) as error:
        raise StoreError(f"the options stored for {name!r} do not fit: {error}") from error


def _fill(ensemble: Ensemble, folder: Path, config: dict[str, Any]) -> None:
    path = folder / config["file"]
    if not path.exists():
        raise StoreError(
            f"{folder} lacks {path.name}, which {CONFIG} names; the folder was not copied whole."
        )
    if _digest(path) != config["sha256"]:
        raise StoreError(f"{path} is damaged or cut short: its checksum is not the one in {CONFIG}.")
    try:
        with safe_open(path, "pt") as file:
            # cloned, because memory that is aligned otherwise gives other last bits
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise StoreError(f"{path} cannot be read: {error}.") from error
    expected = ensemble.state_dict()
    for name in [*expected, *tensors]:
        shapes = [tuple(t[name].shape) if name in t else "no such tensor" for t in (expected, tensors)]
        if shapes[0] != shapes[1]:
            raise StoreError(f"{path} does not fit: {name!r} should be {shapes[0]} and is {shapes[1]}.")
    ensemble.load_state_dict(tensors, assign=True)


def _calibrate(ensemble: Ensemble, stored: list[dict[str, Any]]) -> None:
    for found in map(from_dict, stored):
        if isinstance(found, Temperature):
            ensemble.temperature = found
        else:
            ensemble.conformal = found


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
