"""Ensembles in folders: tensors as safetensors, everything else as JSON; no pickle, no code.

A folder holds `config.json` and the tensor file that it names. The tensor file is written first, under a name that
comes from its content; then config.json is replaced in one step. So a save that is killed leaves the old ensemble
whole, and one that ends leaves the new one.

Loading decides nothing: config.json holds the method's layout, and the ensemble is built from it without memory (on the
meta device) before the stored tensors are put in.

Where the network that an ensemble was made from is kept elsewhere, `save(..., base=network)` leaves out the tensors
that both have in common and stores their checksum.

Loading is reading from a stranger: config.json is compared with a schema, then the tensor file's header with what
config.json says of it, then the ensemble without memory with that header. Only then is memory asked for.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covey import bases, registry, tensor_files
from covey import calibration as calibrations
from covey import layout as layouts
from covey.calibration import Temperature, from_dict
from covey.ensemble import Ensemble
from covey.errors import CoveyError, OptionError, StoreError
from covey.files import write_text
from covey.layout import Layout
from covey.losses import loss_of
from covey.networks.anatomy import Anatomy, listing, recalled
from covey.networks.constants import first_other
from covey.networks.copies import hollow
from covey.schema import (
    LARGEST,
    Either,
    Many,
    Maybe,
    Named,
    Number,
    Record,
    Spec,
    Truth,
    Whole,
    Word,
    check,
    read_json,
)
from covey.seeds import random_state_kept
from covey.tensor_files import Header, digest, read_header, read_tensors, write_tensors
from covey.trial import Bounded, check_fits, check_members
from covey.version import __version__
from covey.ways import WAYS
from covey.zoo import names

FORMAT = 2
FIRST_FORMAT = 1  # had no layout; it is worked out from what it had
CONFIG = "config.json"
MOST_MEMBERS = 1 << 16
_MEMORY_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
_RUN = Word(("auto", *WAYS))
_SIZES = Many(Many(Whole(), most=3))
_LISTING = Named(Many(Either((Word(), Many(Whole()))), least=2, most=2))  # name -> [shape, dtype]
_ARGUMENT = Maybe(Either((Truth(), Word(), Number(0, 1 << 28), Many(Number(0, 1 << 28), most=4096))))
_BODY = Record(
    {
        "tensors": _LISTING,
        "ties": Named(Word()),
        "head": Many(Word()),
        "stem": Many(Word()),
        "state": Many(Word()),
        "zoo": Maybe(Record({"name": Word(), "arguments": Named(_ARGUMENT)})),
    },
    optional={
        "writes_inputs": Maybe(Truth()),
        "rewrites": Many(Word()),
        "differentiated": Many(Word()),
        "own_generator": Truth(),
        "constants": Named(Many(Number(), most=8)),
    },
)
_COMMON: dict[str, Spec] = {
    "method": Word(),
    "options": Record(optional={"members": Whole(1, MOST_MEMBERS)}),
    "bodies": Many(_BODY, least=1, most=MOST_MEMBERS),
    "output": Maybe(Either((Word(), Whole(-64, 64)))),
    "task": Word(),  # `loss_of` knows them all
    "class_dim": Maybe(Whole(-64, 64)),
    "seed": Whole(-LARGEST),
    "runs": Record({"train": _RUN, "eval": _RUN}),
    "memory_format": Word(_MEMORY_FORMATS),
    "training": Truth(),
    "calibration": Many(calibrations.SPEC, most=2),
    "file": Word(),
    "sha256": Word(),
}
_SPECS = {
    FIRST_FORMAT: Record(
        {**_COMMON, "bodies": Many(Record({**_BODY.keys, "shared": Many(Word())}), least=1), "extra": Named()}
    ),
    FORMAT: Record(
        {**_COMMON, "layout": layouts.SPEC},
        optional={
            "base": bases.SPEC,
            "frozen": Many(Word()),
            "tensors": _LISTING,
            "measured": Record(optional={"train": _SIZES, "eval": _SIZES}),
        },
    ),
}
"""What config.json looks like in each format."""

_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".joblib", ".ckpt")


def save(ensemble: Ensemble, folder: str | Path, *, base: nn.Module | None = None) -> None:
    """Write an ensemble to `folder`, atomically; what was there before stays whole until the new one is.

    Args:
        ensemble: what to write. Its method must be registered, so that it can be loaded again.
        folder: is made if it is not there.
        base: the network that it was made from, if that is kept elsewhere: only what the ensemble adds is written,
            with the checksum of the tensors that both have in common, and `load` must be given that network.
    """
    folder = Path(folder)
    config = _config(ensemble)
    tensors = ensemble.state_dict()
    if base is not None:
        if not isinstance(base, nn.Module):
            raise OptionError(
                f"base is the network that the ensemble was made from; got {type(base).__name__}."
            )
        config["base"] = bases.described(tensors, base)
        tensors = {name: tensor for name, tensor in tensors.items() if name not in config["base"]["tensors"]}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = write_tensors(folder, "tensors", tensors)
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
        network: the architecture, or a list of them where members differ; not needed for networks of `covey.zoo`.
            Its weights matter only where the ensemble was saved without them (`save(..., base=network)`).
    """
    folder = Path(folder)
    config = _read_config(folder)
    path = folder / config["file"]
    header = read_header(path)
    _check_header(path, header, config)
    with _explained(folder / CONFIG):
        networks = _networks(config, network)
        for net, body in zip(networks, config["bodies"], strict=True):
            _check_architecture(net, body["tensors"], folder)
            _check_constants(net, body.get("constants", {}), folder)
        with Bounded(20_000 + 1_000 * len(header.tensors)):
            ensemble = _built(config, networks, header)
    taken = _from_base(config, network, folder)
    check_fits(ensemble, {**header.tensors, **tensor_files.listing(taken)}, path)
    with _explained(folder / CONFIG):
        check_members(ensemble)
    _, tensors = read_tensors(path)
    ensemble.load_state_dict({**tensors, **taken}, assign=True)
    frozen = config.get("frozen")  # the first format did not say
    if frozen is not None:
        for name, parameter in ensemble.named_parameters():
            parameter.requires_grad_(name not in frozen)
    return ensemble.train(config["training"])


def needs_network(folder: str | Path) -> bool:
    """Whether `load` takes the architecture of a stored ensemble from its caller."""
    return any(body["zoo"] is None for body in _read_config(Path(folder))["bodies"])


def _from_base(config: Mapping[str, Any], network: Any, folder: Path) -> dict[str, Tensor]:
    """The tensors that were left out because the base network has them."""
    if "base" not in config:
        return {}
    if isinstance(network, list | tuple):
        (network,) = network if len(network) == 1 else (None,)
    return bases.borrowed(config["base"], network, folder)


def _built(config: Mapping[str, Any], networks: list[nn.Module], header: Header) -> Ensemble:
    """The ensemble that config.json describes, without memory."""
    method = registry.revived(config["method"], config["options"])
    records = config["bodies"]
    bodies = [recalled(net, body, config["output"]) for net, body in zip(networks, records, strict=True)]
    layout = _layout(config, method, bodies, header)
    with random_state_kept():
        ensemble = method.build(bodies, layout)
    loss_of(config["task"])
    ensemble.task, ensemble.class_dim = config["task"], config["class_dim"]
    ensemble.seed, ensemble.runs = config["seed"], dict(config["runs"])
    ensemble.measured = dict(config.get("measured", {}))
    ensemble.memory_format = getattr(torch, config["memory_format"])
    for found in map(from_dict, config["calibration"]):
        if isinstance(found, Temperature):
            ensemble.temperature = found
        else:
            ensemble.conformal = found
    return ensemble


def _layout(config: Mapping[str, Any], method: Any, bodies: list[Anatomy], header: Header) -> Layout:
    if config["format"] == FORMAT:
        return Layout.from_dict(config["layout"])
    shared = tuple(tuple(body["shared"]) for body in config["bodies"])
    layout = method.recall(bodies, config["extra"], header.shapes)
    return Layout(shared, layout.tensors, layout.notes, layout.facts)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Whatever goes wrong while an ensemble is built from a file's words is laid to the file.

    A schema cannot know all that a method wants of its own options and layout, and a method may be somebody else's.
    """
    try:
        yield
    except StoreError:
        raise
    except CoveyError as error:
        raise StoreError(f"{path} does not describe an ensemble: {error}") from error
    except Exception as error:
        raise StoreError(
            f"{path} does not describe an ensemble that can be built: {type(error).__name__}: {error}. It was changed "
            "after it was written, or the method's code is another one."
        ) from error


def _config(ensemble: Ensemble) -> dict[str, Any]:
    fitted = (ensemble.temperature, ensemble.conformal)
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
        "measured": ensemble.measured,
        "memory_format": str(ensemble.memory_format).removeprefix("torch."),
        "training": ensemble.training,
        "tensors": tensor_files.listing(ensemble.state_dict()),
        "frozen": [name for name, parameter in ensemble.named_parameters() if not parameter.requires_grad],
        "calibration": [found.to_dict() for found in fitted if found is not None],
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
    config = read_json(path)
    found = config.get("format") if isinstance(config, dict) else None
    if not isinstance(found, int) or found not in _SPECS:
        writer = config.get("covey", "unknown") if isinstance(config, dict) else "unknown"
        raise StoreError(
            f"{path} has format {found!r} (written by covey {writer}); this covey reads formats "
            f"{FIRST_FORMAT} and {FORMAT}. Load it with the version that wrote it."
        )
    check(config, _SPECS[found], path)
    file = config["file"]
    if not file.endswith(".safetensors") or Path(file).name != file or "\0" in file:
        raise StoreError(f"{path} names the file {file!r}; expected a .safetensors file beside it.")
    if not os.path.lexists(folder / file):
        raise StoreError(f"{folder} lacks {file}, which {CONFIG} names; the folder was not copied whole.")
    return config


def _check_header(path: Path, header: Header, config: Mapping[str, Any]) -> None:
    """Refuse a tensor file that is not the one that config.json speaks of."""
    listed = config.get("tensors")  # the first format did not say
    if listed is None:
        return
    elsewhere = config.get("base", {"tensors": {}})["tensors"]
    listed = {name: entry for name, entry in listed.items() if name not in elsewhere}
    for name in [*listed, *header.tensors]:
        if listed.get(name) != header.tensors.get(name):
            raise StoreError(
                f"{path} does not fit: {name!r} should be {_shown(listed.get(name))} and is "
                f"{_shown(header.tensors.get(name))}."
            )


def _shown(entry: list | None) -> str:
    return "no such tensor" if entry is None else f"{tuple(entry[0])} of {entry[1]}"


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
                "the stored network is none that covey knows by name, so give its architecture: "
                "covey.load(folder, network=...)."
            )
        made.append(_remade(body))
    return made


def _remade(body: Mapping[str, Any]) -> nn.Module:
    """The architecture that the zoo, or the package that a stored name begins with, makes again; without memory."""
    if not names.is_packaged(body["zoo"]["name"]):
        with random_state_kept(), Bounded(500 + 50 * len(body["tensors"])), torch.device("meta"):
            return names.rebuild(body["zoo"])
    # Other packages keep tensors that are no buffers, or compute with numbers out of tensors; neither can be done
    # without memory. So they get some, but not more than the stored tensors would take.
    stored = sum(math.prod(shape) for shape, _ in body["tensors"].values())
    bound = Bounded(20_000 + 200 * len(body["tensors"]), elements=1_000_000 + 4 * stored)
    with random_state_kept(), bound:
        network = names.rebuild(body["zoo"])
    return hollow(network)


def _check_architecture(network: nn.Module, stored: dict[str, Any], folder: Path) -> None:
    given = listing(network)
    for name in [*stored, *given]:
        theirs, ours = (listed.get(name, [None])[0] for listed in (stored, given))
        if theirs != ours:
            raise StoreError(
                f"{folder} was stored for another architecture: {name!r} has shape {theirs or 'none (no such tensor)'} "
                f"there and {ours or 'none (no such tensor)'} in the network given."
            )


def _check_constants(network: nn.Module, stored: Mapping[str, Any], folder: Path) -> None:
    """Refuse a network with other constants than the stored one's, which are no parameters and no buffers."""
    path = first_other(stored, network)
    if path is not None:
        raise StoreError(
            f"{folder} was stored with another tensor in {path!r} than the network given has there. It is neither a "
            "parameter nor a buffer, so it was not stored: give a network with the same values, or make it a buffer "
            "(register_buffer) before converting."
        )
