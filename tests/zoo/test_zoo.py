"""What holds for every network of the zoo: shapes, batching by vmap, rebuilding by name, errors."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from covey.errors import OptionError
from covey.zoo import NETWORKS, PyramidNet, ResNet, create, find
from covey.zoo.pyramidnet import ShakeDrop

# one small network of each family: name, options, shape of a sample
SMALL = {
    "mlp": ("mlp", {"features": 12, "hidden": (8, 6)}, (3, 2, 2)),
    "convnet": ("convnet", {"channels": 1, "image_size": 8}, (1, 8, 8)),
    "resnet": ("cifar-resnet-18", {"width": 4}, (3, 8, 8)),
    "resnet-imagenet": ("resnet-18", {"channels": 1, "width": 4}, (1, 32, 32)),
    "resnext": ("cifar-resnext-50", {"width": 16}, (3, 8, 8)),
    "wideresnet": ("wrn-10-1", {}, (3, 8, 8)),
    "mobilenet": ("cifar-mobilenet-v2", {"width": 0.1}, (3, 16, 16)),
    "densenet": ("cifar-densenet-121", {"growth": 2}, (3, 16, 16)),
    "pyramidnet": ("pyramidnet", {"depth": 8, "alpha": 6, "keep": 1.0}, (3, 8, 8)),
    "vit": ("vit", {"image_size": 8, "width": 16, "depth": 2, "heads": 2}, (3, 8, 8)),
    "unet": ("unet", {"width": 4, "levels": 2}, (3, 8, 8)),
    "lstm": ("lstm", {"hidden": 6, "embedding": 5}, (9,)),
}
families = pytest.mark.parametrize("family", SMALL)
batched_families = pytest.mark.parametrize("family", [f for f in SMALL if f != "lstm"])


def small(family: str, seed: int = 0) -> nn.Module:
    name, options, _ = SMALL[family]
    torch.manual_seed(seed)
    return create(name, classes=5, **options)


def sample(family: str, batch: int) -> torch.Tensor:
    name, _, shape = SMALL[family]
    if find(name).tokens:
        return torch.randint(5, (batch, *shape))
    return torch.randn(batch, *shape, dtype=torch.float64)


@families
@pytest.mark.parametrize("batch", [1, 3])
def test_shape_of_logits(family, batch):
    network = small(family).double().eval()
    expected = {"lstm": (batch, 9, 5), "unet": (batch, 5, 8, 8)}.get(family, (batch, 5))
    assert network(sample(family, batch)).shape == expected


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (1, 8), (3, 64), (2, 4)])
def test_convnet_takes_any_size(channels, size):
    network = create("convnet", classes=10, channels=channels, image_size=size).eval()
    assert network(torch.randn(2, channels, size, size)).shape == (2, 10)


@batched_families
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_vmap_equals_loop(family, training):
    """Outputs, gradients and running statistics of three members at once are those of the three alone.

    Warnings are errors here, so an operation without a batching rule fails, too.
    """
    members = [small(family, seed).double().train(training) for seed in range(3)]
    x = sample(family, 4)
    parameters, buffers = stack_module_state(members)
    parameters = {name: p.detach().requires_grad_() for name, p in parameters.items()}
    skeleton = members[0]

    def one(p, b):
        return functional_call(skeleton, (p, b), (x,), strict=True)

    expected_buffers = [copy.deepcopy(m) for m in members]
    outputs = vmap(one)(parameters, buffers)
    outputs.square().sum().backward()
    for k, member in enumerate(expected_buffers):
        expected = member(x)
        torch.testing.assert_close(outputs[k], expected, rtol=1e-9, atol=1e-9)
        expected.square().sum().backward()
        for name, p in member.named_parameters():
            scale = p.grad.abs().max().item()
            torch.testing.assert_close(parameters[name].grad[k], p.grad, rtol=1e-9, atol=1e-9 * max(1, scale))
        for name, b in member.named_buffers():
            torch.testing.assert_close(buffers[name][k], b, rtol=1e-9, atol=1e-9)


@families
def test_every_parameter_gets_a_gradient(family):
    network = small(family).double()
    network(sample(family, 4)).square().sum().backward()
    assert [name for name, p in network.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("family", ["convnet", "wideresnet", "mobilenet", "pyramidnet", "vit"])
def test_compiles_to_one_graph(family):
    """No Python control flow that depends on data. The other families are made of the same parts."""
    network = small(family).double().eval()
    x = sample(family, 2)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), network(x))


@families
def test_rebuilt_by_its_name(family):
    network = small(family)
    zoo = json.loads(json.dumps(network.covey_zoo))
    again = create(zoo["name"], **zoo["arguments"])
    assert again.covey_zoo == network.covey_zoo == zoo
    assert str(again) == str(network)
    again.load_state_dict(network.state_dict())
    x = sample(family, 2)
    torch.testing.assert_close(again.double().eval()(x), network.double().eval()(x), rtol=0, atol=0)


@families
def test_deepcopy_is_its_own(family):
    network = small(family)
    twin = copy.deepcopy(network)
    assert twin.covey_zoo == network.covey_zoo
    with torch.no_grad():
        twin.head.bias.add_(1)
    assert not torch.equal(twin.head.bias, network.head.bias)


def test_record_fits_the_shape_of_data():
    assert find("wrn-16-2").arguments_for((1, 28, 28)) == {"channels": 1}
    assert find("vit-tiny-4").arguments_for((1, 28, 28)) == {"channels": 1, "image_size": 28}
    assert find("mlp").arguments_for((1, 28, 28)) == {"features": 784}
    assert find("lstm").arguments_for((64,)) == {}


def test_import_is_light():
    heavy = "{'torchvision', 'timm', 'transformers', 'matplotlib', 'pandas', 'sklearn'}"
    code = f"import sys, covey.zoo; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


# ---- initialisation and randomness


def test_convolutions_start_as_he_et_al():
    torch.manual_seed(0)
    conv = create("cifar-resnet-18", classes=10).stages[1][0].body.conv1
    assert conv.weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 128)), rel=0.01)


def test_lstm_starts_uniform():
    weights = torch.cat([p.flatten() for p in create("lstm", classes=20, hidden=40).parameters()])
    assert weights.abs().max() <= 0.01
    assert weights.std().item() == pytest.approx(0.01 / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("name", ["wrn-10-1", "cifar-mobilenet-v2", "vit-tiny-4", "mlp", "lstm"])
def test_dropout_is_there_only_if_asked(name):
    def layers(p: float) -> list[nn.Module]:
        return [m for m in create(name, classes=3, dropout=p).modules() if isinstance(m, nn.Dropout)]

    assert layers(0.0) == []
    assert {m.p for m in layers(0.3)} == {0.3}


def test_wrn_dropout_sits_between_the_convolutions_of_each_block():
    network = create("wrn-16-1", classes=3, dropout=0.5)
    seen = []
    for name, module in network.named_modules():
        if isinstance(module, nn.Dropout | nn.Conv2d) and "shortcut" not in name and "stages" in name:
            module.register_forward_hook(lambda m, *_: seen.append(type(m)))
    network(torch.randn(2, 3, 8, 8))
    assert seen == [nn.Conv2d, nn.Dropout, nn.Conv2d] * 6


def test_shakedrop_factors():
    """Forward b + a - b a with mean keep; backward b + c - b c with mean keep + (1 - keep) / 2; eval keep."""
    torch.manual_seed(0)
    shake = ShakeDrop(0.6)
    forward, backward = [], []
    for _ in range(4000):
        x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
        y = shake(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        assert y.unique().numel() == gradient.unique().numel() == 1  # one draw for the batch
        forward.append(y[0, 0].item())
        backward.append(gradient[0, 0].item())
    kept = [f > 1 - 1e-9 for f in forward]
    assert sum(kept) / 4000 == pytest.approx(0.6, abs=0.03)
    assert kept == [b > 1 - 1e-9 for b in backward]
    assert min(forward) == pytest.approx(-1, abs=0.02)
    assert min(backward) == pytest.approx(0, abs=0.01)
    assert sum(forward) / 4000 == pytest.approx(0.6, abs=0.03)
    assert sum(backward) / 4000 == pytest.approx(0.8, abs=0.03)
    assert torch.equal(shake.eval()(x), 0.6 * x)


def test_shakedrop_keeps_less_of_later_blocks():
    network = PyramidNet(classes=2, channels=3, depth=14, alpha=12, keep=0.5)
    keeps = [m.keep for m in network.modules() if isinstance(m, ShakeDrop)]
    assert keeps == pytest.approx([1 - 0.5 * block / 6 for block in range(1, 7)])


def test_shakedrop_compiles_to_one_graph():
    shake = ShakeDrop(0.5)
    assert torch.compile(shake, backend="eager", fullgraph=True)(torch.ones(2, 3)).shape == (2, 3)


def test_shakedrop_draws_for_each_member_under_vmap():
    members = [PyramidNet(classes=2, channels=3, depth=14, alpha=12) for _ in range(4)]
    state = stack_module_state([copy.deepcopy(members[0]) for _ in members])  # four times the same weights
    x = torch.randn(3, 3, 8, 8)
    outputs = vmap(lambda p, b: functional_call(members[0], (p, b), (x,)), randomness="different")(*state)
    assert not torch.allclose(outputs[0], outputs[1])


# ---- mistakes


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: create("resnet-51", classes=10),
            "no network 'resnet-51'; the nearest names are 'resnet-50'",
        ),
        (lambda: create("resnet-50", classes=0), "classes must be a whole number of at least 1, got 0"),
        (lambda: create("resnet-50", classes=True), "classes must be a whole number of at least 1, got True"),
        (
            lambda: create("wrn-28-10", classes=10, channels=0),
            "channels must be a whole number of at least 1",
        ),
        (lambda: create("wrn-27-10", classes=10), r"depth must be 6 n \+ 4 \(10, 16, 22, 28, ...\), got 27"),
        (lambda: create("wrn-4-10", classes=10), r"depth must be 6 n \+ 4"),
        (lambda: create("wrn-28-0", classes=10), "width must be a whole number of at least 1, got 0"),
        (
            lambda: create("wrn-28-10", classes=10, depth=16),
            "'wrn-28-10' has depth = 28 by its name; leave depth out",
        ),
        (
            lambda: create("wrn-28-10", classes=10, dropuot=0.1),
            "no option 'dropuot'; .*'dropout'.* it takes classes,",
        ),
        (
            lambda: create("mlp", classes=10, channels=3),
            "no option 'channels'.* takes classes, features, hidden",
        ),
        (
            lambda: create("wrn-28-10", classes=10, dropout=1),
            "dropout must be a number from 0 to below 1, got 1",
        ),
        (lambda: create("mlp", classes=10, hidden="200"), "hidden must be a sequence of whole numbers"),
        (lambda: create("mlp", classes=10, hidden=(200, 0)), r"hidden\[1\] must be a whole number"),
        (
            lambda: create("convnet", classes=10, image_size=3),
            "image_size must be a whole number of at least 4",
        ),
        (
            lambda: create("vit-tiny-4", classes=10, image_size=30),
            "image_size must be a multiple of patch, got 30 and 4",
        ),
        (
            lambda: create("vit", classes=10, width=10, heads=3),
            "width must be a multiple of heads, got 10 and 3",
        ),
        (
            lambda: create("lstm", classes=9, tied=True, embedding=8),
            "tied needs embedding = hidden, got embedding 8",
        ),
        (lambda: create("pyramidnet", classes=10, depth=100), r"depth must be 6 n \+ 2"),
        (lambda: create("pyramidnet", classes=10, keep=0), "keep must be a number above 0 and up to 1"),
        (lambda: create("mobilenet-v2", classes=10, width=0), "width must be a number above 0"),
        (
            lambda: create("cifar-resnext-50", classes=9, width=8),
            r"width \* group_width // 64 must be a whole number",
        ),
        (
            lambda: ResNet(classes=9, channels=3, depth=20, stem="cifar"),
            "depth must be one of 18, 34, 50, 101, 152",
        ),
        (
            lambda: ResNet(classes=9, channels=3, depth=18, stem="tiny"),
            "stem must be one of 'imagenet', 'cifar'",
        ),
        (
            lambda: ResNet(classes=9, channels=3, depth=18, stem="cifar", groups=2),
            "groups of a network without bottle",
        ),
        (lambda: find("convnet").arguments_for((28, 28)), r"\(channels, height, width\), got \(28, 28\)"),
        (lambda: find("convnet").arguments_for((3, 28, 32)), "square images, got height 28 and width 32"),
    ],
)
def test_mistakes_are_named(call, words):
    with pytest.raises(OptionError, match=words):
        call()


def test_names_are_plain():
    assert all(name == name.lower() and " " not in name for name in NETWORKS)
