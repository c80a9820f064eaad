"""How many parameters a packed member should have, from the network alone."""

from __future__ import annotations

import math

from catalogue import Network
from torch import Tensor, nn

from covey.networks.anatomy import Anatomy, examine
from covey.networks.calls import arguments, pick

_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.LSTM,
    nn.GRU,
    nn.RNN,
    nn.LSTMCell,
    nn.GRUCell,
    nn.RNNCell,
    nn.MultiheadAttention,
)


_RECURRENT = (nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell)


def expected_size(network: Network, member: nn.Module, ratio: float) -> float:
    """Parameters of the network at `ratio` of its hidden widths, none rounded.

    Of the weights of torch's layers both axes are widths, but for the inputs of layers that see the network's input,
    the outputs of the head, and what the catalogue says. Of other parameters, and of those that the network does not
    use, the axes that were narrowed count as widths.
    """
    plain = network.make()
    body = examine(plain, example=network.example(), output=network.output)
    narrow = dict(member.named_parameters())
    known, used = dict(network.narrow), _used(network)
    total = 0.0
    for name, tensor in plain.named_parameters():
        layer = plain.get_submodule(name.rpartition(".")[0])
        if name in known:
            total += math.prod(known[name])
        elif name in used and _has_width_axes(layer, tensor):
            total += _as_a_layer(network, body, name, tensor, narrow[name], layer, ratio)
        else:
            total += _as_made(tensor, narrow[name], ratio)
    return total


def _used(network: Network) -> set[str]:
    """Names of the parameters that the network's answer depends on."""
    plain = network.make()
    for parameter in plain.parameters():
        parameter.requires_grad_(parameter.is_floating_point() or parameter.is_complex())
    args, kwargs = arguments(network.example())
    pick(plain(*args, **kwargs), network.output).sum().backward()
    return {name for name, parameter in plain.named_parameters() if parameter.grad is not None}


def _has_width_axes(layer: nn.Module, tensor: Tensor) -> bool:
    return isinstance(layer, _LAYERS) and tensor.ndim > 1 and getattr(layer, "groups", 1) == 1


def _as_a_layer(
    network: Network,
    body: Anatomy,
    name: str,
    tensor: Tensor,
    narrow: Tensor,
    layer: nn.Module,
    ratio: float,
) -> float:
    transposed = isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d)
    outputs, inputs = (1, 0) if transposed else (0, 1)
    sees_input = name in body.stem and not (isinstance(layer, _RECURRENT) and "weight_hh" in name)
    # the first layer may come behind constants that have widths themselves, such as random features
    sees_input = sees_input and narrow.shape[inputs] == tensor.shape[inputs]
    size = float(tensor.numel())
    if name not in body.head and tensor.shape[outputs] not in network.unscaled:
        size *= ratio
    if not sees_input and tensor.shape[inputs] not in network.unscaled:
        size *= ratio
    return size


def _as_made(tensor: Tensor, narrow: Tensor, ratio: float) -> float:
    size = 1.0
    for old, new in zip(tensor.shape, narrow.shape, strict=True):
        size *= old * ratio if new < old else old
    return size
