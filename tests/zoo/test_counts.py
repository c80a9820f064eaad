"""Parameter counts, layer tables and outputs against published numbers and an independent package."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from covey import zoo
from covey.cli.settings import parse_options
from covey.scores.cost import multiply_adds
from covey.zoo import NETWORKS, create
from covey.zoo.sizes import SIZES, VARIANTS


def build(name: str, **options) -> nn.Module:
    with torch.device("meta"):
        return create(name, **options)


def count(tensors) -> int:
    return sum(t.numel() for t in tensors)


PUBLISHED = {
    # torchvision's model pages
    ("resnet-18", 1000): 11_689_512,
    ("resnet-34", 1000): 21_797_672,
    ("resnet-50", 1000): 25_557_032,
    ("resnet-101", 1000): 44_549_160,
    ("resnet-152", 1000): 60_192_808,
    ("resnext-50", 1000): 25_028_904,
    ("wrn-50-2", 1000): 68_883_240,
    ("mobilenet-v2", 1000): 3_504_872,
    ("densenet-121", 1000): 7_978_856,
    ("densenet-161", 1000): 28_681_000,
    ("vit-base-16", 1000): 86_567_656,
    # CIFAR-10 networks as widely reported
    ("cifar-resnet-18", 10): 11_173_962,
    ("cifar-resnet-50", 10): 23_520_842,
    ("cifar-mobilenet-v2", 10): 3_504_872 - 1281 * 990,
    ("cifar-densenet-121", 10): 6_956_298,
    ("cifar-densenet-161", 10): 26_482_378,
    ("wrn-28-10", 10): 36_479_194,
    ("wrn-28-2", 10): 1_467_610,
    ("wrn-28-8", 10): 23_354_842,
    ("wrn-16-4", 10): 2_748_890,
    ("pyramidnet-110-270", 10): 28_485_477,
    ("pyramidnet-272-200", 10): 26_210_842,
    # LeNet-5 for CIFAR-10 has 62,006; four norms of 6, 16, 120 and 84
    ("convnet", 10): 62_006 + 2 * (6 + 16 + 120 + 84),
}


@pytest.mark.parametrize(("name", "classes"), PUBLISHED)
def test_published_count(name, classes):
    assert count(build(name, classes=classes).parameters()) == PUBLISHED[name, classes]


@pytest.mark.parametrize(
    ("depth", "alpha", "bottleneck", "published"),
    [(110, 48, False, 1_772_706), (110, 84, False, 3_904_446), (164, 270, True, 27_216_021)],
)
def test_pyramidnet_of_any_depth(depth, alpha, bottleneck, published):
    network = build("pyramidnet", classes=10, depth=depth, alpha=alpha, bottleneck=bottleneck)
    assert count(network.parameters()) == published


def test_lstm_has_about_the_papers_count():
    assert round(count(build("lstm", classes=205).parameters()) / 1e6, 2) == 1.56


def test_tied_lstm_has_one_matrix_less():
    free, tied = (build("lstm", classes=50, hidden=30, embedding=30, tied=tied) for tied in (False, True))
    assert count(free.parameters()) - count(tied.parameters()) == 50 * 30


def test_mnist_convnet_is_lenet():
    network = build("convnet", classes=10, channels=1, image_size=28)
    assert count(network.parameters()) == 61_706 + 452


def test_a_convnet_of_twice_the_width():
    wide = build("convnet", classes=10, channels=1, image_size=28, width=2)
    convolutions = (25 + 1) * 12 + (25 * 12 + 1) * 32
    linear = (25 * 32 + 1) * 240 + (240 + 1) * 168 + (168 + 1) * 10
    norms = 2 * (12 + 32 + 240 + 168)
    assert count(wide.parameters()) == convolutions + linear + norms


def test_mlp_closed_form():
    network = build("mlp", classes=2, features=13, hidden=(200,))
    assert count(network.parameters()) == 14 * 200 + 201 * 2


def test_wrn_28_10_is_the_papers_table():
    """Table S1 of the hypernetwork paper: shapes of all convolutions; norms 17,952 and head 6,410."""
    network = build("wrn-28-10", classes=10)
    convolutions = sorted(tuple(m.weight.shape) for m in network.modules() if isinstance(m, nn.Conv2d))
    table = [(16, 3, 3, 3), (160, 16, 3, 3), (320, 160, 3, 3), (640, 320, 3, 3)]
    table += [(160, 160, 3, 3)] * 7 + [(320, 320, 3, 3)] * 7 + [(640, 640, 3, 3)] * 7
    table += [(160, 16, 1, 1), (320, 160, 1, 1), (640, 320, 1, 1)]
    assert convolutions == sorted(table)
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert count(p for m in norms for p in m.parameters()) == 17_952
    assert count(network.head.parameters()) == 6_410


@pytest.mark.parametrize("name", NETWORKS)
def test_every_entry_builds(name):
    network = build(name, classes=7)
    outputs = network.head.out_channels if name == "unet" else network.head.out_features
    assert outputs == 7
    assert network.covey_zoo["name"] == name
    assert NETWORKS[name].description


def test_documented_list_is_the_list():
    page = Path(__file__).parents[2] / "docs" / "zoo.md"
    listed = page.read_text().partition("## The list")[2]
    rows = [line.strip("| ").split(" | ") for line in listed.splitlines() if line.startswith("| `")]
    assert [name.strip("`") for name, *_ in rows] == list(NETWORKS)
    for name, description, _, classes, parameters, products in rows:
        key = name.strip("`")
        assert description == NETWORKS[key].description
        found = count(build(key, classes=int(classes)).parameters())
        assert parameters == f"{found:,}"
        assert SIZES[key] == (found, int(products.replace(",", "")))


FAST = ("mlp", "convnet", "wrn-10-4", "vit-tiny-4")
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS if name not in FAST]


FAST_VARIANTS = ("wrn-10-1", "cifar-resnet-18:width=16")
OTHER_VARIANTS = [pytest.param(key, marks=pytest.mark.slow) for key in VARIANTS if key not in FAST_VARIANTS]


def _counted(name, **options):
    record = zoo.find(name)
    classes = 205 if record.tokens else 1000 if record.shape[-1] == 224 else 10
    with torch.device("meta"):
        network = zoo.create(name, classes=classes, **options)
        sample = torch.zeros(1, *record.shape, dtype=torch.long if record.tokens else torch.float32)
    return multiply_adds(network, sample)


@pytest.mark.parametrize("name", [*FAST, *OTHERS])
def test_listed_multiply_adds_are_those_of_a_forward_pass(name):
    assert _counted(name) == SIZES[name].multiply_adds


@pytest.mark.parametrize("key", [*FAST_VARIANTS, *OTHER_VARIANTS])
def test_multiply_adds_of_the_recipes_networks_are_those_of_a_forward_pass(key):
    name, _, option = key.partition(":")
    assert _counted(name, **parse_options([option] if option else [])) == VARIANTS[key]


def test_multiply_adds_are_the_published_ones():
    """ResNet-18, ResNet-50, MobileNetV2 and ViT-B/16 in their papers or torchvision's tables, in 10^9."""
    published = {"resnet-18": 1.81, "resnet-50": 4.09, "mobilenet-v2": 0.30, "vit-base-16": 17.56}
    for name, giga in published.items():
        assert round(SIZES[name].multiply_adds / 1e9, 2) == giga


@pytest.mark.filterwarnings("ignore")  # timm's own
@pytest.mark.parametrize(
    ("name", "twin", "options"),
    [
        ("resnet-18", "resnet18", {}),
        ("resnet-50", "resnet50", {}),
        ("resnext-50", "resnext50_32x4d", {}),
        ("wrn-50-2", "wide_resnet50_2", {}),
        ("mobilenet-v2", "mobilenetv2_100", {}),
        ("densenet-121", "densenet121", {}),
        ("vit-tiny-16", "vit_tiny_patch16_224", {"img_size": 64}),
    ],
)
def test_computes_what_timm_does(timm, name, twin, options):
    """With timm's tensors in timm's order the network gives timm's answer: same layers, same order."""
    torch.manual_seed(0)
    reference = timm.create_model(twin, num_classes=1000, **options).eval()
    for module in reference.modules():
        if isinstance(module, nn.BatchNorm2d):  # neutral statistics would hide a swapped norm
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    network = create(name, classes=1000, **({"image_size": 64} if options else {})).eval()
    assert count(network.parameters()) == count(reference.parameters())
    network.load_state_dict(dict(zip(network.state_dict(), reference.state_dict().values(), strict=True)))
    x = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        expected = reference(x)
        assert (network(x) - expected).abs().max() < 1e-4 * expected.abs().max()
