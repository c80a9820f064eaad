"""covey networks: what can be named with --network, and how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from tyro.conf import Positional

from covey import zoo
from covey.cli.flags import UsageError, parse_one
from covey.cli.settings import parse_options
from covey.scores.cost import multiply_adds
from covey.seeds import random_state_kept
from covey.tables import text_table
from covey.zoo import names
from covey.zoo.sizes import SIZES

_OWN = """
Wide ResNets of any depth D = 6 n + 4 and width K are there too: wrn-D-K. Other networks:

  timm:NAME             a network of the package timm, such as timm:resnet18; --network-option pretrained=true takes its
                        weights from the hub's cache
  hf:FOLDER_OR_NAME     a text or image classifier of transformers, from a local folder or the hub's cache
  FILE.py:FUNCTION      a function, or a class, of your own that returns a torch.nn.Module. Naming it runs the file.
                        It is called with those of these keywords that it takes: outputs (or classes, num_classes),
                        shape, features (or in_features), and for images channels (or in_chans) and image_size.

`covey networks NAME` builds one and says how large it is; with --shape and --outputs, for data of your own."""


@dataclass(frozen=True, kw_only=True)
class NetworksFlags:
    """List the networks, or build one and say how large it is.

    Args:
        name: whatever --network takes; the zoo is listed if not given.
        shape: of one sample: channels, height and width of an image, or the number of columns.
        outputs: numbers that it answers with, such as classes.
        network_option: options of the network, such as dropout=0.2.
    """

    name: Positional[str] = ""
    shape: tuple[int, ...] = ()
    outputs: int = 10
    network_option: tuple[str, ...] = ()


def networks(args: Sequence[str]) -> int:
    """List the networks with their sizes, or measure one: covey networks [NAME]"""
    about = "List the networks, or build one and say how large it is."
    own = parse_one("covey networks", NetworksFlags, args, about=about)
    if not own.name and own != NetworksFlags():
        raise UsageError(
            "--shape, --outputs and --network-option are for one network; name it: covey networks NAME"
        )
    if own.outputs < 1 or any(side < 1 for side in own.shape):
        raise UsageError("--shape and --outputs are whole numbers of at least 1.")
    print(_listed() if not own.name else _measured(own))
    return 0


def _listed() -> str:
    headings = ("network", "what", "sample", "parameters", "multiply-adds")
    rows = []
    for name, record in zoo.NETWORKS.items():
        size = SIZES[name]
        shape = " x ".join(map(str, record.shape))
        rows.append((name, record.description, shape, _short(size.parameters), _short(size.multiply_adds)))
    return text_table(headings, rows, right=("parameters", "multiply-adds")) + "\n" + _OWN


def _measured(own: NetworksFlags) -> str:
    """One network's size for samples of a shape."""
    tokens = False
    shape = own.shape or (3, 224, 224)
    lines = []
    if ":" not in own.name:
        record = zoo.find(own.name)
        tokens, shape = record.tokens, own.shape or record.shape
        lines = [f"what           {record.description}", f"options        {', '.join(record.options)}"]
    with random_state_kept(seed=0):
        network = names.build(
            own.name, shape=shape, outputs=own.outputs, options=parse_options(own.network_option)
        ).eval()
    example = torch.zeros(1, *shape, dtype=torch.long if tokens else torch.float32)
    parameters = sum(p.numel() for p in network.parameters())
    lines = [
        f"network        {own.name}",
        *lines,
        f"sample         {' x '.join(map(str, shape))}",
        f"outputs        {own.outputs}",
        f"parameters     {parameters:,}",
        f"multiply-adds  {_work(network, example, own):,} a sample",
    ]
    return "\n".join(lines)


def _work(network: nn.Module, example: Tensor, own: NetworksFlags) -> int:
    """Multiply-adds of a sample; a network that cannot take it is refused in the user's terms."""
    try:
        return multiply_adds(network, example)
    except Exception as error:  # another package's network, or the user's own, can fail in any way
        shape = " x ".join(map(str, example.shape[1:]))
        how = "another --shape" if own.shape else "--shape, such as --shape 1 28 28"
        said = " ".join(str(error).split())
        raise UsageError(f"{own.name} cannot take a sample of {shape} ({said}); give {how}.") from error


def _short(count: int) -> str:
    """A count in thousands, millions or billions: 11.7 M."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)
