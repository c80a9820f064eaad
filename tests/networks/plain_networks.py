"""Plain networks as people write them: one function each, and torchvision's classes in small versions.

The name of the function is the name of the network, with spaces for underscores.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from catalogue import BATCH, CLASSES, Kind, Network, images, importable, sequences, tokens, vectors
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

_FOUND: list[Network] = []


def listed(
    into: list[Network], kind: Kind, inputs: Callable[[], Any], output: str | int | None = None, **facts: Any
) -> Any:
    """Put a function that builds a network into a list."""

    def take(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        name = build.__name__.replace("_", " ")
        into.append(Network(name, kind, "torch", build, inputs, output, **facts))
        return build

    return take


plain = functools.partial(listed, _FOUND)


def module(forward: Callable[..., Any], **parts: Any) -> Any:
    """A network of a class of its own with these parts, whose forward pass is this function."""
    kind = type("Network", (nn.Module,), {"forward": forward})
    net = kind()
    for name, part in parts.items():
        setattr(net, name, part)
    return net


# --- multi-layer perceptrons ------------------------------------------------------------------------------


@plain("mlp", vectors(8))
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def mlp_with_norms_and_dropout() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs in (8, 16):
        layers += [nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def logistic_regression() -> nn.Module:
    return nn.Linear(8, CLASSES)


@plain("mlp", vectors(8))
def residual_mlp() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        for block in net.blocks:
            h = h + block(h)
        return net.head(net.norm(h))

    def block() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    parts = dict(
        first=nn.Linear(8, 16), blocks=nn.ModuleList(block() for _ in range(2)), norm=nn.LayerNorm(16)
    )
    return module(forward, **parts, head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def autoencoder() -> nn.Module:
    encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    return nn.Sequential(encoder, nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8)))


class _Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.mean, self.log_variance = nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x).relu()
        mean, log_variance = self.mean(h), self.log_variance(h)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp() if self.training else mean
        return self.decoder(z), mean, log_variance


@plain("mlp", vectors(8), output=0)
def variational_autoencoder() -> nn.Module:
    return _Variational()


@plain("mlp", lambda: (torch.randn(BATCH, 8), torch.randn(BATCH, 8)))
def siamese() -> nn.Module:
    def forward(net: Any, a: Tensor, b: Tensor) -> Tensor:
        left, right = net.body(a), net.body(b)
        return net.head(torch.cat([left, right, (left - right).abs()], 1))

    body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
    return module(forward, body=body, head=nn.Linear(48, CLASSES))


@plain("mlp", vectors(8))
def mixture_of_experts() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        weights = net.gate(x).softmax(-1)
        outputs = torch.stack([expert(x) for expert in net.experts], 1)
        return net.head(torch.einsum("be,beo->bo", weights, outputs))

    experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(4))
    return module(forward, gate=nn.Linear(8, 4), experts=experts, head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def routed_experts() -> nn.Module:
    """Every sample goes through the expert with the highest score alone."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        scores = net.gate(h).softmax(-1)
        best, chosen = scores.max(-1)
        out = torch.zeros_like(h)
        for k, expert in enumerate(net.experts):
            rows = torch.where(chosen == k)[0]
            out = out.index_add(0, rows, expert(h[rows]) * best[rows, None])
        return net.head(h + out)

    experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
    return module(
        forward, first=nn.Linear(8, 16), gate=nn.Linear(16, 3), experts=experts, head=nn.Linear(16, CLASSES)
    )


@plain("mlp", vectors(8))
def maxout_and_prelu() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x).unflatten(1, (16, 2)).amax(-1)
        return net.head(net.slope(net.second(h)))

    return module(
        forward,
        first=nn.Linear(8, 32),
        second=nn.Linear(16, 16),
        slope=nn.PReLU(16),
        head=nn.Linear(16, CLASSES),
    )


@plain("mlp", lambda: (torch.randn(BATCH, 8), torch.randn(BATCH, 6)))
def bilinear() -> nn.Module:
    def forward(net: Any, a: Tensor, b: Tensor) -> Tensor:
        return net.head(net.mix(a, b).tanh())

    return module(forward, mix=nn.Bilinear(8, 6, 16), head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def slices_of_hidden_units() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        gates, values = h[:, :8], h[:, 8:]
        return net.head(gates.sigmoid() * values)

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(8, CLASSES))


@plain("mlp", vectors(8))
def parameters_on_the_module_itself() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = torch.tanh(x @ net.weight + net.shift) * net.scale
        return h @ net.out

    net = module(forward)
    net.weight = nn.Parameter(torch.randn(8, 16) / 3)
    net.shift = nn.Parameter(torch.zeros(16))
    net.scale = nn.Parameter(torch.tensor(1.5))
    net.out = nn.Parameter(torch.randn(16, CLASSES) / 4)
    return net


@plain("mlp", vectors(8))
def parameter_list_and_dict() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        for weight in net.weights:
            x = torch.relu(x @ weight)
        return x @ net.named["head"] + net.named["bias"]

    weights = nn.ParameterList([torch.randn(8, 16) / 3, torch.randn(16, 16) / 4])
    named = nn.ParameterDict({"head": torch.randn(16, CLASSES) / 4, "bias": torch.zeros(CLASSES)})
    return module(forward, weights=weights, named=named)


@plain("mlp", vectors(8))
def buffers_updated_by_hand() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        if net.training:
            with torch.no_grad():
                net.centre.lerp_(h.mean(0), 0.1)
                net.steps += 1
        return net.head((h - net.centre).relu())

    net = module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))
    net.register_buffer("centre", torch.zeros(16))
    net.register_buffer("steps", torch.zeros((), dtype=torch.long))
    return net


@plain("mlp", vectors(8))
def frozen_body() -> nn.Module:
    body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16))
    body.requires_grad_(False)
    return nn.Sequential(body, nn.ReLU(), nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def weight_norm() -> nn.Module:
    first = parametrizations.weight_norm(nn.Linear(8, 16))
    return nn.Sequential(
        first, nn.ReLU(), parametrizations.weight_norm(nn.Linear(16, 16)), nn.ReLU(), nn.Linear(16, CLASSES)
    )


@plain("mlp", vectors(8))
def weight_norm_of_old() -> nn.Module:
    first = nn.utils.weight_norm(nn.Linear(8, 16))
    return nn.Sequential(first, nn.ReLU(), nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def spectral_norm() -> nn.Module:
    first = parametrizations.spectral_norm(nn.Linear(8, 16))
    return nn.Sequential(
        first, nn.ReLU(), parametrizations.spectral_norm(nn.Linear(16, 16)), nn.ReLU(), nn.Linear(16, CLASSES)
    )


@plain("convolutional", images(8))
def spectral_norm_of_old() -> nn.Module:
    first = nn.utils.spectral_norm(nn.Conv2d(3, 16, 3))
    return nn.Sequential(first, nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(16 * 36, CLASSES))


@plain("mlp", vectors(8))
def orthogonal_weights() -> nn.Module:
    middle = parametrizations.orthogonal(nn.Linear(16, 16))
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), middle, nn.Tanh(), nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def pruned() -> nn.Module:
    net = mlp()
    prune.l1_unstructured(net[2], "weight", 0.5)
    return net


@plain("mlp", vectors(8))
def pruned_for_good() -> nn.Module:
    net = mlp()
    prune.l1_unstructured(net[2], "weight", 0.5)
    prune.remove(net[2], "weight")
    return net


def _prepared_for_quantisation() -> nn.Module:
    from torch.ao import quantization

    body = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, CLASSES)]
    net = nn.Sequential(quantization.QuantStub(), *body, quantization.DeQuantStub())
    net.qconfig = quantization.get_default_qat_qconfig("x86")
    return quantization.prepare_qat(net.train())


@plain("convolutional", images(8), dtype=torch.float32)
def to_be_trained_for_quantisation() -> nn.Module:
    return _prepared_for_quantisation()


@plain("convolutional", images(8), dtype=torch.float32)
def trained_for_quantisation() -> nn.Module:
    """Its observers have seen an input."""
    net = _prepared_for_quantisation()
    net(torch.randn(BATCH, 3, 8, 8))
    return net


@plain("mlp", vectors(8), narrow=(("head.weight", (CLASSES, 8)),))
def tied_weights() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        code = net.encoder(x).relu()
        return net.head(F.linear(code, net.encoder.weight.t()))

    return module(forward, encoder=nn.Linear(8, 16), head=nn.Linear(8, CLASSES))


@plain("mlp", vectors(8))
def one_layer_used_twice() -> nn.Module:
    again = nn.Linear(16, 16)
    return nn.Sequential(
        nn.Linear(8, 16), nn.Tanh(), again, nn.Tanh(), again, nn.Tanh(), nn.Linear(16, CLASSES)
    )


@plain("mlp", vectors(8))
def hooks_on_modules() -> nn.Module:
    net = mlp()
    net[0].register_forward_hook(lambda module, given, result: result * 2)
    net[2].register_forward_pre_hook(lambda module, given: (given[0] + 1,))
    return net


@plain("mlp", vectors(8))
def activation_checkpointing() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = checkpoint(net.body, net.first(x), use_reentrant=False)
        return net.head(h)

    body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16))
    return module(forward, first=nn.Linear(8, 16), body=body, head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def stored_activation() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        net.seen = net.first(x).relu()
        return net.head(net.seen)

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


class _CachesInEval(nn.Module):
    """Merges two layers into one in eval mode, and keeps the result until the next training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, CLASSES)
        self.merged: Tensor | None = None

    def train(self, mode: bool = True) -> _CachesInEval:
        self.merged = None
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            return self.head(self.second(self.first(x)).relu())
        if self.merged is None:
            self.merged = self.second.weight @ self.first.weight
        bias = self.second(self.first.bias)
        return self.head(F.linear(x, self.merged, bias).relu())


@plain("mlp", vectors(8))
def cache_in_eval_mode() -> nn.Module:
    return _CachesInEval()


@plain("mlp", vectors(8))
def changes_its_input_in_place() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        x.mul_(2).sub_(1)
        return net.body(x)

    return module(forward, body=mlp())


@plain("mlp", vectors(8), output="logits")
def answers_in_a_dict() -> nn.Module:
    def forward(net: Any, x: Tensor) -> dict[str, Tensor]:
        h = net.body(x).relu()
        return {"features": h, "logits": net.head(h)}

    return module(forward, body=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8), output=1)
def answers_in_a_tuple() -> nn.Module:
    def forward(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        h = net.body(x).relu()
        return h, net.head(h)

    return module(forward, body=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


@dataclass
class _Answer:
    features: Tensor
    logits: Tensor


@plain("mlp", vectors(8), output="logits")
def answers_in_a_dataclass() -> nn.Module:
    def forward(net: Any, x: Tensor) -> _Answer:
        h = net.body(x).relu()
        return _Answer(h, net.head(h))

    return module(forward, body=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


def _numbers_and_words() -> dict[str, Tensor]:
    return {"numbers": torch.randn(BATCH, 6), "words": torch.randint(0, 7, (BATCH, 3))}


@plain("mlp", _numbers_and_words, narrow=(("body.0.weight", (8, 6 + 6)),))
def inputs_by_keyword() -> nn.Module:
    def forward(net: Any, *, numbers: Tensor, words: Tensor) -> Tensor:
        both = torch.cat([numbers, net.table(words).flatten(1)], 1)
        return net.body(both)

    body = nn.Sequential(nn.Linear(18, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    return module(forward, table=nn.Embedding(7, 4), body=body)


@plain("mlp", tokens(6, 20))
def bag_of_words() -> nn.Module:
    return nn.Sequential(
        nn.EmbeddingBag(20, 16, mode="mean"), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, CLASSES)
    )


@plain("mlp", tokens(6, 20))
def embedding_with_max_norm() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(20, 16, max_norm=1.0), nn.Flatten(), nn.Linear(96, 16), nn.ReLU(), nn.Linear(16, CLASSES)
    )


@plain("mlp", vectors(8))
def kinds_of_dropout() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.dropout(F.selu(net.first(x)), 0.2, net.training)
        h = net.alpha(F.selu(net.second(h)))
        return net.head(net.third(net.feature(h)).relu())

    parts = dict(
        first=nn.Linear(8, 16), second=nn.Linear(16, 16), third=nn.Linear(16, 16), head=nn.Linear(16, CLASSES)
    )
    return module(forward, **parts, alpha=nn.AlphaDropout(0.1), feature=nn.FeatureAlphaDropout(0.1))


@plain("mlp", vectors(8))
def stochastic_depth() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        for block in net.blocks:
            if net.training:
                keep = (torch.rand(len(h), 1, dtype=h.dtype) < 0.8).to(h.dtype) / 0.8
                h = h + keep * block(h)
            else:
                h = h + block(h)
        return net.head(h)

    blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3))
    return module(forward, first=nn.Linear(8, 16), blocks=blocks, head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def noise_on_the_input() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.body(x + 0.1 * torch.randn_like(x)) if net.training else net.body(x)

    return module(forward, body=mlp())


@plain("mlp", vectors(8))
def early_exit() -> nn.Module:
    """Two heads, the first of which counts less."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x).relu()
        return 0.3 * net.early(h) + 0.7 * net.late(net.second(h).relu())

    first, second = nn.Linear(8, 16), nn.Linear(16, 16)
    return module(
        forward, first=first, second=second, early=nn.Linear(16, CLASSES), late=nn.Linear(16, CLASSES)
    )


@plain("mlp", vectors(8))
def an_unused_head() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(net.body(x).relu())

    return module(forward, spare=nn.Linear(16, 3), body=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def fourier_features() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        angles = x @ net.frequencies
        return net.body(torch.cat([angles.sin(), angles.cos()], -1))

    net = module(forward, body=nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, CLASSES)))
    net.register_buffer("frequencies", torch.randn(8, 16))
    return net


# --- convolutional networks -------------------------------------------------------------------------------


@plain("convolutional", images(28, 1))
def lenet() -> nn.Module:
    features = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
    )
    head = nn.Sequential(nn.Linear(400, 60), nn.Tanh(), nn.Linear(60, 42), nn.Tanh(), nn.Linear(42, CLASSES))
    return nn.Sequential(features, nn.Flatten(), head)


@plain("convolutional", images(16))
def small_vgg() -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 8), (8, 16)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
    layers += [
        nn.Flatten(),
        nn.Linear(16 * 16, 32),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Linear(32, CLASSES),
    ]
    return nn.Sequential(*layers)


@plain("convolutional", images(8))
def flattened_by_view() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.max_pool2d(net.conv(x).relu(), 2)
        return net.head(h.view(h.size(0), -1))

    return module(forward, conv=nn.Conv2d(3, 16, 3, padding=1), head=nn.Linear(16 * 16, CLASSES))


@plain("convolutional", images(8))
def flattened_by_numbers() -> nn.Module:
    """The width stands as a number in the code."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.max_pool2d(net.conv(x).relu(), 2)
        return net.head(h.view(-1, 16 * 4 * 4))

    return module(forward, conv=nn.Conv2d(3, 16, 3, padding=1), head=nn.Linear(16 * 16, CLASSES))


@plain("convolutional", vectors(8))
def generator_with_unflatten() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16 * 4),
        nn.Unflatten(1, (16, 2, 2)),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(8, 3, 4, 2, 1),
    )


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = self._block(3, 8), self._block(8, 16)
        self.middle = self._block(16, 32)
        self.lift2, self.up2 = nn.ConvTranspose2d(32, 16, 2, 2), self._block(32, 16)
        self.lift1, self.up1 = nn.ConvTranspose2d(16, 8, 2, 2), self._block(16, 8)
        self.head = nn.Conv2d(8, CLASSES, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        h = self.middle(F.max_pool2d(b, 2))
        h = self.up2(torch.cat([self.lift2(h), b], 1))
        h = self.up1(torch.cat([self.lift1(h), a], 1))
        return self.head(h)


@plain("convolutional", images(8))
def unet() -> nn.Module:
    return _UNet()


@plain("convolutional", images(9))
def segmentation_by_interpolation() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.body(x)
        return F.interpolate(net.head(h), size=x.shape[-2:], mode="bilinear", align_corners=False)

    body = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU())
    return module(forward, body=body, head=nn.Conv2d(16, CLASSES, 1))


@plain("convolutional", images(6))
def super_resolution_by_pixel_shuffle() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.PReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.PReLU(),
        nn.Conv2d(16, 12, 3, padding=1),
        nn.PixelShuffle(2),
    )


@plain("convolutional", images(8))
def instance_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.InstanceNorm2d(16, affine=True),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.InstanceNorm2d(16, track_running_stats=True),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, CLASSES),
    )


@plain("convolutional", images(8))
def group_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Conv2d(16, 16, 3, groups=4),
        nn.GroupNorm(1, 16),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


@plain("convolutional", images(8))
def local_response_norm() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.ReLU(),
        nn.LocalResponseNorm(3),
        nn.MaxPool2d(2),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.Linear(144, CLASSES),
    )


@plain("convolutional", images(8))
def squeeze_and_excite() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.norm(net.conv(x)).relu()
        gate = torch.sigmoid(net.up(net.down(h.mean((2, 3))).relu()))
        return net.head((h * gate[:, :, None, None]).mean((2, 3)))

    parts = dict(
        conv=nn.Conv2d(3, 16, 3), norm=nn.BatchNorm2d(16), down=nn.Linear(16, 4), up=nn.Linear(4, 16)
    )
    return module(forward, **parts, head=nn.Linear(16, CLASSES))


@plain("convolutional", images(8))
def weights_standardised_by_hand() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        weight = net.conv.weight
        centred = weight - weight.mean((1, 2, 3), keepdim=True)
        scale = weight.flatten(1).std(1)[:, None, None, None] + 1e-5
        h = F.conv2d(x, centred / scale, net.conv.bias, padding=1)
        return net.head(net.norm(h).relu().mean((2, 3)))

    return module(forward, conv=nn.Conv2d(3, 16, 3), norm=nn.GroupNorm(4, 16), head=nn.Linear(16, CLASSES))


@plain("convolutional", images(8))
def channel_shuffle() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        a, b = net.stem(x).chunk(2, 1)
        h = torch.cat([a, net.branch(b)], 1)
        batch, width, height, length = h.shape
        h = h.view(batch, 2, width // 2, height, length).transpose(1, 2).reshape(batch, width, height, length)
        return net.head(h.mean((2, 3)))

    branch = nn.Sequential(
        nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=8)
    )
    return module(forward, stem=nn.Conv2d(3, 16, 3, padding=1), branch=branch, head=nn.Linear(16, CLASSES))


@plain("convolutional", lambda: torch.randn(BATCH, 2, 4, 6, 6))
def video() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.Conv3d(8, 16, (1, 3, 3)),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


class _WaveNet(nn.Module):
    """Gated, dilated, causal convolutions with skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 8, 1)
        self.filters = nn.ModuleList(nn.Conv1d(8, 8, 2, dilation=2**i) for i in range(3))
        self.gates = nn.ModuleList(nn.Conv1d(8, 8, 2, dilation=2**i) for i in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(8, 16, 1) for _ in range(3))
        self.head = nn.Conv1d(16, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, total = self.first(x), 0
        for i, (kernel, gate, skip) in enumerate(zip(self.filters, self.gates, self.skips, strict=True)):
            padded = F.pad(h, (2**i, 0))
            inner = torch.tanh(kernel(padded)) * torch.sigmoid(gate(padded))
            h = h + inner
            total = total + skip(inner)
        return self.head(F.relu(total))


@plain("convolutional", lambda: torch.randn(BATCH, 2, 12))
def wavenet() -> nn.Module:
    return _WaveNet()


@plain("convolutional", lambda: torch.randn(BATCH, 2, 12))
def temporal_convolutions() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.short(x)
        for i, conv in enumerate((net.conv1, net.conv2)):
            x = F.dropout(conv(F.pad(x, (2 * 2**i, 0))).relu(), 0.1, net.training)
        return net.head((x + h)[:, :, -1])

    conv1 = parametrizations.weight_norm(nn.Conv1d(2, 16, 3))
    conv2 = parametrizations.weight_norm(nn.Conv1d(16, 16, 3, dilation=2))
    return module(forward, conv1=conv1, conv2=conv2, short=nn.Conv1d(2, 16, 1), head=nn.Linear(16, CLASSES))


# --- recurrent networks -----------------------------------------------------------------------------------


@plain("recurrent", tokens(6, 20))
def lstm_with_dropout() -> nn.Module:
    def forward(net: Any, words: Tensor) -> Tensor:
        h, _ = net.lstm(net.table(words))
        return net.head(h[:, -1])

    lstm = nn.LSTM(8, 16, num_layers=2, dropout=0.2, batch_first=True)
    return module(forward, table=nn.Embedding(20, 8), lstm=lstm, head=nn.Linear(16, CLASSES))


@plain("recurrent", sequences(6, 4))
def bidirectional_gru() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        _, last = net.gru(x)
        return net.head(torch.cat([last[-2], last[-1]], 1))

    return module(
        forward, gru=nn.GRU(4, 8, batch_first=True, bidirectional=True), head=nn.Linear(16, CLASSES)
    )


@plain("recurrent", sequences(6, 4))
def elman_network() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(net.rnn(x)[0])

    return module(forward, rnn=nn.RNN(4, 16, batch_first=True), head=nn.Linear(16, CLASSES))


@plain("recurrent", sequences(6, 4))
def lstm_cells() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = net.cell(step, state)
        return net.head(state[0])

    return module(forward, cell=nn.LSTMCell(4, 16), head=nn.Linear(16, CLASSES))


@plain("recurrent", tokens(6, 20))
def translation_with_attention() -> nn.Module:
    def forward(net: Any, words: Tensor) -> Tensor:
        states, last = net.encoder(net.table(words))
        h, _ = net.decoder(net.table(words), last)
        weights = torch.bmm(h, states.transpose(1, 2)).softmax(-1)
        return net.head(torch.cat([h, torch.bmm(weights, states)], -1))

    encoder, decoder = nn.GRU(8, 16, batch_first=True), nn.GRU(8, 16, batch_first=True)
    return module(
        forward, table=nn.Embedding(20, 8), encoder=encoder, decoder=decoder, head=nn.Linear(32, CLASSES)
    )


@plain("recurrent", images(8))
def recurrent_over_convolutions() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        columns = net.conv(x).relu().mean(2).transpose(1, 2)
        return net.head(net.lstm(columns)[0])

    conv, lstm = nn.Conv2d(3, 16, 3), nn.LSTM(16, 8, batch_first=True, bidirectional=True)
    return module(forward, conv=conv, lstm=lstm, head=nn.Linear(16, CLASSES))


# --- attention --------------------------------------------------------------------------------------------


def _padded() -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([6, 4, 3, 5])
    return torch.randint(0, 20, (BATCH, 6)), torch.arange(6)[None, :] >= lengths[:, None]


@plain("transformer", _padded)
def encoder_with_padding() -> nn.Module:
    def forward(net: Any, words: Tensor, padding: Tensor) -> Tensor:
        h = net.encoder(net.table(words) + net.positions, src_key_padding_mask=padding)
        return net.head(h[:, 0])

    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    net = module(forward, table=nn.Embedding(20, 16), encoder=encoder, head=nn.Linear(16, CLASSES))
    net.positions = nn.Parameter(torch.randn(1, 6, 16) * 0.1)
    return net


@plain("transformer", lambda: (torch.randint(0, 20, (BATCH, 6)), torch.randint(0, 20, (BATCH, 5))))
def encoder_and_decoder() -> nn.Module:
    def forward(net: Any, source: Tensor, target: Tensor) -> Tensor:
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        return net.head(net.body(net.table(source), net.table(target), tgt_mask=causal))

    body = nn.Transformer(16, 4, 1, 1, 32, dropout=0.1, batch_first=True)
    return module(forward, table=nn.Embedding(20, 16), body=body, head=nn.Linear(16, CLASSES))


@plain("transformer", sequences(6, 8))
def attention_with_biases_of_keys() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        mixed, _ = net.attention(h, h, h, need_weights=False)
        return net.head(net.norm(h + mixed).mean(1))

    attention = nn.MultiheadAttention(16, 4, add_bias_kv=True, batch_first=True)
    return module(
        forward,
        first=nn.Linear(8, 16),
        attention=attention,
        norm=nn.LayerNorm(16),
        head=nn.Linear(16, CLASSES),
    )


@plain("transformer", tokens(6, 20))
def language_model_with_tied_words() -> nn.Module:
    def forward(net: Any, words: Tensor) -> Tensor:
        causal = nn.Transformer.generate_square_subsequent_mask(words.shape[1], dtype=torch.float64)
        h = net.layer(net.table(words), src_mask=causal, is_causal=True)
        return F.linear(net.norm(h), net.table.weight)

    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
    return module(forward, table=nn.Embedding(20, 16), layer=layer, norm=nn.LayerNorm(16))


@plain("vision transformer", images(8))
def einsum_vision_transformer() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([net.token.expand(len(h), -1, -1), h], 1) + net.positions
        q, k, v = net.qkv(net.norm(h)).reshape(len(h), -1, 3, net.heads, h.shape[-1] // net.heads).unbind(2)
        weights = torch.einsum("bnhd,bmhd->bhnm", q, k).softmax(-1)
        h = h + net.out(torch.einsum("bhnm,bmhd->bnhd", weights, v).flatten(2))
        return net.head(h[:, 0])

    parts = dict(
        patches=nn.Conv2d(3, 16, 4, 4), norm=nn.LayerNorm(16), qkv=nn.Linear(16, 48), out=nn.Linear(16, 16)
    )
    net = module(forward, **parts, head=nn.Linear(16, CLASSES), heads=4)
    net.token = nn.Parameter(torch.randn(1, 1, 16))
    net.positions = nn.Parameter(torch.randn(1, 5, 16) * 0.1)
    return net


@plain("transformer", lambda: torch.randn(BATCH, 10, 3))
def perceiver() -> nn.Module:
    """A few learned queries read a set of any size."""

    def forward(net: Any, x: Tensor) -> Tensor:
        values = net.first(x)
        queries = net.queries.expand(len(x), -1, -1)
        read, _ = net.attention(queries, values, values, need_weights=False)
        return net.head(net.norm(read).flatten(1))

    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    net = module(
        forward,
        first=nn.Linear(3, 16),
        attention=attention,
        norm=nn.LayerNorm(16),
        head=nn.Linear(48, CLASSES),
    )
    net.queries = nn.Parameter(torch.randn(1, 3, 16))
    return net


# --- others -----------------------------------------------------------------------------------------------


@plain("other", lambda: torch.randn(BATCH, 3, 10), unscaled=(9,))
def pointnet() -> nn.Module:
    def forward(net: Any, points: Tensor) -> Tensor:
        turned = torch.bmm(net.turn(points.amax(2)).view(-1, 3, 3), points)
        return net.head(net.body(turned).amax(2))

    body = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
    turn = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 9))
    return module(forward, turn=turn, body=body, head=nn.Linear(32, CLASSES))


def _graph() -> tuple[Tensor, Tensor]:
    nodes = torch.randn(BATCH, 6)
    return nodes, torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])


@plain("other", _graph)
def graph_by_edges() -> nn.Module:
    """Nodes are the batch; messages are summed with index_add."""

    def forward(net: Any, x: Tensor, edges: Tensor) -> Tensor:
        h = net.first(x).relu()
        heard = torch.zeros_like(h).index_add(0, edges[1], net.message(h)[edges[0]])
        return net.head(torch.cat([h, heard], 1).relu())

    return module(forward, first=nn.Linear(6, 16), message=nn.Linear(16, 16), head=nn.Linear(32, CLASSES))


@plain("other", lambda: (torch.randn(BATCH, 5, 6), torch.rand(BATCH, 5, 5)))
def graphs_by_adjacency() -> nn.Module:
    def forward(net: Any, x: Tensor, adjacency: Tensor) -> Tensor:
        for layer in net.layers:
            x = torch.bmm(adjacency, layer(x)).relu()
        return net.head(x.mean(1))

    layers = nn.ModuleList([nn.Linear(6, 16), nn.Linear(16, 16)])
    return module(forward, layers=layers, head=nn.Linear(16, CLASSES))


@plain("other", vectors(8))
def complex_numbers() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        weight = torch.complex(net.real, net.imaginary)
        return net.head((x.to(weight.dtype) @ weight).abs())

    net = module(forward, head=nn.Linear(16, CLASSES))
    net.real, net.imaginary = nn.Parameter(torch.randn(8, 16) / 3), nn.Parameter(torch.randn(8, 16) / 3)
    return net


@plain("other", lambda: torch.randn(BATCH, 3, 8, 8))
def spectral_convolution() -> nn.Module:
    """A layer of a Fourier neural operator."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        spectrum = torch.fft.rfft2(h)[..., :3, :3]
        mixed = torch.einsum("bixy,ioxy->boxy", spectrum, torch.view_as_complex(net.weight))
        padded = F.pad(mixed, (0, 2, 0, 5))
        return net.head(F.gelu(torch.fft.irfft2(padded, s=(8, 8)) + net.skip(h)))

    net = module(forward, first=nn.Conv2d(3, 8, 1), skip=nn.Conv2d(8, 8, 1), head=nn.Conv2d(8, CLASSES, 1))
    net.weight = nn.Parameter(torch.randn(8, 8, 3, 3, 2) / 8)
    return net


@plain("other", vectors(8))
def neural_differential_equation() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        for _ in range(4):
            h = h + 0.25 * net.field(h)
        return net.head(h)

    field = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
    return module(forward, first=nn.Linear(8, 16), field=field, head=nn.Linear(16, CLASSES))


@plain("other", lambda: (torch.randn(BATCH, 3, 8, 8), torch.rand(BATCH)))
def diffusion_step() -> nn.Module:
    """A small denoiser: time enters every block as a scale and a shift."""

    def forward(net: Any, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * torch.arange(1, 5, dtype=time.dtype)
        scale, shift = net.time(torch.cat([angles.sin(), angles.cos()], 1)).chunk(2, 1)
        h = net.norm(net.first(x)) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
        return net.last(F.silu(h))

    time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 32))
    first, last = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)
    return module(forward, time=time, first=first, norm=nn.GroupNorm(4, 16), last=last)


@plain("other", vectors(8))
def deep_sets_of_features() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.inner(x.unsqueeze(-1))
        return net.outer(torch.cat([h.sum(1), h.logsumexp(1)], -1))

    inner = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 16))
    return module(
        forward, inner=inner, outer=nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    )


@plain("other", lambda: (torch.randint(0, 9, (BATCH,)), torch.randint(0, 7, (BATCH,))))
def recommender() -> nn.Module:
    def forward(net: Any, user: Tensor, item: Tensor) -> Tensor:
        a, b = net.users(user), net.items(item)
        return net.body(torch.cat([a, b, a * b], 1))

    body = nn.Sequential(nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    return module(forward, users=nn.Embedding(9, 16), items=nn.Embedding(7, 16), body=body)


# --- torchvision ------------------------------------------------------------------------------------------


def _vision(name: str = "") -> Any:
    """torchvision's models, or one of their modules: some have the name of a function as well."""
    return importlib.import_module(f"torchvision.models.{name}".removesuffix("."))


def _tv_resnet() -> nn.Module:
    resnet = _vision("resnet")
    net = resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)
    return _narrowed_resnet(net, resnet.BasicBlock)


def _narrowed_resnet(net: nn.Module, block: Any, dilated: bool = False) -> nn.Module:
    """torchvision's ResNet has its widths in its code; its own method makes narrower stages."""
    net.inplanes, net.dilation = 8, 1
    net.conv1, net.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
    net.layer1 = net._make_layer(block, 8, 1)
    net.layer2 = net._make_layer(block, 16, 1, stride=2)
    net.layer3 = net._make_layer(block, 16, 1, stride=2, dilate=dilated)
    net.layer4 = net._make_layer(block, 32, 1, stride=2, dilate=dilated)
    net.fc = nn.Linear(32 * block.expansion, CLASSES)
    return net


def _tv_backbone() -> nn.Module:
    from torchvision.models._utils import IntermediateLayerGetter

    resnet = _vision("resnet")
    stages = [False, True, True]
    net = resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], replace_stride_with_dilation=stages)
    return IntermediateLayerGetter(_narrowed_resnet(net, resnet.Bottleneck, True), {"layer4": "out"})


def _tv_fcn() -> nn.Module:
    from torchvision.models.segmentation import fcn

    return fcn.FCN(_tv_backbone(), fcn.FCNHead(128, CLASSES))


def _tv_deeplab() -> nn.Module:
    from torchvision.models.segmentation import deeplabv3

    head = deeplabv3.DeepLabHead(128, CLASSES, atrous_rates=(2, 4, 6))
    head[0] = deeplabv3.ASPP(128, [2, 4, 6], 16)
    head[1], head[2], head[4] = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Conv2d(16, CLASSES, 1)
    return deeplabv3.DeepLabV3(_tv_backbone(), head)


def _tv_densenet() -> nn.Module:
    return _vision().DenseNet(8, (2, 2), 16, drop_rate=0.1, num_classes=CLASSES)


def _tv_mobilenet_v2() -> nn.Module:
    settings = [[1, 8, 1, 1], [3, 8, 2, 2], [3, 16, 1, 2]]
    net = _vision().MobileNetV2(num_classes=CLASSES, width_mult=0.5, inverted_residual_setting=settings)
    return net


def _tv_mobilenet_v3() -> nn.Module:
    family = _vision("mobilenetv3")
    layer = functools.partial(family.InvertedResidualConfig, width_mult=1.0)
    settings = [layer(16, 3, 16, 16, True, "RE", 2, 1), layer(16, 5, 32, 16, True, "HS", 1, 1)]
    return family.MobileNetV3(settings, 32, num_classes=CLASSES)


def _tv_efficientnet() -> nn.Module:
    family = _vision("efficientnet")
    blocks = [family.MBConvConfig(1, 3, 1, 16, 16, 1), family.MBConvConfig(3, 5, 2, 16, 16, 2)]
    return family.EfficientNet(blocks, dropout=0.2, num_classes=CLASSES)


def _tv_efficientnet_v2() -> nn.Module:
    family = _vision("efficientnet")
    blocks = [family.FusedMBConvConfig(2, 3, 1, 16, 16, 1), family.MBConvConfig(3, 3, 2, 16, 16, 1)]
    return family.EfficientNet(blocks, dropout=0.2, num_classes=CLASSES, last_channel=64)


def _tv_regnet() -> nn.Module:
    family = _vision("regnet")
    parameters = family.BlockParams([1, 1], [8, 16], [8, 8], [1.0, 1.0], [2, 2], 0.25)
    return family.RegNet(parameters, num_classes=CLASSES, stem_width=8)


def _tv_convnext() -> nn.Module:
    family = _vision("convnext")
    return family.ConvNeXt(
        [family.CNBlockConfig(8, 16, 1), family.CNBlockConfig(16, None, 1)], num_classes=CLASSES
    )


def _tv_vit() -> nn.Module:
    return _vision().VisionTransformer(16, 4, 2, 4, 16, 32, dropout=0.1, num_classes=CLASSES)


def _tv_swin() -> nn.Module:
    return _vision().SwinTransformer([4, 4], 16, [2, 1], [2, 4], [4, 4], num_classes=CLASSES)


def _tv_swin_v2() -> nn.Module:
    family = _vision("swin_transformer")
    options = dict(block=family.SwinTransformerBlockV2, downsample_layer=family.PatchMergingV2)
    return family.SwinTransformer([4, 4], 16, [2, 1], [2, 4], [4, 4], num_classes=CLASSES, **options)


def _tv_maxvit() -> nn.Module:
    return _vision().MaxVit((32, 32), 8, 4, [8, 16], [1, 1], 8, 0.1, num_classes=CLASSES)


def _tv_googlenet() -> nn.Module:
    family = _vision("googlenet")
    net = family.GoogLeNet(CLASSES, aux_logits=False, init_weights=False)
    net.conv1, net.conv2, net.conv3 = _google(3, 8, 7, 2, 3), _google(8, 8, 1), _google(8, 16, 3, 1, 1)
    for name in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        setattr(net, f"inception{name}", family.Inception(16, 4, 4, 4, 4, 4, 4))
    net.fc = nn.Linear(16, CLASSES)
    return net


def _google(inputs: int, outputs: int, size: int, stride: int = 1, padding: int = 0) -> nn.Module:
    block = _vision("googlenet").BasicConv2d
    return block(inputs, outputs, kernel_size=size, stride=stride, padding=padding)


def _tv_inception() -> nn.Module:
    """The blocks of Inception v3, one of each kind that is narrow."""
    family = _vision("inception")
    stem = family.BasicConv2d(3, 16, kernel_size=3, stride=4)
    blocks = nn.Sequential(
        stem, family.InceptionA(16, pool_features=8), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return nn.Sequential(blocks, nn.Dropout(0.5), nn.Linear(232, CLASSES))


def _tv_squeezenet() -> nn.Module:
    fire = _vision("squeezenet").Fire
    features = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2), nn.ReLU(inplace=True), fire(16, 8, 16, 16), fire(32, 8, 16, 16)
    )
    head = nn.Sequential(
        nn.Dropout(0.5), nn.Conv2d(32, CLASSES, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1)
    )
    return nn.Sequential(features, head, nn.Flatten())


def _tv_shufflenet() -> nn.Module:
    return _vision().ShuffleNetV2([1, 1, 1], [8, 16, 32, 32, 64], num_classes=CLASSES)


def _tv_mnasnet() -> nn.Module:
    return _vision().MNASNet(0.1, num_classes=CLASSES)


def _tv_vgg() -> nn.Module:
    family = _vision("vgg")
    net = family.VGG(family.make_layers([8, "M", 16, "M"], batch_norm=True), CLASSES, init_weights=False)
    net.avgpool = nn.AdaptiveAvgPool2d((2, 2))
    net.classifier = nn.Sequential(nn.Linear(64, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, CLASSES))
    return net


def _tv_video() -> nn.Module:
    family = _vision("video.resnet")
    stem = nn.Sequential(nn.Conv3d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm3d(8), nn.ReLU(inplace=True))
    block = family.BasicBlock
    net = family.VideoResNet(block, [family.Conv3DSimple] * 4, [1, 1, 1, 1], family.BasicStem, CLASSES)
    net.stem, net.inplanes = stem, 8
    for i, width in enumerate((8, 8, 16, 16), start=1):
        setattr(net, f"layer{i}", net._make_layer(block, family.Conv3DSimple, width, 1, stride=1))
    net.fc = nn.Linear(16, CLASSES)
    return net


_OF_TORCHVISION: list[tuple[str, Kind, Callable[[], nn.Module], Callable[[], Any], Any]] = [
    ("resnet18", "convolutional", _tv_resnet, images(32), None),
    ("fcn", "convolutional", _tv_fcn, images(32), "out"),
    ("deeplabv3", "convolutional", _tv_deeplab, images(32), "out"),
    ("densenet", "convolutional", _tv_densenet, images(32), None),
    ("mobilenet_v2", "convolutional", _tv_mobilenet_v2, images(32), None),
    ("mobilenet_v3", "convolutional", _tv_mobilenet_v3, images(32), None),
    ("efficientnet", "convolutional", _tv_efficientnet, images(32), None),
    ("efficientnet_v2", "convolutional", _tv_efficientnet_v2, images(32), None),
    ("regnet_y", "convolutional", _tv_regnet, images(32), None),
    ("convnext", "convolutional", _tv_convnext, images(32), None),
    ("googlenet", "convolutional", _tv_googlenet, images(32), None),
    ("inception_v3", "convolutional", _tv_inception, images(32), None),
    ("squeezenet", "convolutional", _tv_squeezenet, images(32), None),
    ("shufflenet_v2", "convolutional", _tv_shufflenet, images(32), None),
    ("vgg_bn", "convolutional", _tv_vgg, images(16), None),
    ("r3d", "convolutional", _tv_video, lambda: torch.randn(BATCH, 3, 4, 8, 8), None),
    ("vit", "vision transformer", _tv_vit, images(16), None),
    ("swin", "vision transformer", _tv_swin, images(32), None),
    ("swin_v2", "vision transformer", _tv_swin_v2, images(32), None),
    ("maxvit", "vision transformer", _tv_maxvit, images(32), None),
]


def networks() -> list[Network]:
    """All of them; torchvision's where it can be imported."""
    found = list(_FOUND)
    if importable("torchvision"):
        for name, kind, build, inputs, output in _OF_TORCHVISION:
            found.append(Network(f"torchvision {name}", kind, "torchvision", build, inputs, output))
    return found
