"""Weights that act: what they answer, what they keep, and what they make themselves dense for."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

import covey
from covey.networks.layers import Axes
from covey.parts.acting_rank_one import RankOneWeight, outer
from covey.parts.low_rank import LowRankWeight
from covey.tensors import scale_gradient

torch.manual_seed(0)


def leaves(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


# (input, weight, groups): of each kind one where activations are scaled and one where the weight is made and dropped
LAYERS = {
    "linear, wide": ((2, 40), (40, 40), 1),
    "linear, many rows": ((2, 9, 5), (7, 5), 1),
    "convolution, small picture": ((1, 8, 2, 2), (12, 8, 3, 3), 1),
    "convolution, large picture": ((4, 8, 6, 6), (12, 8, 3, 3), 1),
    "grouped": ((1, 8, 2, 2), (12, 4, 3, 3), 2),
    "depthwise": ((4, 8, 6, 6), (8, 1, 3, 3), 8),
    "one dimension": ((3, 8, 9), (12, 4, 3), 2),
}


@pytest.mark.parametrize("gamma", [1.0, 0.25])
@pytest.mark.parametrize("which", LAYERS)
def test_values_gradients_and_second_derivatives(which: str, gamma: float) -> None:
    given, shape, groups = LAYERS[which]
    inputs = shape[1] * groups
    x, weight, r, s, bias = found = leaves(given, shape, (inputs,), (shape[0],), (shape[0],))
    results = []
    for w in (
        RankOneWeight(weight, r, s, Axes(shape[0], inputs, groups), gamma),
        scale_gradient(weight, gamma) * outer(weight, r, s, groups),
    ):
        if weight.ndim == 2:
            y = F.linear(x, w, bias)
        else:
            function = F.conv1d if weight.ndim == 3 else F.conv2d
            y = function(x, w, bias, padding=1, stride=2, groups=groups)
        first = torch.autograd.grad(y.square().sum(), found, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), found)
        results.append([y, *first, *second])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rows", [3, 90], ids=["scaled", "made"])
@pytest.mark.parametrize("missing", ["r", "s"])
def test_one_factor_may_be_missing(missing: str, rows: int) -> None:
    x, weight, r, s = found = leaves((rows, 30), (30, 30), (30,), (30,))
    factors = {"r": r, "s": s, missing: None}
    acting = F.linear(x, RankOneWeight(weight, factors["r"], factors["s"], Axes(30, 30)))
    made = F.linear(x, weight * outer(weight, factors["r"], factors["s"], 1))
    torch.testing.assert_close(acting, made)
    used = [t for t in found if t is not {"r": r, "s": s}[missing]]
    for a, b in zip(
        torch.autograd.grad(acting.sum(), used), torch.autograd.grad(made.sum(), used), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(6,), (5, 6), (4, 5, 6), (2, 4, 5, 6), (0, 5, 6)])
def test_a_low_rank_weight_takes_any_batch(shape: tuple[int, ...], turned: bool) -> None:
    x, weight, a, b, bias = found = leaves(shape, (7, 6), (2, 6), (7, 2), (7,))
    given = x.transpose(0, -2) if turned and x.ndim > 1 else x
    acting = F.linear(given, LowRankWeight(weight, a, b, None, None, 2.0, 0.0, Axes(7, 6)), bias)
    made = F.linear(given, weight + 2.0 * b @ a, bias)
    torch.testing.assert_close(acting, made)
    firsts = [torch.autograd.grad(y.square().sum(), found, create_graph=True) for y in (acting, made)]
    torch.testing.assert_close(*firsts)
    seconds = [torch.autograd.grad(sum(g.square().sum() for g in first), found) for first in firsts]
    torch.testing.assert_close(*seconds)


@pytest.mark.parametrize("own_bias", [False, True])
def test_low_rank_members_at_once_are_what_each_is(own_bias: bool) -> None:
    x, weight, a, b = leaves((3, 5, 6), (7, 6), (3, 2, 6), (3, 7, 2))
    (bias,) = leaves((3, 7) if own_bias else (7,))
    found = [x, weight, a, b, bias]

    def one(x: Tensor, a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        return F.linear(x, LowRankWeight(weight, a, b, None, None, 2.0, 0.0, Axes(7, 6)), bias)

    at_once = vmap(one, in_dims=(0, 0, 0, 0 if own_bias else None))(x, a, b, bias)
    rows = [bias[k] if own_bias else bias for k in range(3)]
    each = torch.stack([F.linear(x[k], weight + 2.0 * b[k] @ a[k], rows[k]) for k in range(3)])
    torch.testing.assert_close(at_once, each)
    gradients = [torch.autograd.grad(y.square().sum(), found) for y in (at_once, each)]
    torch.testing.assert_close(*gradients)


def test_a_low_rank_weight_takes_a_batch_of_gradients() -> None:
    x, weight, a, b = found = leaves((5, 6), (7, 6), (2, 6), (7, 2))
    directions = torch.randn(4, 5, 7, dtype=torch.float64)
    y = F.linear(x, LowRankWeight(weight, a, b, None, None, 2.0, 0.0, Axes(7, 6)))
    at_once = torch.autograd.grad(y, found, directions, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(y, found, one, retain_graph=True) for one in directions]
    torch.testing.assert_close(list(at_once), [torch.stack(rows) for rows in zip(*each, strict=True)])


@pytest.mark.parametrize(
    "use",
    [
        lambda w, x: x @ w.T,
        lambda w, x: torch.einsum("bi,oi->bo", x, w),
        lambda w, x: (w / w.norm()) @ x.T,
        lambda w, x: F.linear(w, x),
        lambda w, x: w.reshape(-1)[3] * x,
        lambda w, x: F.conv2d(x.view(1, 1, 3, 6), w[:2, :3].view(2, 1, 3, 1), padding="same"),
        lambda w, x: torch.cat([w, x]),
    ],
)
def test_whatever_else_is_done_gets_the_weight(use) -> None:
    x, weight, r, s = found = leaves((3, 6), (5, 6), (6,), (5,))
    made = use(weight * outer(weight, r, s, 1), x)
    acting = use(RankOneWeight(weight, r, s, Axes(5, 6)), x)
    assert type(acting) is Tensor
    for a, b in zip(torch.autograd.grad(acting.sum(), found, allow_unused=True),
                    torch.autograd.grad(made.sum(), found, allow_unused=True), strict=True):  # fmt: skip
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(acting, made)


def test_attention_s_packed_projection_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    r, s = leaves((8,), (24,))
    weight = attention.in_proj_weight
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    made = functional_call(attention, {"in_proj_weight": weight * outer(weight, r, s, 1)}, (x, x, x))[0]
    monkeypatch.setattr(RankOneWeight, "dense", lambda self: pytest.fail("the weight was made"))
    acting = functional_call(
        attention, {"in_proj_weight": RankOneWeight(weight, r, s, Axes(24, 8))}, (x, x, x)
    )[0]
    torch.testing.assert_close(acting, made)


class Turned(nn.Module):
    """A linear layer that stores its weight inputs first, as GPT-2's do."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


@pytest.mark.parametrize("rows", [2, 90], ids=["few rows", "many rows"])
@pytest.mark.parametrize("kind", ["rank one", "low rank", "shared"])
def test_a_weight_with_the_inputs_first_is_not_made(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias, r, s, a, b = found = leaves((rows, 20), (20, 30), (30,), (30,), (20,), (2, 30), (20, 2))
    how = Axes(20, 30)
    acting = {
        "rank one": RankOneWeight(weight, r, s, how),
        "low rank": LowRankWeight(weight, a, b, None, None, 2.0, 0.0, how),
        "shared": LowRankWeight(weight, a, b, r, s, 2.0, 0.0, how),
    }[kind]
    made = torch.addmm(bias, x, acting.dense())
    monkeypatch.setattr(type(acting), "dense", lambda self: pytest.fail("the weight was made"))
    acted = torch.addmm(bias, x, acting)
    torch.testing.assert_close(acted, made)
    gradients = [torch.autograd.grad(y.square().sum(), found, allow_unused=True) for y in (acted, made)]
    torch.testing.assert_close(*gradients)


def kept(model: nn.Module, x: Tensor) -> int:
    """Numbers that a step keeps for the backward pass, parameters excepted."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(x)
    return sum(seen.values())


@pytest.mark.parametrize(
    ("method", "most"),
    [
        (covey.BatchEnsemble(members=3), 0.1),
        (covey.Masksembles(members=3), 0.1),
        (covey.LowRank(members=3, rank=2), 0.1),
        (covey.SharedLowRank(members=3, rank=2), 0.1),
    ],
)
@pytest.mark.parametrize("kind", ["linear", "inputs first", "convolutions"])
def test_members_weights_are_not_kept(method: covey.Method, most: float, kind: str) -> None:
    if kind == "inputs first":
        network: nn.Module = nn.Sequential(
            Turned(64, 256), nn.ReLU(), Turned(256, 256), nn.ReLU(), nn.Linear(256, 4)
        )
        x = torch.randn(8, 64)
    elif kind == "linear":
        network = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
        )
        x = torch.randn(8, 64)
    else:
        network = nn.Sequential(
            nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 4)
        )
        x = torch.randn(2, 3, 8, 8)
    size = sum(p.numel() for p in network.parameters())
    ensemble = covey.convert(network, method, example=x).train()
    ensemble.run = "loop"
    above = (kept(ensemble, x) - 3 * kept(network, x)) / 3 / size
    assert above <= most
    if isinstance(method, covey.BatchEnsemble):
        ensemble.acting = False
        assert (kept(ensemble, x) - 3 * kept(network, x)) / 3 / size > 0.9


@pytest.mark.parametrize("method", [covey.BatchEnsemble(members=2), covey.LowRank(members=2, rank=2)])
def test_in_half_precision_both_forms_agree(method: covey.Method) -> None:
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16), nn.ReLU(), nn.Linear(16, 3)
    )
    x = torch.randn(4, 1, 8, 8)
    ensemble = covey.convert(network, method, example=x).train()
    for run in ("loop", "batched"):
        ensemble.run = run
        results = []
        for acting in (True, False):
            ensemble.acting = acting
            ensemble.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                outputs = ensemble(x)
            assert outputs.dtype == torch.bfloat16 or run == "batched"  # vmap adds biases as they are
            outputs.float().square().sum().backward()
            results.append([outputs.float(), *(p.grad for p in ensemble.parameters() if p.grad is not None)])
        assert all(g.dtype == torch.float32 for g in results[0])
        for a, b in zip(*results, strict=True):  # bfloat16 has 8 bits, and sums run in another order
            assert (a - b).abs().max() <= 0.05 * max(1e-3, b.abs().max())


@pytest.mark.parametrize("rows", [2, 90], ids=["scaled", "made"])
@pytest.mark.parametrize("kind", ["rank one", "low rank"])
def test_data_replaced_before_the_backward_pass_changes_nothing(kind: str, rows: int) -> None:
    x, weight, r, s, a, b = leaves((rows, 30), (30, 30), (30,), (30,), (2, 30), (30, 2))
    found = []
    for replaced in (False, True):
        acting = (
            RankOneWeight(weight, r, s, Axes(30, 30))
            if kind == "rank one"
            else LowRankWeight(weight, a, b, None, None, 2.0, 0.0, Axes(30, 30))
        )
        y = F.linear(x, acting).square().sum()
        if replaced:
            weight.data = 2 * weight.data
        found.append(torch.autograd.grad(y, [x, weight, *((r, s) if kind == "rank one" else (a, b))]))
    torch.testing.assert_close(*found)


# the first is one where the weight is made, as it is small beside its input
@pytest.mark.parametrize("rows", [40, 1], ids=["made", "scaled"])
@pytest.mark.parametrize("kind", ["linear", "convolution"])
@pytest.mark.parametrize("method", [covey.BatchEnsemble(members=2), covey.LowRank(members=2, rank=2)])
def test_what_a_layer_answers_may_be_changed_in_place(method: covey.Method, kind: str, rows: int) -> None:
    first = nn.Linear(6, 8) if kind == "linear" else nn.Conv2d(6, 8, 1)
    x = torch.randn(rows, 6) if kind == "linear" else torch.randn(rows, 6, 1, 1)
    network = nn.Sequential(first, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8, 3)).double()
    ensemble = covey.convert(network, method, example=x.double())
    trained = [tensor for tensor in ensemble.parameters() if tensor.requires_grad]
    gradients = []
    for run in ("loop", "batched"):
        ensemble.run = run
        found = torch.autograd.grad(ensemble(x.double()).square().sum(), trained)
        gradients.append(found)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


class _Table(nn.Module):
    """A table of words that is no nn.Embedding, as those with quantised weights are; square, so that nothing fails."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, words: Tensor) -> Tensor:
        return F.embedding(words, self.weight)


@pytest.mark.parametrize("method", [covey.BatchEnsemble(members=2), covey.LowRank(members=2, rank=2)])
def test_a_table_that_is_no_embedding_gives_rows_of_the_member_s_weight(method: covey.Method) -> None:
    network = nn.Sequential(_Table(), nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    words = torch.randint(0, 8, (4, 2))
    ensemble = covey.convert(network, method, example=words, check=True)
    with torch.no_grad():
        for part in ensemble.parameters():
            part.add_(0.1 * torch.randn_like(part))
    for k in range(2):
        torch.testing.assert_close(ensemble(words)[k], ensemble.member(k)(words), rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # raised inside torch's forward mode
@pytest.mark.parametrize("run", ["loop", "batched"])
@pytest.mark.parametrize("network", ["linear", "convolution"])
@pytest.mark.parametrize(
    "method", [covey.BatchEnsemble(members=2), covey.LowRank(members=2, rank=2)], ids=["rank-one", "low-rank"]
)
def test_forward_mode_and_batches_of_gradients(method: covey.Method, network: str, run: str) -> None:
    """Functions of one's own know nothing of forward mode: there the weight is made."""
    torch.manual_seed(0)
    layers = {
        "linear": [nn.Linear(9, 8), nn.Tanh(), nn.Linear(8, 3)],
        "convolution": [nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3)],
    }
    x = torch.randn(5, *{"linear": (9,), "convolution": (1, 3, 3)}[network]).double()
    ens = covey.convert(nn.Sequential(*layers[network]).double(), method, example=x)
    ens.run = run
    v = torch.randn_like(x)
    _, tangent = torch.func.jvp(ens, (x,), (v,))
    x.requires_grad_()
    outputs = ens(x)
    u = torch.zeros_like(outputs, requires_grad=True)
    (led_back,) = torch.autograd.grad(outputs, x, u, create_graph=True)
    torch.testing.assert_close(tangent, torch.autograd.grad(led_back, u, v)[0])
    wanted = [p for p in ens.parameters() if p.requires_grad]
    outputs = ens(x)
    directions = torch.randn(3, *outputs.shape).double()
    at_once = torch.autograd.grad(outputs, wanted, directions, is_grads_batched=True, retain_graph=True)
    for k, direction in enumerate(directions):
        alone = torch.autograd.grad(outputs, wanted, direction, retain_graph=True)
        torch.testing.assert_close([each[k] for each in at_once], list(alone))
