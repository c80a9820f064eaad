"""Networks of the package timm, for the data at hand."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from covey.errors import OptionError, suggest
from covey.extras import load
from covey.zoo.cache import cached_weights


def build(name: str, *, shape: Sequence[int], outputs: int, options: Mapping[str, Any]) -> nn.Module:
    """A network of timm with so many outputs, for images of this shape.

    Args:
        name: of timm, with or without the tag of its weights: "resnet18", "resnet18.a1_in1k".
        shape: of one image, (channels, height, width).
        outputs: numbers that the network answers with.
        options: timm's own keywords, and `pretrained=True` for the weights in the hub's cache.
    """
    timm = _timm(name)
    if len(shape) != 3:
        raise OptionError(
            f"timm's networks take images (channels, height, width); the data have {_shown(shape)}."
        )
    given = dict(options)
    pretrained = bool(given.pop("pretrained", False))
    channels = given.pop("in_chans", shape[0])
    sizes = {}
    facts = timm.models.get_pretrained_cfg(name)
    if facts is not None and facts.fixed_input_size and "img_size" not in given:
        sizes["img_size"] = list(shape[1:])
    arguments = {"num_classes": outputs, "in_chans": channels, **sizes, **given}
    _check_options(timm, name, arguments)
    if not pretrained:
        return _made(timm, name, arguments)
    if facts is None or not facts.hf_hub_id:
        raise OptionError(
            f"timm has no weights of {name!r} on the hub; give a .safetensors file with --weights instead."
        )
    file = cached_weights(facts.hf_hub_id, ("model.safetensors",))
    return _made(timm, name, arguments, pretrained=True, pretrained_cfg_overlay={"file": str(file)})


def normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and deviation of intensities from 0 to 1 that a network's weights were trained with; None if timm has none.

    Args:
        name: as in `build`.
    """
    facts = _timm(name).models.get_pretrained_cfg(name)
    return None if facts is None else (tuple(facts.mean), tuple(facts.std))


def rebuild(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The architecture that `build` made, from its stored arguments."""
    timm = _timm(name)
    _check_options(timm, name, arguments)
    return _made(timm, name, arguments)


def _made(timm: Any, name: str, arguments: Mapping[str, Any], **weights: Any) -> nn.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecations inside timm are no affair of the user's
            network = timm.create_model(name, **arguments, **weights)
    except (TypeError, ValueError, AssertionError, RuntimeError, KeyError) as error:
        given = ", ".join(f"{key}={value}" for key, value in arguments.items())
        raise OptionError(
            f"timm does not make {name!r} with {given}: {type(error).__name__}: {error}"
        ) from error
    object.__setattr__(network, "covey_zoo", {"name": f"timm:{name}", "arguments": dict(arguments)})
    return network


def _timm(name: str) -> Any:
    """The package, if it knows a network of this name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own
        timm = load("timm")
    # Anything else than a plain name would be looked for on the hub or in a folder.
    if not timm.is_model(name) or ":" in name or "/" in name:
        raise OptionError(f"timm has no network {name!r}{suggest(name, timm.list_models())}.")
    return timm


def _check_options(timm: Any, name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse the keywords by which timm reads files."""
    taken = set(inspect.signature(timm.create_model).parameters)
    for key in arguments:
        if key in taken or key.startswith("pretrained"):
            raise OptionError(
                f"{key} is no option of timm's network {name!r} that covey passes on; leave it out."
            )


def _shown(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
