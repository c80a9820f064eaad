"""What unusual networks taught: each a property that once did not hold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import covey
from covey.errors import ConversionError
from covey.networks.anatomy import examine
from covey.surgery import narrow


class Words(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4, sparse=sparse), nn.Linear(4, 3)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.table(words).mean(1).tanh())


@pytest.mark.parametrize(
    "method",
    [
        covey.DeepEnsemble(members=2),
        covey.BatchEnsemble(members=2),
        covey.TabM(members=2),
        covey.MIMO(members=2),
    ],
    ids=lambda method: type(method).__name__,
)
def test_sparse_gradients_are_those_of_a_dense_table(method: covey.Method) -> None:
    words, targets = torch.randint(0, 7, (4, 5)), torch.tensor([0, 1, 2, 0])
    torch.manual_seed(0)
    dense = Words(sparse=False)
    sparse = Words(sparse=True)
    sparse.load_state_dict(dense.state_dict())
    found = []
    for network in (dense, sparse):
        ens = covey.convert(network, method, example=words)
        ens.run = "loop"
        torch.manual_seed(1)
        ens.loss(words, targets).backward()
        found.append({name: p.grad for name, p in ens.named_parameters()})
        assert ens.member(0).table.sparse is network.table.sparse
    for name, gradient in found[0].items():
        assert gradient is not None
        other = found[1][name].to_dense()
        torch.testing.assert_close(other, gradient)


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.randn(4, 6))
        self.first, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first((x @ self.frequencies).sin()).relu())


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.cell, self.head = nn.Linear(4, 5), nn.GRUCell(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 6)
        for t in range(x.shape[1]):
            h = self.cell(self.first(x[:, t]), h)
        return self.head(h)


@pytest.mark.parametrize(
    ("network", "example"),
    [(Features, torch.randn(3, 4)), (Cells, torch.randn(3, 2, 4))],
    ids=["features", "zeros"],
)
def test_neither_constants_nor_zeros_are_taken_for_the_first_layer(
    network: type[nn.Module], example: Tensor
) -> None:
    assert examine(network(), example=example).stem == ("first.weight", "first.bias")


class Drawn(nn.Module):
    """Two layers whose widths are the same only because of what train mode does with them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.spread = nn.Linear(6, 16), nn.Linear(16, 8), nn.Linear(16, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).relu()
        mean, spread = self.mean(h), self.spread(h)
        return self.head(mean + spread.exp() * torch.randn_like(mean) if self.training else mean)


def test_widths_that_only_train_mode_ties_are_narrowed_together() -> None:
    small = narrow(Drawn(), 0.5, torch.randn(2, 6)).network
    assert small.mean.weight.shape == small.spread.weight.shape == (4, 8)
    assert small.train()(torch.randn(2, 6)).shape == (2, 3)


class Near(nn.Module):
    """Distances to centres, weighted by a bump on each of a grid's points."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.centres = nn.Linear(6, 8), nn.Parameter(torch.randn(12, 8))
        self.register_buffer("grid", torch.linspace(0, 1, 6))
        self.mix, self.head = nn.Parameter(torch.randn(12, 5)), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        far = torch.cdist(self.first(x), self.centres)
        bumps = ((far.unsqueeze(-1) >= self.grid[:-1]) & (far.unsqueeze(-1) < self.grid[1:])).to(x.dtype)
        return self.head((-far).exp() + torch.einsum("bic,ic->bi", bumps, self.mix))


def test_points_of_a_grid_are_no_width_and_centres_are() -> None:
    small = narrow(Near(), 0.5, torch.randn(2, 6)).network
    assert small.centres.shape == (6, 4)
    assert small.mix.shape == (6, 5)
    assert small.grid.shape == (6,)


class Heads(nn.Module):
    """Attention whose number of heads and width of a head are both axes of a tensor."""

    def __init__(self, width: int = 16, n_head: int = 4, d_head: int = 4) -> None:
        super().__init__()
        self.n_head, self.d_head = n_head, d_head
        self.table, self.head = nn.Linear(6, width), nn.Linear(width, 3)
        self.q_head, self.post = nn.Linear(width, n_head * d_head), nn.Linear(n_head * d_head, width)
        self.scale = nn.Parameter(torch.randn(n_head, d_head))

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        batch, length, _ = h.shape
        q = self.q_head(h).view(batch, length, self.n_head, self.d_head)
        weights = torch.einsum("bind,bjnd->bnij", q + self.scale, q).softmax(-1)
        mixed = torch.einsum("bnij,bjnd->bind", weights, q)
        return self.head(self.post(mixed.reshape(batch, length, self.n_head * self.d_head)).mean(1))


def test_heads_and_their_width_are_not_both_scaled() -> None:
    small = narrow(Heads(), 0.5, torch.randn(2, 5, 6)).network
    assert small.q_head.weight.shape == (8, 8)
    assert small.scale.numel() == 8


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, dtype=torch.complex64))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x.to(self.weight.dtype) @ self.weight).abs())


def test_signs_are_drawn_for_complex_weights_too() -> None:
    x = torch.randn(3, 4)
    for method in (covey.TabM(members=3), covey.BatchEnsemble(members=3, init="sign")):
        ens = covey.convert(Complex(), method, example=x)
        assert set(ens.parts["rank_one"].r["weight"].flatten().tolist()) <= {1, -1}
        torch.testing.assert_close(ens.eval()(x)[1], ens.member(1).eval()(x))


class Even(nn.Module):
    """Does not feel the sign of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(6, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x @ self.a).square() + (x @ self.b).square())


def test_a_mixture_of_one_template_each_is_avoided() -> None:
    x = torch.randn(5, 6)
    outputs = covey.convert(Even(), covey.Mixture(), example=x).eval()(x)
    assert all((outputs[0] - other).abs().max() > 1e-3 for other in outputs[1:])


class Taught(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student, self.head = nn.Linear(4, 4), nn.Linear(8, 3)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.teacher.weight.mul_(0.9).add_(0.1 * self.student.weight)
        return self.head(torch.cat([self.student(x), self.teacher(x)], -1))


def test_a_teacher_that_follows_in_the_forward_pass_is_refused() -> None:
    with pytest.raises(ConversionError, match=r"'teacher.weight' in the forward pass.*register_buffer"):
        covey.convert(Taught(), covey.MultiHead(members=2), example=torch.randn(2, 4))


class Queue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("last", torch.zeros(4, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        if self.training:
            self.last[: len(h)] = h.detach()
        return self.head(F.relu(h))


def test_a_network_that_takes_few_samples_is_told_of_repeats() -> None:
    x = torch.randn(4, 4)
    with pytest.raises(ConversionError, match=r"every sample stands 4 times.*repeats=1"):
        covey.convert(Queue(), covey.MIMO(), example=x)
    ens = covey.convert(Queue(), covey.MIMO(repeats=1), example=x)
    ens.loss(x, torch.tensor([0, 1, 2, 0])).backward()


class Halved(nn.Module):
    """Changes an activation in eval mode after it was used, so that there it has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x).exp()
        answer = self.head(h)
        if not self.training:
            h.detach().mul_(0.5)
        return answer


def test_a_network_without_gradient_in_eval_mode_can_be_asked_with_gradients_on() -> None:
    x = torch.randn(3, 4)
    with pytest.raises(RuntimeError, match="inplace"):
        Halved().eval()(x).sum().backward()
    ens = covey.convert(Halved(), covey.DeepEnsemble(members=2), example=x).eval()
    assert ens(x).shape == (2, 3, 3)  # where "auto" measures
    ens.train().loss(x, torch.tensor([0, 1, 2])).backward()


class LayerDrop(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.body, self.head = p, nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and torch.rand([]) < self.p):
            x = self.body(x)
        return self.head(x)


def test_random_numbers_that_decide_nothing_make_no_draws() -> None:
    x = torch.randn(2, 4)
    with pytest.raises(ConversionError, match=r"same whatever they are.*probability above 0"):
        covey.convert(LayerDrop(0.0), covey.MCDropout(), example=x)
    outputs = covey.convert(LayerDrop(0.5), covey.MCDropout(members=20), example=x).eval()(x)
    assert any(not torch.equal(outputs[0], other) for other in outputs[1:])


class Product(torch.autograd.Function):
    """A linear layer whose gradients are written by hand, as in torch's tutorial."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x, gradient.sum(0)


class ByHand(nn.Module):
    """Uses it, or torch's own; the second layer is run again in the backward pass."""

    def __init__(self, by_hand: bool = True) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.product: Callable[..., Tensor] = Product.apply if by_hand else nn.functional.linear

    def again(self, h: Tensor) -> Tensor:
        return self.product(h, self.second.weight, self.second.bias)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.product(x, self.first.weight, self.first.bias))
        return self.head(checkpoint(self.again, h, use_reentrant=False))


@pytest.mark.parametrize(
    "method", [covey.BatchEnsemble(), covey.Masksembles(), covey.LowRank()], ids=lambda m: type(m).__name__
)
def test_functions_with_gradients_of_their_own_train_weights_that_act(method: covey.Method) -> None:
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    gradients = []
    for by_hand in (True, False):
        torch.manual_seed(0)
        ensemble = covey.convert(ByHand(by_hand), method, example=x).train()
        ensemble.run = "loop"
        ensemble.loss(x, y).backward()
        gradients.append({name: parameter.grad for name, parameter in ensemble.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], msg=name)


class Renewing(nn.Module):
    """A layer whose reset makes new parameters, which are float32 whatever the old ones were."""

    def __init__(self) -> None:
        super().__init__()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


class Ordered(nn.Module):
    """Has an order of its features as a frozen parameter, and an empty one to ask for its device."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.out = Renewing(), Renewing(), nn.Linear(4, 3)
        self.again.weight = self.first.weight
        self.order = nn.Parameter(torch.tensor([2, 0, 1, 3]), requires_grad=False)
        self.empty = nn.Parameter(torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.again(self.first(x.to(self.empty.device))[:, self.order])))


def test_fresh_members_keep_types_ties_and_whole_numbers() -> None:
    network, x = Ordered().double(), torch.randn(5, 4, dtype=torch.float64)
    ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example=x)
    member = ensemble.member(1)
    assert member.again.weight is member.first.weight
    assert member.first.weight.dtype == torch.float64
    assert not torch.equal(member.first.weight, network.first.weight)
    assert member.order.tolist() == [2, 0, 1, 3]


def test_an_empty_parameter_does_not_keep_a_network_from_being_packed() -> None:
    network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    network.empty = nn.Parameter(torch.empty(0))
    ensemble = covey.convert(network, covey.Packed(members=2), example=torch.randn(5, 4))
    assert ensemble.member(0).empty.numel() == 0


class Propagates(nn.Module):
    """A graph network that takes its graph as a sparse matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        return torch.sparse.mm(graph, self.out(torch.sparse.mm(graph, self.first(x)).relu()))


@pytest.mark.parametrize(
    "method", [covey.BatchEnsemble(), covey.DeepEnsemble()], ids=lambda m: type(m).__name__
)
def test_sparse_inputs_are_taken(method: covey.Method) -> None:
    x, graph = torch.randn(6, 4), torch.eye(6).roll(1, 0).to_sparse_coo()
    ensemble = covey.convert(Propagates(), method, example=(x, graph)).eval()
    assert ensemble.checked.startswith("checked in eval and train mode")
    torch.testing.assert_close(ensemble(x, graph)[1], ensemble.member(1)(x, graph))


class TakesTurns(nn.Module):
    """Uses one norm or the other, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norms = nn.ModuleList([nn.BatchNorm1d(8), nn.BatchNorm1d(8)])
        self.turn = 0

    def forward(self, x: Tensor) -> Tensor:
        self.turn = 1 - self.turn
        return self.out(self.norms[self.turn](self.first(x)).relu())


def test_a_network_that_takes_turns_is_no_difference() -> None:
    x = torch.randn(6, 4)
    ensemble = covey.convert(TakesTurns(), covey.DeepEnsemble(members=3), example=x)
    assert ensemble.checked.startswith("checked in eval and train mode")


class LongConvolution(nn.Module):
    """Convolves by Fourier transforms of twice the length, and answers with a loss of its own as well."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 16), nn.Linear(16, 3)
        self.kernel = nn.Parameter(torch.randn(16, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.first(x).transpose(1, 2)
        length = h.shape[-1]
        spectrum = torch.fft.rfft(h, n=2 * length) * torch.fft.rfft(self.kernel, n=2 * length)
        y = torch.fft.irfft(spectrum, n=2 * length)[..., :length]
        return self.out(y.mean(-1)), F.mse_loss(y, h)


def test_padded_transforms_and_losses_are_no_widths() -> None:
    network, x = LongConvolution(), torch.randn(5, 6, 4)
    small = narrow(network, 0.5, x).network
    assert small.kernel.shape == (8, 6)
    assert small.out.weight.shape == (3, 8)
