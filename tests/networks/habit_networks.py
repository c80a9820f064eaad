"""Networks with habits: of arguments and answers, of hooks and precision, of state and of constants.

As in `plain_networks`, the name of the function is the name of the network, with spaces for underscores.
"""

from __future__ import annotations

import copy
import functools
import itertools
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from catalogue import BATCH, CLASSES, Network, images, sequences, tokens, vectors
from plain_networks import listed, module
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

_FOUND: list[Network] = []
plain = functools.partial(listed, _FOUND)


def _layers(*widths: int) -> list[nn.Linear]:
    return [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]


def _mlp(*widths: int) -> nn.Sequential:
    first, *others = _layers(*widths)
    parts: list[nn.Module] = [first]
    for layer in others:
        parts += [nn.ReLU(), layer]
    return nn.Sequential(*parts)


# --- arguments and answers --------------------------------------------------------------------------------


@plain("mlp", lambda: {"x": torch.randn(BATCH, 8), "depth": 2})
def depth_by_argument() -> nn.Module:
    def forward(net: Any, x: Tensor, depth: int | None = None) -> Tensor:
        h = F.relu(net.first(x))
        for block in net.blocks[:depth]:
            h = h + F.relu(block(h))
        return net.head(h)

    blocks = nn.ModuleList(_layers(16, 16, 16, 16))
    return module(forward, first=nn.Linear(8, 16), blocks=blocks, head=nn.Linear(16, CLASSES))


@plain("mlp", lambda: (torch.randn(BATCH, 8), torch.randn(BATCH, 4)))
def any_arguments() -> nn.Module:
    def forward(net: Any, *views: Tensor, **unused: Any) -> Tensor:
        hidden = [F.relu(layer(view)) for layer, view in zip(net.layers, views, strict=True)]
        return net.head(torch.stack(hidden).sum(0))

    return module(
        forward, layers=nn.ModuleList([nn.Linear(8, 16), nn.Linear(4, 16)]), head=nn.Linear(16, CLASSES)
    )


@plain("mlp", lambda: {"image": torch.randn(BATCH, 8), "scale": 2.0, "mask": None})
def arguments_by_keyword_only() -> nn.Module:
    def forward(net: Any, *, image: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
        h = F.relu(net.first(image * scale))
        return net.head(h if mask is None else h * mask)

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


@plain("mlp", lambda: ({"left": torch.randn(BATCH, 8), "right": torch.randn(BATCH, 8)},))
def batch_in_one_dict() -> nn.Module:
    """Takes its batch apart, as those do that own it."""

    def forward(net: Any, batch: dict[str, Tensor]) -> Tensor:
        left = batch.pop("left")
        batch["left"] = left
        return net.head(F.relu(net.first(left) - net.first(batch["right"])))

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


class _Answer(NamedTuple):
    features: Tensor
    logits: Tensor
    loss: Tensor | None = None


@plain("mlp", vectors(8), output="logits")
def answers_in_a_named_tuple() -> nn.Module:
    def forward(net: Any, x: Tensor) -> _Answer:
        features = F.relu(net.first(x))
        return _Answer(features, net.head(features))

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


@plain("mlp", lambda: (torch.randint(0, 20, (11,)), torch.tensor([0, 3, 8])))
def bags_with_offsets() -> nn.Module:
    def forward(net: Any, words: Tensor, offsets: Tensor) -> Tensor:
        return net.head(F.relu(net.table(words, offsets)))

    return module(forward, table=nn.EmbeddingBag(20, 16, mode="sum"), head=nn.Linear(16, CLASSES))


# --- modules that are used otherwise ----------------------------------------------------------------------


@plain("mlp", vectors(8))
def slices_of_a_sequence() -> nn.Module:
    """Makes new containers of its layers in every call."""

    def forward(net: Any, x: Tensor) -> Tensor:
        early, late = net.layers[:2], net.layers[2:]
        return late(early(x) * 0.5)

    layers = nn.Sequential(
        OrderedDict(
            first=nn.Linear(8, 16), act=nn.GELU(), second=nn.Linear(16, 16), last=nn.Linear(16, CLASSES)
        )
    )
    return module(forward, layers=layers)


@plain("mlp", vectors(8))
def one_norm_in_two_parents() -> nn.Module:
    norm = nn.BatchNorm1d(16)
    left, right = nn.Sequential(nn.Linear(8, 16), norm), nn.Sequential(nn.Linear(16, 16), norm)
    return nn.Sequential(left, nn.ReLU(), right, nn.ReLU(), nn.Linear(16, CLASSES))


class _Delegates(nn.Module):
    """A wrapper that passes on what it does not know."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


@plain("mlp", vectors(8))
def wrapper_that_delegates() -> nn.Module:
    return _Delegates(_mlp(8, 16, 16, CLASSES))


class _CallsItself(nn.Module):
    """Overrides `__call__` as if there were no hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, CLASSES)

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x)))


@plain("mlp", vectors(8))
def call_of_its_own() -> nn.Module:
    return _CallsItself()


class _FrozenNorms(nn.Module):
    """Norms that stay in eval mode while the rest trains."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)
        self.second, self.head = nn.Conv2d(8, 8, 3), nn.Linear(8, CLASSES)

    def train(self, mode: bool = True) -> _FrozenNorms:
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(F.relu(self.norm(self.first(x))))).mean((2, 3)))


@plain("convolutional", images(8))
def norms_that_stay_frozen() -> nn.Module:
    return _FrozenNorms()


@plain("convolutional", images(8))
def norms_of_the_batch_alone() -> nn.Module:
    """One keeps no statistics, the other the mean of all batches."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8, momentum=None),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


@plain("convolutional", images(8))
def groups_as_many_as_channels() -> nn.Module:
    body = [nn.Conv2d(3, 4, 3), nn.GroupNorm(4, 4), nn.SiLU(), nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8)]
    return nn.Sequential(*body, nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))


# --- hooks ------------------------------------------------------------------------------------------------


def _clipped(layer: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output.clamp(-1, 1)


def _doubled(layer: nn.Module, args: tuple[Tensor], kwargs: dict[str, Any]) -> Any:
    return (args[0] * 2, *args[1:]), kwargs


def _smaller(layer: nn.Module, incoming: Any, outgoing: Any) -> Any:
    return tuple(each if each is None else 0.5 * each for each in incoming)


@plain("mlp", vectors(8))
def hooks_that_replace() -> nn.Module:
    net = _mlp(8, 16, 16, CLASSES)
    net[0].register_forward_hook(_clipped)
    net[2].register_forward_pre_hook(_doubled, with_kwargs=True)
    return net


@plain("mlp", vectors(8))
def hooks_in_the_backward_pass() -> nn.Module:
    net = _mlp(8, 16, 16, CLASSES)
    net[2].register_full_backward_hook(_smaller)
    return net


# --- numbers ----------------------------------------------------------------------------------------------


@plain("mlp", vectors(8), dtype=torch.float32)
def double_precision_inside() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        shares = torch.softmax(h.double(), -1).to(h.dtype)
        return net.head(h * shares)

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8), dtype=torch.float32)
def autocast_inside() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = F.relu(net.second(F.relu(net.first(x))))
        return net.head(h.float())

    first, second, head = _layers(8, 16, 16, CLASSES)
    return module(forward, first=first, second=second, head=head)


@plain("other", lambda: torch.randn(BATCH, 64))
def spectrogram() -> nn.Module:
    def forward(net: Any, wave: Tensor) -> Tensor:
        bands = torch.stft(wave, 16, hop_length=8, window=net.window, return_complex=True)
        return net.head(F.relu(net.first(bands.abs().log1p())).mean(-1))

    net = module(forward, first=nn.Conv1d(9, 16, 3), head=nn.Linear(16, CLASSES))
    net.register_buffer("window", torch.hann_window(16))
    return net


@plain("mlp", vectors(8), dtype=torch.float32)
def script_function_inside() -> nn.Module:
    @torch.jit.script
    def gelu(x: Tensor) -> Tensor:
        return x * 0.5 * (1.0 + torch.erf(x / 1.41421))

    return module(
        lambda net, x: net.head(gelu(net.first(x))), first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES)
    )


@plain("mlp", vectors(8))
def jacobians_inside() -> nn.Module:
    """Uses what its first layers' derivative says, sample by sample."""

    def forward(net: Any, x: Tensor) -> Tensor:
        slopes = torch.func.vmap(torch.func.jacrev(net.body))(x)
        return net.head(net.body(x) + slopes.square().sum(-1))

    body = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 6))
    return module(forward, body=body, head=nn.Linear(6, CLASSES))


# --- constants that torch does not know -------------------------------------------------------------------


@plain("mlp", vectors(8))
def tensors_as_attributes() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        scaled = (x - net.mean) / net.spread[0]
        return net.head(F.relu(net.first(scaled[:, net.order])))

    net = module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))
    net.mean, net.spread = torch.randn(8, dtype=torch.float64), [torch.rand(8, dtype=torch.float64) + 1]
    net.order = torch.randperm(8)
    return net


@plain("transformer", sequences(6, 8))
def mask_of_infinities() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        mask = net.mask[: h.shape[1], : h.shape[1]]
        answer, _ = net.attention(h, h, h, attn_mask=mask, need_weights=True, average_attn_weights=False)
        return net.head((h + answer)[:, net.last])

    attention = nn.MultiheadAttention(16, 4, batch_first=True)
    net = module(forward, first=nn.Linear(8, 16), attention=attention, head=nn.Linear(16, CLASSES))
    net.register_buffer("mask", torch.full((10, 10), float("-inf")).triu(1), persistent=False)
    net.last = -1
    return net


@plain("other", lambda: torch.randn(BATCH, 6, 8))
def graph_in_a_sparse_buffer() -> nn.Module:
    def forward(net: Any, nodes: Tensor) -> Tensor:
        h = net.first(nodes)
        h = torch.stack([torch.sparse.mm(net.edges, each) for each in h])
        return net.head(F.relu(h).mean(1))

    net = module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))
    edges = (torch.rand(6, 6) < 0.5).double()
    net.register_buffer("edges", edges.to_sparse_coo())
    return net


# --- state ------------------------------------------------------------------------------------------------


@plain("recurrent", sequences(5, 8))
def streaming() -> nn.Module:
    """Goes on where the last call stopped."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.state if net.state is not None else x.new_zeros(len(x), 16)
        for t in range(x.shape[1]):
            h = net.cell(x[:, t], h)
        net.state = h.detach()
        return net.head(h)

    return module(forward, cell=nn.GRUCell(8, 16), state=None, head=nn.Linear(16, CLASSES))


@plain("recurrent", sequences(5, 8))
def streaming_by_buffer() -> nn.Module:
    """Goes on where the last call stopped, and torch knows."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.state.clone()
        for t in range(x.shape[1]):
            h = net.cell(net.first(x[:, t]), h)
        net.state.copy_(h.detach())
        return net.head(h)

    net = module(forward, first=nn.Linear(8, 12), cell=nn.GRUCell(12, 16), head=nn.Linear(16, CLASSES))
    net.register_buffer("state", torch.zeros(BATCH, 16))
    return net


@plain("mlp", vectors(8))
def buffer_made_in_the_first_call() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        if not hasattr(net, "scale"):
            net.register_buffer("scale", x.detach().abs().mean(0) + 1)
        return net.head(F.relu(net.first(x / net.scale)))

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def scaled_by_the_first_batch() -> nn.Module:
    """Sets its scale and shift by the first batch it sees, as flows do."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        if net.training and not bool(net.is_set):
            with torch.no_grad():
                net.shift.data.copy_(-h.mean(0))
                net.is_set.fill_(True)
        return net.head(F.relu(h + net.shift))

    net = module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))
    net.shift = nn.Parameter(torch.randn(16))
    net.register_buffer("is_set", torch.tensor(False))
    return net


# --- routes -----------------------------------------------------------------------------------------------


@plain("mlp", vectors(8))
def two_best_experts() -> nn.Module:
    """Each sample goes to two of four experts, and each expert takes only its own samples."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.relu(net.first(x))
        weights, chosen = net.gate(h).softmax(-1).topk(2, -1)
        total = torch.zeros_like(h)
        for number, expert in enumerate(net.experts):
            rows, places = (chosen == number).nonzero(as_tuple=True)
            total = total.index_add(0, rows, weights[rows, places, None] * expert(h[rows]))
        return net.head(h + total)

    experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
    return module(
        forward, first=nn.Linear(8, 16), gate=nn.Linear(16, 4), experts=experts, head=nn.Linear(16, CLASSES)
    )


@plain("mlp", vectors(8))
def branch_by_a_number() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        loud = h.abs().mean().item() > 0.4
        return net.head(torch.tanh(net.again(h)) if loud else F.relu(h))

    first, again, head = _layers(8, 16, 16, CLASSES)
    return module(forward, first=first, again=again, head=head)


class _Reversed(torch.autograd.Function):
    """The identity, whose gradient is turned round."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


@plain("mlp", vectors(8), output="label")
def gradient_reversal() -> nn.Module:
    def forward(net: Any, x: Tensor) -> dict[str, Tensor | None]:
        h = F.relu(net.first(x))
        return {"label": net.head(h), "domain": net.domain(_Reversed.apply(h)), "loss": None}

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES), domain=nn.Linear(16, 2))


# --- places -----------------------------------------------------------------------------------------------


@plain("convolutional", images(8))
def unfold_and_fold() -> nn.Module:
    """A linear layer on every patch, and the patches put together again."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.relu(net.first(x))
        patches = F.unfold(h, 3, padding=1)
        mixed = net.mix(patches.transpose(1, 2)).transpose(1, 2)
        h = F.fold(mixed, h.shape[-2:], 3, padding=1)
        return net.head(h.mean((2, 3)))

    parts = dict(first=nn.Conv2d(3, 4, 3, padding=1), mix=nn.Linear(36, 36))
    return module(forward, **parts, head=nn.Linear(4, CLASSES))


@plain("convolutional", images(8))
def attention_to_channels_and_places() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.relu(net.first(x))
        pooled = torch.stack([h.mean((2, 3)), h.amax((2, 3))])
        h = h * torch.sigmoid(net.channels(pooled).sum(0))[..., None, None]
        summary = torch.cat([h.mean(1, keepdim=True), h.amax(1, keepdim=True)], 1)
        return net.head((h * torch.sigmoid(net.places(summary))).flatten(2).mean(-1))

    parts = dict(first=nn.Conv2d(3, 16, 3), channels=_mlp(16, 4, 16), places=nn.Conv2d(2, 1, 3, padding=1))
    return module(forward, **parts, head=nn.Linear(16, CLASSES))


@plain("convolutional", images(8))
def convolutions_of_two_vectors() -> nn.Module:
    """Weights computed from smaller ones by parametrizations, cached while the network runs."""

    def forward(net: Any, x: Tensor) -> Tensor:
        with parametrize.cached():
            h = F.relu(net.second(F.relu(net.first(x))))
            h = h + F.relu(net.second(h))
        return net.head(h.mean((2, 3)))

    second = parametrizations.weight_norm(nn.Conv2d(8, 8, 3, padding=1))
    return module(forward, first=nn.Conv2d(3, 8, 3), second=second, head=nn.Linear(8, CLASSES))


@plain("other", lambda: (torch.randn(6, 8), torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 0, 4, 5, 3, 2]])))
def attention_over_edges() -> nn.Module:
    """A softmax over each node's neighbours."""

    def forward(net: Any, nodes: Tensor, edges: Tensor) -> Tensor:
        h = net.first(nodes)
        scores = F.leaky_relu(net.score(torch.cat([h[edges[0]], h[edges[1]]], -1))).squeeze(-1)
        most = scores.new_full((len(h),), -1e9).scatter_reduce(0, edges[1], scores, "amax")
        shares = (scores - most[edges[1]]).exp()
        total = shares.new_zeros(len(h)).index_add(0, edges[1], shares)
        sent = (shares / total[edges[1]]).unsqueeze(-1) * h[edges[0]]
        return net.head(F.relu(h + torch.zeros_like(h).index_add(0, edges[1], sent)))

    return module(forward, first=nn.Linear(8, 16), score=nn.Linear(32, 1), head=nn.Linear(16, CLASSES))


@plain("transformer", tokens(6, 20))
def nested_tensors_inside() -> nn.Module:
    def forward(net: Any, words: Tensor) -> Tensor:
        lengths = (words != 0).sum(1).clamp(min=1)
        ragged = torch.nested.nested_tensor(
            [net.table(row[: int(n)]) for row, n in zip(words, lengths, strict=True)]
        )
        padded = torch.nested.to_padded_tensor(ragged, 0.0)
        return net.head(F.relu(net.mix(padded)).sum(1))

    return module(forward, table=nn.Embedding(20, 8), mix=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


# --- what they are given, taken apart and handed on -----------------------------------------------------------


@plain("mlp", lambda: ({"left": torch.randn(BATCH, 8), "right": torch.randn(BATCH, 8)},))
def batch_that_is_emptied() -> nn.Module:
    def forward(net: Any, batch: dict[str, Tensor]) -> Tensor:
        return net.head(F.relu(net.first(batch.pop("left")) - net.first(batch.pop("right"))))

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


@dataclass
class _Sample:
    nodes: Tensor
    weights: Tensor


def _sample() -> tuple[_Sample]:
    return (_Sample(torch.randn(BATCH, 8).double(), torch.rand(BATCH, 1).double()),)


class _Hands(nn.Module):
    """Takes an object, sets what it has computed in it, and hands it on."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, sample: _Sample) -> _Sample:
        sample.nodes = F.relu(self.linear(sample.nodes)) * sample.weights
        return sample


@plain("mlp", _sample)
def object_that_is_handed_on() -> nn.Module:
    def forward(net: Any, sample: _Sample) -> Tensor:
        return net.head(net.second(net.first(sample)).nodes)

    return module(forward, first=_Hands(8, 16), second=_Hands(16, 16), head=nn.Linear(16, CLASSES))


def _sparse_graph() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 8), torch.eye(6, dtype=torch.float64).roll(1, 0).to_sparse_coo()


@plain("other", _sparse_graph)
def sparse_graph_given() -> nn.Module:
    def forward(net: Any, nodes: Tensor, edges: Tensor) -> Tensor:
        h = F.relu(torch.sparse.mm(edges, net.first(nodes)))
        return torch.sparse.mm(edges, net.head(h))

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


# --- layers that are reset, counted, borrowed ---------------------------------------------------------------------


@plain("mlp", vectors(8))
def norms_in_turn() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        net.turn = 1 - net.turn
        return net.head(F.relu(net.norms[net.turn](net.first(x))))

    norms = nn.ModuleList([nn.BatchNorm1d(16), nn.BatchNorm1d(16)])
    return module(forward, first=nn.Linear(8, 16), norms=norms, turn=0, head=nn.Linear(16, CLASSES))


class _Renewing(nn.Module):
    """Makes its parameters anew when it is reset."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.sizes = outputs, inputs
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.weight = nn.Parameter(torch.randn(self.sizes) / self.sizes[1] ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


@plain("mlp", vectors(8))
def parameters_made_by_reset() -> nn.Module:
    layers = _Renewing(8, 16), nn.ReLU(), _Renewing(16, 16), nn.ReLU(), nn.Linear(16, CLASSES)
    return nn.Sequential(*layers)


@plain("mlp", vectors(8))
def parameters_empty_and_whole() -> nn.Module:
    """One that is asked for its device only, and one that is an order."""

    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(F.relu(net.first(x.to(net.empty.device)[:, net.order])))

    net = module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))
    net.empty = nn.Parameter(torch.empty(0))
    net.order = nn.Parameter(torch.randperm(8), requires_grad=False)
    return net


class _Borrows(nn.Module):
    """Uses a layer of its parent's, whom it must not hold."""

    def __init__(self, parent: nn.Module) -> None:
        super().__init__()
        self.parent, self.own = weakref.ref(parent), nn.Linear(16, 16)

    def forward(self, h: Tensor) -> Tensor:
        parent: Any = self.parent()
        return F.relu(parent.shared(F.relu(self.own(h))))


@plain("mlp", vectors(8))
def layer_by_weak_reference() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(net.child(net.first(x)))

    net = module(forward, first=nn.Linear(8, 16), shared=nn.Linear(16, 16), head=nn.Linear(16, CLASSES))
    net.child = _Borrows(net)
    return net


@plain("mlp", vectors(8))
def layer_copied_in_the_forward_pass() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        slow = copy.deepcopy(net.first).requires_grad_(False)
        return net.head(F.relu(net.first(x)) + slow(x))

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def compiled_function_inside() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(net.gate(net.first(x)))

    gate = torch.compile(lambda h: h * torch.sigmoid(h), backend="eager")
    return module(forward, first=nn.Linear(8, 16), gate=gate, head=nn.Linear(16, CLASSES))


def networks() -> list[Network]:
    """All of them."""
    return list(_FOUND)
