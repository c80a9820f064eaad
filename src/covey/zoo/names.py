"""From what `--network` says to a network: the zoo's names, timm's, Hugging Face's, and a function of one's own.

    wrn-28-10            covey's zoo
    timm:resnet18        the package timm
    hf:my-bert           transformers: a local folder, or a name whose files are in the hub's cache
    nets.py:make         the function make of the file nets.py, which is run

Whatever the name, the network is made for the data: as many outputs as they need, as many channels as they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from covey.errors import OptionError
from covey.zoo import create, find, from_file, from_hf, from_timm

HOW = (
    "a name of the zoo (`covey networks`), timm:NAME, hf:FOLDER_OR_NAME, or FILE.py:FUNCTION of your own that "
    "returns a torch.nn.Module"
)
"""How a network is named, in words."""


def build(
    name: str,
    *,
    shape: Sequence[int],
    outputs: int,
    options: Mapping[str, Any],
    tokens: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The network of this name, made for the data and initialised from torch's global random state.

    Args:
        name: see above. Building `FILE.py:FUNCTION` runs the file.
        shape: of one sample, without the batch axis.
        outputs: numbers that the network answers with.
        options: keywords of the network's own.
        tokens: for samples that a tokenizer made: "pad", the number of the padding token, and "vocabulary", how
            many tokens there are.
    """
    if from_file.is_code(name):
        return from_file.build(name, shape=shape, outputs=outputs, options=options)
    source, colon, rest = name.partition(":")
    if tokens is not None and source != "hf":
        raise OptionError(
            f"a text that was cut into tokens needs a network of Hugging Face (hf:NAME) or of your own "
            f"(FILE.py:FUNCTION); got {name!r}."
        )
    if not colon:
        arguments = {"classes": outputs, **find(name).arguments_for(shape), **options}
        return create(name, **arguments)
    if source == "timm":
        return from_timm.build(rest, shape=shape, outputs=outputs, options=options)
    if source == "hf":
        return from_hf.build(rest, shape=shape, outputs=outputs, options=options, tokens=tokens)
    raise OptionError(f"there is no network {name!r}: a network is {HOW}.")


def rebuild(record: Mapping[str, Any]) -> nn.Module:
    """The architecture that a stored record names (`network.covey_zoo`).

    Reads no file and asks no server: the record may come from a stranger.
    """
    name, arguments = record["name"], record["arguments"]
    source, colon, rest = name.partition(":")
    if not colon:
        return create(name, **arguments)
    if source == "timm":
        return from_timm.rebuild(rest, arguments)
    if source == "hf":
        return from_hf.rebuild(rest, arguments)
    raise OptionError(f"there is no network {name!r}.")


def is_packaged(name: str) -> bool:
    """Whether a stored name is that of another package's network, whose code may not build without memory."""
    return name.partition(":")[0] in ("timm", "hf")


def split(name: str) -> list[str]:
    """The networks that a name with a plus between them stands for."""
    if from_file.is_code(name) and from_file.path_of(name).exists():
        return [name]  # a file whose name has a plus in it
    return name.split("+")
