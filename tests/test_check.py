"""What convert(check=...) finds out, what it leaves alone, and that it leaves nothing behind."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covey
from covey import checking
from covey.errors import ConversionError, OptionError

M = 3
SEEN: dict[nn.Module, Tensor] = {}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.out = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.calls = 0
        self.before = torch.zeros(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(self.first(x)).tanh())


class Global(Net):
    """Keeps a number made of its weights where no copy of it sees it (and itself, so that no address is used twice)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * SEEN.setdefault(self, self.first.weight.sum())


class GlobalInTraining(Global):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.training else Net.forward(self, x)


class Recurrent(Net):
    """Goes on from where the last call ended."""

    def forward(self, x: Tensor) -> Tensor:
        self.before = super().forward(x) + 0.5 * self.before
        return self.before


class Generator(Net):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(self.generator.random())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Global, r"in eval mode member 2 .*on the example: they differ by .*check=False"),
        (GlobalInTraining, r"in train mode member 2 .*on (the example|a second batch)"),
        (
            Recurrent,
            r"in eval mode member 0 .*(on a second batch|called again).*keeps the tensor 'before'.*register_buffer",
        ),
        (Generator, r"in eval mode member 2 .*generator of random numbers"),
    ],
)
def test_networks_in_which_members_meet_are_refused(kind: type[nn.Module], words: str) -> None:
    SEEN.clear()
    x = torch.randn(5, 4)
    with pytest.raises(ConversionError, match=words):
        covey.convert(kind(), covey.DeepEnsemble(members=M), example=x)
    ensemble = covey.convert(kind(), covey.DeepEnsemble(members=M), example=x, check=False)
    assert ensemble.checked == "not checked, as asked"


class Autocasts(Net):
    """Computes in less precision than its answers have."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = torch.tanh(self.first(x))
        return self.out(h.float())


@pytest.mark.parametrize("method", ["batch-ensemble", "masksembles", "mimo"])
def test_rounding_in_less_precision_is_no_difference(method: str) -> None:
    torch.manual_seed(0)
    ensemble = covey.convert(Autocasts(), covey.METHODS[method](), example=torch.randn(5, 4))
    assert ensemble.checked.startswith("checked in eval and train mode")


class Counts(Net):
    """Grows more sure with every call."""

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


class Drops(Net):
    """Is random in eval mode too, by three kinds of random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.dropout(self.first(x), 0.5)
        return self.out(self.norm(h)) * random.random() * float(np.random.rand())


class Writes(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2.0))


class Keywords(Net):
    def forward(self, x: Tensor, *, scale: Tensor, mask: Tensor, name: str = "") -> dict[str, Tensor]:
        return {"logits": super().forward(x * scale) * mask, "loss": scale.sum()}


@pytest.mark.parametrize(
    "method", ["deep-ensemble", "batch-ensemble", "multi-head", "masksembles", "mimo", "nudged"]
)
@pytest.mark.parametrize("kind", [Net, Counts, Drops, Writes])
def test_odd_networks_pass(kind: type[nn.Module], method: str) -> None:
    x = torch.randn(5, 4)
    if method == "nudged":
        pytest.importorskip("stranger")
    ensemble = covey.convert(kind(), covey.METHODS[method](members=M), example=x, check=True)
    assert ensemble.checked == "checked in eval and train mode: members 0, 1 and 2 as plain networks"
    assert ensemble.checked in str(ensemble.coverage)
    assert ensemble.checked in repr(ensemble)


def test_keywords_and_draws_of_dropout_pass() -> None:
    given = {
        "x": torch.randn(5, 4), "scale": torch.rand(5, 1), "mask": torch.ones(3, dtype=torch.bool), "name": "a"
    }  # fmt: skip
    ensemble = covey.convert(Keywords(), covey.DeepEnsemble(members=M), example=given)
    assert ensemble.checked == "checked in eval and train mode: members 0 and 2 as plain networks"
    method = covey.MCDropout(members=M, p=0.5, after=("first",))
    assert covey.convert(Net(), method, example=torch.randn(5, 4)).checked.startswith(
        "checked in eval and train"
    )


def test_members_of_different_shapes_pass() -> None:
    networks = [nn.Sequential(nn.Linear(4, n), nn.BatchNorm1d(n), nn.Linear(n, 3)) for n in (6, 8)]
    method = covey.SuperWeights(linear=True, budget=3.0)
    ensemble = covey.convert(networks, method, example=torch.randn(5, 4), check=True)
    assert ensemble.checked == "checked in eval and train mode: members 0 and 1 as plain networks"


def test_a_batch_that_train_mode_does_not_take_is_checked_in_eval_mode() -> None:
    ensemble = covey.convert(Net(), covey.DeepEnsemble(members=M), example=torch.randn(1, 4))
    assert ensemble.checked.startswith(
        "checked in eval mode: members 0 and 2 as plain networks; the network does"
    )


def test_nothing_is_left_behind() -> None:
    x = torch.randn(5, 4)
    network = Counts()
    network.norm.eval()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    ensemble = covey.convert(network, covey.DeepEnsemble(members=M), example=x, check=True)
    plain = covey.convert(network, covey.DeepEnsemble(members=M), example=x, check=False)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    for name, tensor in plain.state_dict().items():
        assert torch.equal(ensemble.state_dict()[name], tensor), name
    modules = list(ensemble.skeleton().modules())
    assert [m.training for m in modules] == [m.training for m in plain.skeleton().modules()]
    assert ensemble.skeleton().calls == 0
    assert ensemble.runs == {"train": "auto", "eval": "auto"}


def test_it_says_when_it_did_not_check(monkeypatch: pytest.MonkeyPatch) -> None:
    x, method = torch.randn(5, 4), covey.DeepEnsemble(members=M)
    assert covey.convert(Net(), method).checked == "not checked: no example was given"
    with pytest.raises(OptionError, match="check=True.*needs an example"):
        covey.convert(Net(), method, check=True)
    with pytest.raises(OptionError, match="check is True, False or None"):
        covey.convert(Net(), method, example=x, check="yes")  # type: ignore[arg-type]
    with torch.device("meta"):
        hollow = Net()
    assert "meta" in covey.convert(hollow, method, example=x.to("meta")).checked
    monkeypatch.setattr(checking, "SECONDS", 0.0)
    assert "one forward pass takes" in covey.convert(Net(), method, example=x).checked
    assert covey.convert(Net(), method, example=x, check=True).checked.startswith("checked in eval and train")
    monkeypatch.setattr(checking, "LARGE", 10)
    assert "parameters; check=True" in covey.convert(Net(), method, example=x).checked


@dataclass(frozen=True, kw_only=True)
class Careless(covey.Replicate):
    """A method of somebody else's whose ensemble mixes its members up."""

    def build(self, bodies: Sequence[Any], layout: covey.Layout) -> covey.Ensemble:
        made = super().build(bodies, layout)
        made.__class__ = Swapped
        return made


class Swapped(covey.Ensemble):
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return super().forward(*args, **kwargs).flip(0)


def test_a_method_that_breaks_a_law_is_refused() -> None:
    with pytest.raises(ConversionError, match="in eval mode member 0 does not answer"):
        covey.convert(Net(), Careless(members=M, noise=0.2), example=torch.randn(5, 4))


class Chaotic(Net):
    """Doubles small differences sixty times."""

    def forward(self, x: Tensor) -> Tensor:
        h = super().forward(x).sigmoid()
        for _ in range(60):
            h = 4 * h * (1 - h)
        return h


def test_rounding_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ensemble whose weights differ from its member's in the last digit, as another kernel's would."""
    tensors = covey.Ensemble.tensors

    def rounded(self: covey.Ensemble, k: int) -> dict[str, Tensor]:
        factor = 1.0 if rounded.exact else 1 + torch.finfo(torch.float32).eps
        return {name: tensor * factor for name, tensor in tensors(self, k).items()}

    def member(self: covey.Ensemble, k: int) -> nn.Module:
        rounded.exact = True
        made = original(self, k)
        rounded.exact = False
        return made

    rounded.exact = False  # type: ignore[attr-defined]
    original = covey.Ensemble.member
    monkeypatch.setattr(covey.Ensemble, "tensors", rounded)
    monkeypatch.setattr(covey.Ensemble, "member", member)
    ensemble = covey.convert(Chaotic(), covey.DeepEnsemble(members=M), example=torch.randn(5, 4))
    assert ensemble.checked.startswith("checked in eval")
    assert copy.deepcopy(ensemble).checked == ensemble.checked


class CopiesItself(nn.Module):
    """Copies a layer in its forward pass, which torch lets nobody do to a weight that was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        slow = copy.deepcopy(self.first)
        return self.out(torch.tanh(self.first(x) + slow(x).detach()))


def test_a_network_that_cannot_be_trained_as_an_ensemble_is_refused() -> None:
    x = torch.randn(5, 4)
    with pytest.raises(ConversionError, match="backward pass runs by itself but not.*deepcopy"):
        covey.convert(CopiesItself(), covey.DeepEnsemble(members=2), example=x)


class Again(torch.autograd.Function):
    """Runs a layer again in the backward pass instead of keeping what it computed, as reversible networks do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Module) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            ctx.layer(x).backward(gradient)
        return x.grad, None


class NeverTheSame(nn.Module):
    """Draws by a seed that nobody can set."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = Again.apply(self.first(x), self.inner)
        if self.training:
            torch.seed()
            h = h + 0.1 * torch.randn_like(h)
        return self.out(h)


def test_a_gradient_that_comes_of_a_pass_inside_the_backward_pass_is_missed() -> None:
    """Weights that stay as they are have tensors in the backward pass too; what is added to them is not there."""
    method = covey.LowRank(members=2, rank=1, where=("inner",))
    with pytest.raises(
        ConversionError, match=r"'parts.low_rank.a.inner/weight' of the ensemble gets no gradient"
    ):
        covey.convert(NeverTheSame(), method, example=torch.randn(5, 4))


def test_training_is_tried_where_answers_cannot_be_compared() -> None:
    x = torch.randn(5, 4)
    with pytest.raises(ConversionError, match="backward pass runs by itself but not.*a second time"):
        covey.convert(NeverTheSame(), covey.DeepEnsemble(members=2), example=x)


class Doubled(torch.autograd.Function):
    """Twice a product, whose gradient torch is told."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return 2 * x @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return 2 * gradient @ weight, 2 * gradient.t() @ x


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(Doubled.apply(x, self.first.weight)))


def test_a_gradient_that_is_lost_is_found_out() -> None:
    """All of MIMO's first layers act at once, and somebody's own function knows nothing of that."""
    with pytest.raises(
        ConversionError, match="'parts.stem.phi.first/weight' of the ensemble gets no gradient"
    ):
        covey.convert(ByHand(), covey.MIMO(members=2), example=torch.randn(6, 4))


def test_members_that_answer_nothing_are_refused() -> None:
    """A mask empties rows of a transposed convolution's weight, which its norm divides by the length of."""
    layer = nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(8, 8, 4))
    network = nn.Sequential(nn.Conv1d(2, 8, 3), nn.ReLU(), layer, nn.Flatten(), nn.Linear(56, 3))
    x = torch.randn(5, 2, 6)
    with pytest.raises(ConversionError, match="member 0 answers NaN.*Masksembles.*`where`"):
        covey.convert(network, covey.Masksembles(), example=x)
    covey.convert(network, covey.BatchEnsemble(), example=x)
