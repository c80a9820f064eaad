"""Networks that do what few do: their own gradients, routes, splines, flows, memories, teachers.

As in `plain_networks`, the name of the function is the name of the network, with spaces for underscores.
"""

from __future__ import annotations

import copy
import functools
import importlib
from typing import Any

import torch
import torch.nn.functional as F
from catalogue import BATCH, CLASSES, Network, images, importable, sequences, tokens, vectors
from plain_networks import listed, module
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

_FOUND: list[Network] = []
plain = functools.partial(listed, _FOUND)


# --- weights and gradients of their own -------------------------------------------------------------------


class _Soft(torch.autograd.Function):
    """The arc tangent, whose gradient is written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.atan()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient / (1 + x.square())


class _Sign(torch.autograd.Function):
    """The sign, whose gradient is passed straight through."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


@plain("mlp", vectors(8))
def gradient_of_its_own() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(_Soft.apply(net.first(x)))

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


@plain("convolutional", images(8))
def binarised_weights() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        weight = net.middle.weight
        binary = weight + (weight.sign() * weight.abs().mean() - weight).detach()
        h = F.conv2d(F.hardtanh(net.first(x)), binary, net.middle.bias, padding=1)
        return net.head(h.mean((2, 3)))

    parts = dict(first=nn.Conv2d(3, 8, 3), middle=nn.Conv2d(8, 8, 3, padding=1), head=nn.Linear(8, CLASSES))
    return module(forward, **parts)


@plain("mlp", vectors(8))
def weights_above_zero() -> nn.Module:
    """Monotonic in its input."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = torch.tanh(F.linear(x, F.softplus(net.first.weight), net.first.bias))
        return F.linear(h, F.softplus(net.head.weight), net.head.bias)

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


class _Tied(nn.Module):
    """A decoder whose weight is a property: the encoder's, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.bias = nn.Linear(8, 16), nn.Parameter(torch.zeros(8))
        self.head = nn.Linear(8, CLASSES)

    @property
    def decoder_weight(self) -> Tensor:
        return self.encoder.weight.t()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(F.linear(F.relu(self.encoder(x)), self.decoder_weight, self.bias)))


@plain("mlp", vectors(8), unscaled=(8,))
def weights_shared_by_a_property() -> nn.Module:
    return _Tied()


@plain("other", vectors(8))
def complex_parameters() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head((x.to(net.weight.dtype) @ net.weight).abs())

    net = module(forward, head=nn.Linear(16, CLASSES))
    net.weight = nn.Parameter(torch.randn(8, 16, dtype=torch.complex128) / 3)
    return net


class _Bayesian(nn.Module):
    """A linear layer whose weights are drawn in every call of training."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)
        self.spread = nn.Parameter(torch.full((outputs, inputs), -3.0))

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn_like(self.mean) if self.training else torch.zeros_like(self.mean)
        return F.linear(x, self.mean + F.softplus(self.spread) * noise)


@plain("mlp", vectors(8))
def weights_drawn_in_training() -> nn.Module:
    return nn.Sequential(_Bayesian(8, 16), nn.ReLU(), _Bayesian(16, 16), nn.ReLU(), nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def rezero() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x)
        for block, scale in zip(net.blocks, net.scales, strict=True):
            h = h + scale * F.relu(block(h))
        return net.head(h)

    blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
    scales = nn.ParameterList(nn.Parameter(torch.tensor(0.1)) for _ in range(3))
    return module(forward, first=nn.Linear(8, 16), blocks=blocks, scales=scales, head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def siren() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        for layer in net.layers:
            x = torch.sin(net.omega * layer(x))
        return net.head(x)

    layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 16)])
    return module(forward, layers=layers, omega=30.0, head=nn.Linear(16, CLASSES))


class _Splines(nn.Module):
    """A layer of learnt functions on edges, each a sum of B-splines (Kolmogorov-Arnold)."""

    def __init__(self, inputs: int, outputs: int, order: int = 2, cells: int = 4) -> None:
        super().__init__()
        self.order = order
        step = 2 / cells
        self.register_buffer("grid", torch.arange(-order, cells + order + 1) * step - 1)
        self.weight = nn.Parameter(torch.randn(outputs, inputs, cells + order) / 4)
        self.base = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        grid, x = self.grid, x.unsqueeze(-1)
        bases = ((x >= grid[:-1]) & (x < grid[1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x - grid[: -(k + 1)]) / (grid[k:-1] - grid[: -(k + 1)])
            right = (grid[k + 1 :] - x) / (grid[k + 1 :] - grid[1:-k])
            bases = left * bases[..., :-1] + right * bases[..., 1:]
        return F.linear(F.silu(x.squeeze(-1)), self.base) + torch.einsum("bic,oic->bo", bases, self.weight)


@plain("mlp", lambda: torch.rand(BATCH, 8) * 2 - 1)
def splines_on_edges() -> nn.Module:
    return nn.Sequential(_Splines(8, 16), _Splines(16, CLASSES))


@plain("mlp", vectors(8))
def radial_bases() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(torch.exp(-torch.cdist(net.first(x), net.centres).square()))

    net = module(forward, first=nn.Linear(8, 12), head=nn.Linear(16, CLASSES))
    net.centres = nn.Parameter(torch.randn(16, 12))
    return net


@plain("mlp", vectors(8), narrow=(("maker.weight", (9, 8)), ("maker.bias", (9,))))
def hypernetwork_inside() -> nn.Module:
    """A small network makes another layer's weights, one set for each sample."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.relu(net.first(x))
        width = h.shape[-1]
        weights = net.maker(x).view(-1, width, width)
        return net.head(torch.bmm(weights, h.unsqueeze(-1)).squeeze(-1))

    return module(forward, first=nn.Linear(8, 6), maker=nn.Linear(8, 36), head=nn.Linear(6, CLASSES))


@plain("mlp", vectors(8))
def energy_and_its_gradient() -> nn.Module:
    """Answers with what its energy's gradient says, as force fields do."""

    def forward(net: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            at = x.detach().requires_grad_()
            energy = net.energy(at).sum()
            (force,) = torch.autograd.grad(energy, at, create_graph=True)
        return net.head(force)

    energy = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    return module(forward, energy=energy, head=nn.Linear(8, CLASSES))


@plain("mlp", vectors(8))
def lazy_layers_that_ran() -> nn.Module:
    net = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyBatchNorm1d(), nn.LazyLinear(CLASSES))
    net(torch.randn(BATCH, 8))
    return net


# --- routes and loops -------------------------------------------------------------------------------------


@plain("mlp", lambda: {"x": torch.randn(BATCH, 8), "task": "right"})
def routed_by_a_word() -> nn.Module:
    def forward(net: Any, x: Tensor, task: str = "left") -> Tensor:
        return net.heads[task](F.relu(net.first(x)))

    heads = nn.ModuleDict({"left": nn.Linear(16, CLASSES), "right": nn.Linear(16, CLASSES)})
    return module(forward, first=nn.Linear(8, 16), heads=heads)


@plain("mlp", vectors(8))
def fixed_point() -> nn.Module:
    """Goes on until nothing changes: how often, the data decide."""

    def forward(net: Any, x: Tensor) -> Tensor:
        given = net.first(x)
        h = torch.zeros_like(given)
        for _ in range(50):
            new = torch.tanh(0.5 * net.again(h) + given)
            if (new - h).abs().max() < 1e-3:
                break
            h = new
        return net.head(h)

    return module(forward, first=nn.Linear(8, 16), again=nn.Linear(16, 16), head=nn.Linear(16, CLASSES))


@plain("recurrent", sequences(5, 8))
def gru_cells() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], net.cell.hidden_size)
        for t in range(x.shape[1]):
            h = net.cell(net.first(x[:, t]), h)
        return net.head(h)

    return module(forward, first=nn.Linear(8, 12), cell=nn.GRUCell(12, 16), head=nn.Linear(16, CLASSES))


@plain("recurrent", lambda: (torch.randn(BATCH, 6, 8), torch.tensor([6, 5, 3, 2])))
def packed_sequences() -> nn.Module:
    def forward(net: Any, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(net.first(x), lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(net.lstm(packed)[0], batch_first=True)
        return net.head(outputs.sum(1))

    lstm = nn.LSTM(12, 16, batch_first=True)
    return module(forward, first=nn.Linear(8, 12), lstm=lstm, head=nn.Linear(16, CLASSES))


@plain("recurrent", sequences(5, 8))
def spiking_neurons() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        potential = torch.zeros_like(net.first(x[:, 0]))
        spikes = []
        for t in range(x.shape[1]):
            potential = net.decay * potential + net.first(x[:, t])
            spike = _Sign.apply(potential - 1).clamp(min=0)
            potential = potential * (1 - spike)
            spikes.append(spike)
        return net.head(torch.stack(spikes).mean(0) + 0.1 * potential)

    net = module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))
    net.decay = nn.Parameter(torch.tensor(0.9))
    return net


@plain("recurrent", sequences(6, 8))
def state_space() -> nn.Module:
    """A diagonal linear recurrence with gates that depend on the input."""

    def forward(net: Any, x: Tensor) -> Tensor:
        u, gate = net.first(x).chunk(2, -1)
        decay = torch.exp(-F.softplus(gate) * net.rates.exp())
        h = torch.zeros_like(u[:, 0])
        states = []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + u[:, t]
            states.append(h)
        return net.head(torch.stack(states, 1).mean(1))

    net = module(forward, first=nn.Linear(8, 32), head=nn.Linear(16, CLASSES))
    net.rates = nn.Parameter(torch.randn(16) / 4)
    return net


# --- convolutions -----------------------------------------------------------------------------------------


class _Masked(nn.Conv2d):
    """A convolution that does not see what comes later, written as most write it: in place."""

    def __init__(self, kind: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        height, width = self.weight.shape[2:]
        mask = torch.ones_like(self.weight)
        mask[:, :, height // 2, width // 2 + (kind == "B") :] = 0
        mask[:, :, height // 2 + 1 :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data *= self.mask
        return super().forward(x)


@plain("convolutional", images(8, 1))
def masked_convolutions() -> nn.Module:
    first, second = _Masked("A", 1, 8, 5, padding=2), _Masked("B", 8, 8, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Conv2d(8, CLASSES, 1))


@plain("convolutional", images(8))
def capsules() -> nn.Module:
    """Dynamic routing between a layer of capsules and one for each class."""

    def squash(s: Tensor) -> Tensor:
        square = s.square().sum(-1, keepdim=True)
        return square / (1 + square) * s / (square + 1e-8).sqrt()

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.second(F.relu(net.first(x)))
        capsules = squash(h.flatten(2).transpose(1, 2))
        votes = torch.einsum("bni,coi->bnco", capsules, net.weight)
        logits = torch.zeros_like(votes[..., 0])
        for _ in range(3):
            answer = squash((logits.softmax(-1).unsqueeze(-1) * votes).sum(1))
            logits = logits + (votes * answer.unsqueeze(1)).sum(-1)
        return net.head(answer.flatten(1))

    net = module(
        forward, first=nn.Conv2d(3, 8, 3), second=nn.Conv2d(8, 8, 3, stride=2), head=nn.Linear(20, CLASSES)
    )
    net.weight = nn.Parameter(torch.randn(5, 4, 8) / 3)
    return net


@plain("convolutional", images(8), unscaled=(2,))
def spatial_transformer() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.relu(net.first(x))
        offsets = torch.tanh(net.offsets(h)).permute(0, 2, 3, 1) / 4
        identity = torch.eye(2, 3, dtype=x.dtype).expand(len(x), 2, 3)
        grid = F.affine_grid(identity, list(h.shape), align_corners=False) + offsets
        return net.head(F.grid_sample(h, grid, align_corners=False).mean((2, 3)))

    parts = dict(first=nn.Conv2d(3, 8, 3, padding=1), offsets=nn.Conv2d(8, 2, 3, padding=1))
    return module(forward, **parts, head=nn.Linear(8, CLASSES))


class _Attending(nn.Module):
    """Attention over the places of a map, as denoisers have it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.qkv, self.out = nn.Conv1d(width, 3 * width, 1), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x).reshape(b, c, h * w)).chunk(3, dim=1)
        weights = torch.softmax(q.transpose(1, 2) @ k * c**-0.5, -1)
        return x + self.out(v @ weights.transpose(1, 2)).reshape(b, c, h, w)


@plain("convolutional", lambda: (torch.randn(BATCH, 3, 8, 8), torch.rand(BATCH)))
def unet_with_attention() -> nn.Module:
    def forward(net: Any, x: Tensor, time: Tensor) -> Tensor:
        shift = net.time(torch.stack([time.sin(), time.cos()], -1))[:, :, None, None]
        top = F.silu(net.first(x))
        low = net.attend(F.silu(net.down(top)) + shift)
        return net.last(torch.cat([top, F.silu(net.up(low))], 1))

    parts = dict(first=nn.Conv2d(3, 8, 3, padding=1), down=nn.Conv2d(8, 16, 3, stride=2, padding=1))
    time = nn.Sequential(nn.Linear(2, 16), nn.SiLU(), nn.Linear(16, 16))
    up = nn.ConvTranspose2d(16, 8, 2, stride=2)
    return module(forward, **parts, time=time, attend=_Attending(16), up=up, last=nn.Conv2d(16, CLASSES, 1))


# --- words, graphs and sets -------------------------------------------------------------------------------


@plain("mlp", tokens(6, 20))
def sparse_embeddings() -> nn.Module:
    def forward(net: Any, words: Tensor) -> Tensor:
        return net.head(F.relu(net.table(words).mean(1)))

    return module(forward, table=nn.Embedding(20, 16, sparse=True), head=nn.Linear(16, CLASSES))


@plain(
    "transformer", lambda: (torch.randn(BATCH, 4, 16), torch.randn(BATCH, 6, 10), torch.randn(BATCH, 6, 12))
)
def attention_of_other_widths() -> nn.Module:
    def forward(net: Any, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        h = net.first(x)
        answer, _ = net.attention(h, keys, values, need_weights=False)
        return net.head((h + answer).mean(1))

    attention = nn.MultiheadAttention(16, 4, kdim=10, vdim=12, batch_first=True)
    return module(forward, first=nn.Linear(16, 16), attention=attention, head=nn.Linear(16, CLASSES))


@plain("transformer", tokens(6, 20))
def one_layer_many_times() -> nn.Module:
    """As ALBERT does."""

    def forward(net: Any, words: Tensor) -> Tensor:
        h = net.widen(net.table(words))
        for _ in range(3):
            h = net.layer(h)
        return net.head(h[:, 0])

    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True, norm_first=True)
    return module(
        forward, table=nn.Embedding(20, 8), widen=nn.Linear(8, 16), layer=layer, head=nn.Linear(16, CLASSES)
    )


def _edges() -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(6, 8), torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]]), torch.arange(6) // 3


@plain("other", _edges)
def graphs_by_scatter() -> nn.Module:
    def forward(net: Any, nodes: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        h = F.relu(net.first(nodes))
        for layer in net.layers:
            sent = layer(h)[edges[0]]
            index = edges[1].unsqueeze(-1).expand_as(sent)
            h = F.relu(h + torch.zeros_like(h).scatter_add(0, index, sent))
        pooled = h.new_zeros(int(graph.max()) + 1, h.shape[1]).index_add(0, graph, h)
        return net.head(pooled)

    layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
    return module(forward, first=nn.Linear(8, 16), layers=layers, head=nn.Linear(16, CLASSES))


@plain("mlp", lambda: (torch.randint(0, 5, (BATCH, 3)), torch.randn(BATCH, 4)))
def table_of_words_and_numbers() -> nn.Module:
    """Tokens for categories and for numbers, with attention between them."""

    def forward(net: Any, words: Tensor, numbers: Tensor) -> Tensor:
        kinds = torch.stack([table(words[:, i]) for i, table in enumerate(net.tables)], 1)
        values = numbers.unsqueeze(-1) * net.weight + net.bias
        return net.head(net.layer(torch.cat([kinds, values], 1)).mean(1))

    tables = nn.ModuleList(nn.Embedding(5, 16) for _ in range(3))
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    net = module(forward, tables=tables, layer=layer, head=nn.Linear(16, CLASSES))
    net.weight, net.bias = nn.Parameter(torch.randn(4, 16) / 4), nn.Parameter(torch.zeros(4, 16))
    return net


# --- flows, codes, memories and teachers --------------------------------------------------------------------


class _Coupling(nn.Module):
    """A step of a flow: half of the variables are scaled and shifted by what the other half says."""

    def __init__(self, width: int, turn: bool) -> None:
        super().__init__()
        self.turn = turn
        self.net = nn.Sequential(nn.Linear(width // 2, 16), nn.ReLU(), nn.Linear(16, width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, moved = x.chunk(2, -1)
        if self.turn:
            kept, moved = moved, kept
        scale, shift = self.net(kept).chunk(2, -1)
        scale = torch.tanh(scale)
        moved = moved * scale.exp() + shift
        both = (moved, kept) if self.turn else (kept, moved)
        return torch.cat(both, -1), scale.sum(-1)


@plain("other", vectors(8), output=0, unscaled=(4, 8))
def flow_with_determinants() -> nn.Module:
    def forward(net: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.zeros(len(x), dtype=x.dtype)
        for step in net.steps:
            x, determinant = step(x)
            total = total + determinant
        return x, total

    return module(forward, steps=nn.ModuleList(_Coupling(8, bool(i % 2)) for i in range(4)))


class _Codes(nn.Module):
    """Vectors become the nearest codes, which follow them by a moving average in train mode."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(count, width))
        self.register_buffer("sizes", torch.ones(count))

    def forward(self, h: Tensor) -> Tensor:
        nearest = torch.cdist(h, self.codes).argmin(-1)
        if self.training:
            chosen = F.one_hot(nearest, len(self.codes)).to(h.dtype)
            with torch.no_grad():
                self.sizes.mul_(0.9).add_(0.1 * chosen.sum(0))
                self.codes.mul_(0.9).add_(0.1 * chosen.t() @ h / self.sizes.unsqueeze(-1).clamp(min=0.1))
        return h + 0.5 * (self.codes[nearest] - h).detach()


@plain("mlp", vectors(8))
def codes_that_follow() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.ReLU(),
        nn.Linear(16, 6),
        _Codes(12, 6),
        nn.Linear(6, 16),
        nn.ReLU(),
        nn.Linear(16, CLASSES),
    )


@plain("mlp", vectors(8))
def memory_of_the_last() -> nn.Module:
    """A queue of features that the next batches are compared with."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.normalize(net.body(x), dim=-1)
        near = h @ net.queue.t().clone()
        if net.training:
            with torch.no_grad():
                place = int(net.place)
                net.queue[place : place + len(h)] = h
                net.place.copy_((net.place + len(h)) % len(net.queue))
        return net.head(torch.cat([h, near], -1))

    body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
    net = module(forward, body=body, head=nn.Linear(38, CLASSES))
    net.register_buffer("queue", F.normalize(torch.randn(32, 6), dim=-1))
    net.register_buffer("place", torch.zeros((), dtype=torch.long))
    return net


class _Taught(nn.Module):
    """A student with its teacher inside, who is not trained and follows it between steps."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.head = nn.Linear(32, CLASSES)

    @torch.no_grad()
    def follow(self) -> None:
        for own, other in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            own.mul_(0.9).add_(0.1 * other)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            target = self.teacher(x)
        return self.head(torch.cat([self.student(x), target], -1))


@plain("mlp", vectors(8))
def teacher_inside() -> nn.Module:
    return _Taught()


@plain("mlp", vectors(8))
def choices_by_gumbel() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        logits = net.first(x)
        choice = F.gumbel_softmax(logits, tau=0.5) if net.training else logits.softmax(-1)
        return net.head(choice)

    return module(forward, first=nn.Linear(8, 16), head=nn.Linear(16, CLASSES))


# --- weights by other ways ---------------------------------------------------------------------------------


class _Product(torch.autograd.Function):
    """A linear layer as torch's tutorial writes it: gradients by hand, of the weights too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x.mm(weight.t()) + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient.mm(weight), gradient.t().mm(x), gradient.sum(0)


_product = _Product.apply


@plain("mlp", vectors(8))
def linear_layers_by_hand() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = F.relu(_product(x, net.first.weight, net.first.bias))
        return net.head(F.relu(_product(h, net.second.weight, net.second.bias)))

    parts = dict(first=nn.Linear(8, 16), second=nn.Linear(16, 16))
    return module(forward, **parts, head=nn.Linear(16, CLASSES))


@plain("mlp", vectors(8))
def scaled_by_a_functional_call() -> nn.Module:
    def forward(net: Any, x: Tensor) -> Tensor:
        scaled = {name: tensor * net.scale for name, tensor in net.body.named_parameters()}
        return net.head(F.relu(torch.func.functional_call(net.body, scaled, (x,))))

    body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
    net = module(forward, body=body, head=nn.Linear(16, CLASSES))
    net.scale = nn.Parameter(torch.tensor(0.9))
    return net


@plain("mlp", vectors(8))
def gradient_step_inside() -> nn.Module:
    """A layer's weight takes a step on each sample before it is used."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = torch.tanh(net.first(x))
        step = torch.func.grad(lambda weight, key, value: (key @ weight - value).square().mean())
        steps = torch.func.vmap(step, in_dims=(None, 0, 0))(net.weight, net.keys(h), net.values(h))
        return net.head(torch.einsum("bi,bij->bj", h, net.weight - steps))

    parts = dict(first=nn.Linear(8, 12), keys=nn.Linear(12, 12), values=nn.Linear(12, 12))
    net = module(forward, **parts, head=nn.Linear(12, CLASSES))
    net.weight = nn.Parameter(torch.randn(12, 12) / 4)
    return net


@plain("mlp", vectors(8))
def equilibrium_with_a_hook() -> nn.Module:
    """Its backward pass goes to a fixed point as well."""

    def forward(net: Any, x: Tensor) -> Tensor:
        given = net.first(x)
        with torch.no_grad():
            h = torch.zeros_like(given)
            for _ in range(30):
                h = torch.tanh(0.3 * net.again(h) + given)
        h = torch.tanh(0.3 * net.again(h) + given)
        if h.requires_grad:
            start = h.detach().requires_grad_()
            end = torch.tanh(0.3 * net.again(start) + given)
            h.register_hook(functools.partial(_settled, start, end))
        return net.head(h)

    return module(forward, first=nn.Linear(8, 16), again=nn.Linear(16, 16), head=nn.Linear(16, CLASSES))


def _settled(start: Tensor, end: Tensor, gradient: Tensor) -> Tensor:
    found = gradient
    for _ in range(20):
        found = torch.autograd.grad(end, start, found, retain_graph=True)[0] + gradient
    return found


@plain("recurrent", sequences(8, 6))
def state_space_by_fourier_transform() -> nn.Module:
    """A long convolution whose kernel is a sum of decaying waves."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.first(x).transpose(1, 2)
        length = h.shape[-1]
        rates = torch.complex(-net.decay.exp(), net.frequency)
        waves = torch.exp(rates.unsqueeze(-1) * torch.arange(length, dtype=x.dtype))
        kernel = torch.einsum("hn,hnl->hl", torch.view_as_complex(net.mix), waves).real
        spectrum = torch.fft.rfft(h, n=2 * length) * torch.fft.rfft(kernel, n=2 * length)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length]
        return net.head(F.gelu(net.out(y) + h).mean(-1))

    net = module(forward, first=nn.Linear(6, 12), out=nn.Conv1d(12, 12, 1), head=nn.Linear(12, CLASSES))
    net.decay, net.frequency = nn.Parameter(torch.randn(12, 4)), nn.Parameter(torch.rand(12, 4) * 3)
    net.mix = nn.Parameter(torch.randn(12, 4, 2))
    return net


# --- of other packages ------------------------------------------------------------------------------------


def _peft() -> nn.Module:
    peft = importlib.import_module("peft")
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    config = peft.LoraConfig(r=4, target_modules=["2"], modules_to_save=["4"], lora_dropout=0.1)
    return peft.get_peft_model(net, config)


def _features_only() -> nn.Module:
    timm = importlib.import_module("timm")

    def forward(net: Any, x: Tensor) -> Tensor:
        maps = net.body(x)
        return net.head(torch.cat([each.mean((2, 3)) for each in maps], -1))

    body = timm.create_model("resnet10t", features_only=True, out_indices=(1, 2, 3), pretrained=False)
    return module(forward, body=body, head=nn.Linear(sum(body.feature_info.channels()), CLASSES))


def networks() -> list[Network]:
    """All of them."""
    found = list(_FOUND)
    if importable("peft"):
        found.append(Network("peft low-rank adapters", "mlp", "peft", _peft, vectors(8)))
    if importable("timm"):
        found.append(Network("timm features only", "convolutional", "timm", _features_only, images(32)))
    return found
