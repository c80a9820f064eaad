"""Low-rank members of a pretrained network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.errors import ConversionError, OptionError


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.layer(self.tokens(tokens))).mean(1))


TOKENS = torch.randint(20, (6, 5), generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
METHODS = [covey.LowRank(members=3, rank=4), covey.SharedLowRank(members=3, rank=4)]


def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder()


def conv() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.Flatten(), nn.Linear(128, 4)
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_base_stays_and_every_update_learns(method: covey.Method) -> None:
    network = encoder()
    ensemble = covey.convert(network, method, example=TOKENS)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    optimiser = torch.optim.SGD(ensemble.param_groups(lr=0.1))
    for _ in range(2):
        optimiser.zero_grad()
        ensemble.loss(TOKENS, LABELS).backward()
        optimiser.step()
    optimiser.zero_grad()
    ensemble.loss(TOKENS, LABELS).backward()
    update = ensemble.parts["low_rank"]
    for name, parameter in update.named_parameters():
        if name.startswith("theta"):
            assert not parameter.requires_grad
            torch.testing.assert_close(parameter, before[name.removeprefix("theta.").replace("/", ".")])
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.flatten(1).any(1).all(), name  # of every member
    assert not any(p.requires_grad for p in ensemble.parts["shared"].parameters())


@pytest.mark.parametrize("method", METHODS)
def test_pretrained_answers_are_kept_and_members_part(method: covey.Method) -> None:
    network = encoder()
    ensemble = covey.convert(network, method, example=TOKENS).eval()
    for outputs in ensemble(TOKENS):
        torch.testing.assert_close(outputs, network.eval()(TOKENS))
    optimiser = torch.optim.SGD(ensemble.param_groups(lr=0.5))
    for _ in range(3):
        optimiser.zero_grad()
        ensemble.train().loss(TOKENS, LABELS).backward()
        optimiser.step()
    outputs = ensemble.eval()(TOKENS)
    assert (outputs[0] - outputs[1]).abs().max() > 1e-4


def test_what_it_stores() -> None:
    network = encoder()
    size = sum(p.numel() for p in network.parameters())
    head = 16 * 3 + 3
    # attention's packed projection and its output, two layers of the MLP
    sides = (48 + 16) + (16 + 16) + (32 + 16) + (16 + 32)
    low = covey.convert(network, covey.LowRank(members=3, rank=4), example=TOKENS)
    assert sum(p.numel() for p in low.parameters()) == size + 3 * 4 * sides + 2 * head
    shared = covey.convert(network, covey.SharedLowRank(members=3, rank=4), example=TOKENS)
    assert sum(p.numel() for p in shared.parameters()) == size + (4 + 3) * sides + 2 * head


def test_convolutions_get_updates_where_there_are_more_of_them() -> None:
    ensemble = covey.convert(conv(), covey.LowRank(members=2, rank=2), example=torch.zeros(2, 3, 8, 8))
    assert set(ensemble.layout.tensors["low_rank"]) == {"0.weight", "2.weight"}


class Bare(nn.Module):
    """A matrix that multiplies and one that is added, neither in a layer of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.positions = nn.Parameter(torch.randn(16, 16)), nn.Parameter(torch.randn(5, 16))
        self.first, self.head = nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.first(x) @ self.matrix + self.positions).relu().mean(1))


def test_tables_that_are_added_get_no_update_by_default() -> None:
    example = torch.randn(2, 5, 16)
    ensemble = covey.convert(Bare(), covey.LowRank(members=2, rank=4), example=example)
    assert ensemble.layout.tensors["low_rank"] == ("matrix", "first.weight")
    named = covey.convert(Bare(), covey.LowRank(members=2, rank=4, where="positions"), example=example)
    assert named.layout.tensors["low_rank"] == ("positions",)


def test_options_say_what_else_members_own() -> None:
    method = covey.LowRank(members=2, rank=2, own=("head", "norms", r"bias$"), base=0.1)
    ensemble = covey.convert(encoder(), method, example=TOKENS)
    own = set(ensemble.layout.tensors["replicated"])
    assert {"norm.weight", "head.weight", "layer.linear1.bias"} <= own
    groups = ensemble.param_groups(lr=1.0)
    rates = {g["name"]: g["lr"] for g in groups if not g["members"]}
    assert rates == {"low_rank": 0.1, "shared": 0.1}


def test_a_network_frozen_by_the_user_can_be_updated() -> None:
    network = encoder().requires_grad_(False)
    network.head.requires_grad_(True)
    ensemble = covey.convert(network, covey.LowRank(members=2, rank=2, base=1.0), example=TOKENS)
    assert not any(
        p.requires_grad for n, p in ensemble.parts["low_rank"].named_parameters() if n.startswith("theta")
    )
    assert ensemble.layout.tensors["replicated"] == ("head.weight", "head.bias")


def test_dropout_acts_in_training_alone() -> None:
    torch.manual_seed(0)
    ensemble = covey.convert(encoder(), covey.LowRank(members=2, rank=4, dropout=0.5), example=TOKENS)
    with torch.no_grad():
        for name, parameter in ensemble.parts["low_rank"].named_parameters():
            if name.startswith("b."):
                parameter.normal_()
    ensemble.run = "loop"
    assert not torch.equal(ensemble.train()(TOKENS), ensemble(TOKENS))
    torch.testing.assert_close(ensemble.eval()(TOKENS), ensemble(TOKENS))


@pytest.mark.parametrize("method", [covey.LowRank, covey.SharedLowRank])
def test_dropout_of_the_update_beside_the_network_s_own(method: type[covey.LowRank]) -> None:
    layers = nn.Sequential(
        nn.Linear(6, 16), nn.Dropout(0.2), nn.Linear(16, 16), nn.Dropout(0.2), nn.Linear(16, 3)
    )
    ensemble = covey.convert(
        layers, method(members=2, rank=2, dropout=0.5), example=torch.randn(4, 6), check=True
    )
    assert "checked in eval and train mode" in ensemble.checked
    assert ensemble.parts["low_rank"].training


class InputsFirst(nn.Module):
    """A linear layer that stores its weight inputs first, as GPT-2's do."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


def test_dropout_acts_on_weights_with_the_inputs_first() -> None:
    network, x = nn.Sequential(InputsFirst(6, 16), nn.Tanh(), nn.Linear(16, 3)), torch.randn(4, 6)
    ensemble = covey.convert(network, covey.LowRank(members=1, rank=2, dropout=0.5, where="0"), example=x)
    with torch.no_grad():
        for name, parameter in ensemble.parts["low_rank"].named_parameters():
            if name.startswith("b."):
                parameter.normal_()
    assert not torch.equal(ensemble.train()(x), ensemble(x))
    torch.testing.assert_close(ensemble.eval()(x)[0], ensemble.member(0)(x))


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (covey.LowRank(rank=17, where="layer"), r"rank 17 is more than .* 48 x 16"),
        (covey.LowRank(rank=100), "no linear layer or convolution"),
        (covey.LowRank(where="head"), r"'head.weight' is a copy of each member's already"),
        (covey.LowRank(where="norm"), "names no weight matrix"),
    ],
)
def test_what_cannot_be_is_said(method: covey.Method, says: str) -> None:
    with pytest.raises(ConversionError, match=says):
        covey.convert(encoder(), method, example=TOKENS)


@pytest.mark.parametrize(
    "options", [{"rank": 0}, {"scaling": 0.0}, {"base": -1.0}, {"dropout": 1.5}, {"dropout": 1.0}]
)
def test_options_are_checked(options: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        covey.LowRank(**options)  # type: ignore[arg-type]


def test_it_is_what_peft_computes() -> None:
    peft = pytest.importorskip("peft")
    network = encoder().double().eval()
    targets = ["linear1", "linear2"]
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets)
    method = covey.LowRank(members=2, rank=4, scaling=2.0, where=[r"linear\d\.weight"], own=())
    ensemble = covey.convert(network, method, example=TOKENS).eval()
    update = ensemble.parts["low_rank"]
    with torch.no_grad():
        for parameter in update.b.parameters():
            parameter.normal_()
    outputs = ensemble(TOKENS)
    for k in range(2):
        adapted = peft.get_peft_model(encoder().double(), config).eval()
        with torch.no_grad():
            for layer in targets:
                module = getattr(adapted.base_model.model.layer, layer)
                module.lora_A["default"].weight.copy_(update.a[f"layer.{layer}.weight"][k])
                module.lora_B["default"].weight.copy_(update.b[f"layer.{layer}.weight"][k])
        # in train mode, because torch's fast path of an encoder layer does not see peft's adapters
        torch.testing.assert_close(adapted.train()(TOKENS), outputs[k], rtol=1e-10, atol=1e-10)
