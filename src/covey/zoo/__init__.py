"""Plain networks by name, with the published parameter counts. They name no ensemble method.

>>> network = create("wrn-28-2", classes=10)
>>> sum(p.numel() for p in network.parameters())
1467610
>>> network.covey_zoo
{'name': 'wrn-28-2', 'arguments': {'classes': 10, 'channels': 3, 'dropout': 0.0}}
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import nn

from covey.errors import OptionError, suggest
from covey.zoo.convnet import ConvNet
from covey.zoo.densenet import DenseNet
from covey.zoo.lstm import LSTM
from covey.zoo.mlp import MLP
from covey.zoo.mobilenet import MobileNetV2
from covey.zoo.numbers import PiecewiseLinear, quantile_edges
from covey.zoo.pyramidnet import PyramidNet
from covey.zoo.resnet import ResNet
from covey.zoo.unet import UNet
from covey.zoo.vit import ViT
from covey.zoo.wideresnet import WideResNet

__all__ = [
    "LSTM",
    "MLP",
    "NETWORKS",
    "ConvNet",
    "DenseNet",
    "MobileNetV2",
    "Network",
    "PiecewiseLinear",
    "PyramidNet",
    "ResNet",
    "UNet",
    "ViT",
    "WideResNet",
    "create",
    "find",
    "quantile_edges",
]

Option: TypeAlias = int | float | bool | str | Sequence[int] | None


@dataclass(frozen=True)
class Network:
    """What a name stands for.

    Args:
        factory: the class of the network; its keywords are the options.
        fixed: the options that the name fixes.
        description: one line.
        shape: of one sample, without the batch axis, unless asked otherwise.
        tokens: whether samples are whole numbers (characters) and not floats.
    """

    factory: Callable[..., nn.Module]
    fixed: Mapping[str, Option]
    description: str
    shape: tuple[int, ...]
    tokens: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options that `create` takes."""
        return tuple(name for name in inspect.signature(self.factory).parameters if name not in self.fixed)

    def arguments_for(self, shape: Sequence[int]) -> dict[str, int]:
        """The options that make the network fit samples of `shape`: channels and image size, or features.

        >>> NETWORKS["convnet"].arguments_for((1, 28, 28))
        {'channels': 1, 'image_size': 28}
        """
        if "features" in self.options:
            return {"features": math.prod(shape)}
        if "channels" not in self.options:
            return {}
        if len(shape) != 3:
            raise OptionError(
                f"this network takes images (channels, height, width), got {tuple(shape)}; mlp takes any samples"
            )
        channels, height, width = shape
        if "image_size" not in self.options:
            return {"channels": channels}
        if height != width:
            raise OptionError(
                f"this network takes square images, got height {height} and width {width}; image_size={height} makes "
                "the images of a folder square"
            )
        return {"channels": channels, "image_size": height}


_CIFAR = (3, 32, 32)
_IMAGENET = (3, 224, 224)


NETWORKS: dict[str, Network] = {
    "mlp": Network(MLP, {}, "Multilayer perceptron, two layers of 200 units", (784,)),
    "convnet": Network(ConvNet, {}, "LeNet-5 with ReLU and BatchNorm", _CIFAR),
    "lstm": Network(LSTM, {}, "LSTM language model of 500 units", (100,), tokens=True),
    "unet": Network(UNet, {}, "U-Net of any width, a class for each pixel", _CIFAR),
    "resnet-18": Network(ResNet, {"depth": 18, "stem": "imagenet"}, "ResNet-18", _IMAGENET),
    "resnet-34": Network(ResNet, {"depth": 34, "stem": "imagenet"}, "ResNet-34", _IMAGENET),
    "resnet-50": Network(ResNet, {"depth": 50, "stem": "imagenet"}, "ResNet-50", _IMAGENET),
    "resnet-101": Network(ResNet, {"depth": 101, "stem": "imagenet"}, "ResNet-101", _IMAGENET),
    "resnet-152": Network(ResNet, {"depth": 152, "stem": "imagenet"}, "ResNet-152", _IMAGENET),
    "cifar-resnet-18": Network(ResNet, {"depth": 18, "stem": "cifar"}, "ResNet-18 with 3x3 stem", _CIFAR),
    "cifar-resnet-34": Network(ResNet, {"depth": 34, "stem": "cifar"}, "ResNet-34 with 3x3 stem", _CIFAR),
    "cifar-resnet-50": Network(ResNet, {"depth": 50, "stem": "cifar"}, "ResNet-50 with 3x3 stem", _CIFAR),
    "cifar-resnet-101": Network(ResNet, {"depth": 101, "stem": "cifar"}, "ResNet-101 with 3x3 stem", _CIFAR),
    "cifar-resnet-152": Network(ResNet, {"depth": 152, "stem": "cifar"}, "ResNet-152 with 3x3 stem", _CIFAR),
    "resnext-50": Network(
        ResNet,
        {"depth": 50, "stem": "imagenet", "groups": 32, "group_width": 4},
        "ResNeXt-50 32x4d",
        _IMAGENET,
    ),
    "cifar-resnext-50": Network(
        ResNet,
        {"depth": 50, "stem": "cifar", "groups": 32, "group_width": 4},
        "ResNeXt-50 with 3x3 stem",
        _CIFAR,
    ),
    "wrn-50-2": Network(
        ResNet, {"depth": 50, "stem": "imagenet", "group_width": 128}, "ResNet-50, bottlenecks x 2", _IMAGENET
    ),
    "wrn-10-4": Network(WideResNet, {"depth": 10, "width": 4}, "Wide ResNet 10-4", _CIFAR),
    "wrn-16-4": Network(WideResNet, {"depth": 16, "width": 4}, "Wide ResNet 16-4", _CIFAR),
    "wrn-16-7": Network(WideResNet, {"depth": 16, "width": 7}, "Wide ResNet 16-7", _CIFAR),
    "wrn-28-2": Network(WideResNet, {"depth": 28, "width": 2}, "Wide ResNet 28-2", _CIFAR),
    "wrn-28-3": Network(WideResNet, {"depth": 28, "width": 3}, "Wide ResNet 28-3", _CIFAR),
    "wrn-28-4": Network(WideResNet, {"depth": 28, "width": 4}, "Wide ResNet 28-4", _CIFAR),
    "wrn-28-5": Network(WideResNet, {"depth": 28, "width": 5}, "Wide ResNet 28-5", _CIFAR),
    "wrn-28-7": Network(WideResNet, {"depth": 28, "width": 7}, "Wide ResNet 28-7", _CIFAR),
    "wrn-28-8": Network(WideResNet, {"depth": 28, "width": 8}, "Wide ResNet 28-8", _CIFAR),
    "wrn-28-10": Network(WideResNet, {"depth": 28, "width": 10}, "Wide ResNet 28-10", _CIFAR),
    "wrn-28-12": Network(WideResNet, {"depth": 28, "width": 12}, "Wide ResNet 28-12", _CIFAR),
    "wrn-28-14": Network(WideResNet, {"depth": 28, "width": 14}, "Wide ResNet 28-14", _CIFAR),
    "wrn-28-18": Network(WideResNet, {"depth": 28, "width": 18}, "Wide ResNet 28-18", _CIFAR),
    "wrn-34-8": Network(WideResNet, {"depth": 34, "width": 8}, "Wide ResNet 34-8", _CIFAR),
    "mobilenet-v2": Network(MobileNetV2, {"stem": "imagenet"}, "MobileNetV2", _IMAGENET),
    "cifar-mobilenet-v2": Network(MobileNetV2, {"stem": "cifar"}, "MobileNetV2, two strides less", _CIFAR),
    "densenet-121": Network(DenseNet, {"depth": 121, "stem": "imagenet"}, "DenseNet-121", _IMAGENET),
    "densenet-161": Network(DenseNet, {"depth": 161, "stem": "imagenet"}, "DenseNet-161", _IMAGENET),
    "cifar-densenet-121": Network(
        DenseNet, {"depth": 121, "stem": "cifar"}, "DenseNet-121 with 3x3 stem", _CIFAR
    ),
    "cifar-densenet-161": Network(
        DenseNet, {"depth": 161, "stem": "cifar"}, "DenseNet-161 with 3x3 stem", _CIFAR
    ),
    "pyramidnet": Network(PyramidNet, {}, "PyramidNet with ShakeDrop, of any depth and alpha", _CIFAR),
    "pyramidnet-110-270": Network(
        PyramidNet, {"depth": 110, "alpha": 270, "bottleneck": False}, "PyramidNet-110, alpha 270", _CIFAR
    ),
    "pyramidnet-272-200": Network(
        PyramidNet, {"depth": 272, "alpha": 200, "bottleneck": True}, "PyramidNet-272, alpha 200", _CIFAR
    ),
    "vit": Network(ViT, {}, "Vision transformer of any patch, width, depth and heads", _CIFAR),
    "vit-tiny-4": Network(
        ViT, {"patch": 4, "width": 192, "depth": 12, "heads": 3}, "ViT-Ti, patches of 4 x 4", _CIFAR
    ),
    "vit-small-4": Network(
        ViT, {"patch": 4, "width": 384, "depth": 12, "heads": 6}, "ViT-S, patches of 4 x 4", _CIFAR
    ),
    "vit-tiny-16": Network(
        ViT, {"patch": 16, "width": 192, "depth": 12, "heads": 3}, "ViT-Ti, patches of 16 x 16", _IMAGENET
    ),
    "vit-small-16": Network(
        ViT, {"patch": 16, "width": 384, "depth": 12, "heads": 6}, "ViT-S, patches of 16 x 16", _IMAGENET
    ),
    "vit-base-16": Network(
        ViT, {"patch": 16, "width": 768, "depth": 12, "heads": 12}, "ViT-B, patches of 16 x 16", _IMAGENET
    ),
}


def find(name: str) -> Network:
    """The record of a network's name: an entry of `NETWORKS`, or any "wrn-D-K"."""
    if name in NETWORKS:
        return NETWORKS[name]
    wide = re.fullmatch(r"wrn-(\d{1,4})-(\d{1,4})", name)
    if wide:
        depth, width = map(int, wide.groups())
        return Network(WideResNet, {"depth": depth, "width": width}, f"Wide ResNet {depth}-{width}", _CIFAR)
    raise OptionError(
        f"there is no network {name!r}{suggest(name, NETWORKS)}; `covey networks` "
        "lists all, besides any 'wrn-D-K', and says how to name one of your own"
    )


def create(name: str, *, classes: int, channels: int | None = None, **options: Option) -> nn.Module:
    """Build a network by name, freshly initialised from torch's global random state.

    Args:
        name: a key of `NETWORKS`, or "wrn-D-K" for any depth D = 6 n + 4 and width K.
        classes: outputs.
        channels: of images; None is 3. Networks that don't take images take no channels.
        options: further keywords of the network's class, such as `image_size`, `hidden` or `dropout`, checked
            against its signature.

    The network carries `covey_zoo`, a dict of its name and JSON-able arguments, so that
    `create(zoo["name"], **zoo["arguments"])` builds the same architecture again.
    """
    network = find(name)
    given: dict[str, Option] = {"classes": classes, **options}
    if channels is not None:
        given["channels"] = channels
    _check_options(name, network, given)
    bound = inspect.signature(network.factory).bind(
        **{**network.fixed, **network.arguments_for(network.shape), **given}
    )
    bound.apply_defaults()
    built = network.factory(**bound.arguments)
    arguments = {
        key: list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        for key, value in bound.arguments.items()
        if key not in network.fixed
    }
    # a plain attribute: nn.Module's own __setattr__ is typed for tensors and modules only
    object.__setattr__(built, "covey_zoo", {"name": name, "arguments": arguments})
    return built


def _check_options(name: str, network: Network, given: Iterable[str]) -> None:
    for key in given:
        if key in network.fixed:
            raise OptionError(f"{name!r} has {key} = {network.fixed[key]!r} by its name; leave {key} out")
        if key not in network.options:
            known = ", ".join(network.options)
            raise OptionError(
                f"{name!r} has no option {key!r}{suggest(key, network.options)}; it takes {known}"
            )
