from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from narrow_networks import CASES, Attention, Dense, ViT
from torch import Tensor, nn

from covey.errors import ConversionError, OptionError
from covey.surgery import Narrowed, apply_edits, narrow, slice_weights


def shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in network.state_dict().items()}


def narrowed(name: str, ratio: float = 0.5, **options: Any) -> tuple[nn.Module, Tensor, Narrowed]:
    case = CASES[name]
    network, x = case.make(case.width), case.x(3)
    return network, x, narrow(network, ratio, x, **options)


@pytest.mark.parametrize("name", CASES)
def test_narrowing_is_building_it_narrow(name: str) -> None:
    """The reference is the network's own constructor at half the width: same shapes, and same answers."""
    network, x, small = narrowed(name, heads="keep")
    reference = CASES[name].make(CASES[name].width // 2)
    assert shapes(small.network) == shapes(reference)
    assert small.rounded == {}
    reference.load_state_dict(small.network.state_dict())
    for way in ("eval", "train"):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            got = getattr(small.network, way)()(x)
            torch.manual_seed(1)
            torch.testing.assert_close(got, getattr(reference, way)()(x))
    assert network(x).shape == got.shape


@pytest.mark.parametrize("name", CASES)
def test_edits_rebuild_it_without_the_example(name: str) -> None:
    network, x, small = narrowed(name)
    again = apply_edits(network, json.loads(json.dumps(small.edits)))
    assert shapes(again) == shapes(small.network)
    again.load_state_dict(small.network.state_dict())
    torch.testing.assert_close(again.eval()(x), small.network.eval()(x))
    tied = [n for n, _ in again.named_parameters(remove_duplicate=False)]
    assert len(tied) - len(list(again.parameters())) == (1 if name == "language" else 0)


def test_the_network_and_the_random_state_are_left_alone() -> None:
    network = ViT(16)
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    network.train()
    narrow(network, 0.5, torch.zeros(2, 3, 8, 8))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in network.state_dict().items())
    assert all(module.training for module in network.modules())


def test_heads_scale_with_the_embedding() -> None:
    attention = nn.Sequential(nn.Linear(6, 16), Attention(16, 4), nn.Linear(16, 2))
    x = torch.randn(2, 3, 6)
    half = narrow(attention, 0.5, x).network[1]
    assert (half.num_heads, half.head_dim, half.qkv.out_features) == (2, 4, 24)
    kept = narrow(attention, 0.5, x, heads="keep").network[1]
    assert (kept.num_heads, kept.head_dim, kept.scale) == (4, 2, 2**-0.5)
    # 2.5 heads and 10 channels become 3 heads and 12 channels
    small = narrow(attention, 0.625, x, tolerance=0.5)
    assert (small.network[1].num_heads, small.network[1].head_dim) == (3, 4)
    assert small.rounded["1.num_heads"] == (4, 2.5, 3)
    with pytest.raises(
        ConversionError, match=r"'1.num_heads' is 4 attention heads.*2.5 is not a whole number"
    ):
        narrow(attention, 0.625, x, heads="exact")


class Rotated(nn.Module):
    """Attention that turns its heads by angles from outside."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.attn_dim = heads, width
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        qkv = self.qkv(x).view(len(x), -1, 3, self.heads, self.attn_dim // self.heads)
        q, k, v = (each.transpose(1, 2) for each in qkv.unbind(2))
        mixed = F.scaled_dot_product_attention(q * angles, k * angles, v)
        return self.proj(mixed.transpose(1, 2).reshape(len(x), -1, self.attn_dim))


class SharedAngles(nn.Module):
    """Two layers of it with the same angles, so that their heads are equally wide."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, width), nn.Linear(width, 5)
        self.blocks = nn.ModuleList(Rotated(width, heads) for _ in range(2))
        self.register_buffer("angles", torch.rand(width // heads))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x, self.angles)
        return self.head(x.mean(1))


def test_heads_of_layers_that_share_their_angles_scale() -> None:
    """As rotary embeddings have it: the width of a head is the same in all layers, and their number scales."""
    torch.manual_seed(0)
    x = torch.randn(2, 7, 6)
    small = narrow(SharedAngles(), 0.5, x).network
    for block in small.blocks:
        assert block.qkv.weight.shape == (24, 8)
        assert block.heads == 2
    assert small(x).shape == (2, 5)


def test_widths_round_up() -> None:
    """Appendix N: of 200 units at alpha 2 and three members each has 134."""
    mlp = nn.Sequential(nn.Linear(13, 200), nn.ReLU(), nn.Linear(200, 2))
    small = narrow(mlp, 2 / 3, torch.zeros(2, 13))
    assert shapes(small.network)["0.weight"] == (134, 13)
    assert small.rounded["0.weight (axis 0)"] == (200, pytest.approx(400 / 3), 134)
    grouped = nn.Sequential(nn.Conv2d(3, 12, 3), nn.GroupNorm(4, 12), nn.Conv2d(12, 2, 3))
    x = torch.zeros(2, 3, 8, 8)
    assert shapes(narrow(grouped, 0.5, x, tolerance=0.4).network)["0.weight"] == (8, 3, 3, 3)
    with pytest.raises(
        ConversionError, match=r"33% more.*'0.weight \(axis 0\)'.*should have 6, and would have 8"
    ):
        narrow(grouped, 0.5, x)


def test_parameters_are_compared_with_widths_that_are_not_rounded() -> None:
    """Of 7 units at a half each has 4, a seventh more than it should."""
    mlp = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2))
    x = torch.zeros(2, 5)
    assert shapes(narrow(mlp, 0.5, x, tolerance=0.15).network)["0.weight"] == (4, 5)
    with pytest.raises(ConversionError, match=r"13% more.*should have 3.5, and would have 4.*tolerance"):
        narrow(mlp, 0.5, x)


def test_it_widens_too() -> None:
    wide = narrow(Dense(8), 2.0, torch.zeros(2, 3, 8, 8))
    assert shapes(wide.network) == shapes(Dense(16))


def test_an_unselected_output_keeps_its_size() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.fc, self.aux = nn.Linear(6, 8), nn.Linear(8, 4), nn.Linear(8, 6)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h = self.body(x)
            return h, self.fc(h), self.aux(h)

    small = narrow(Two(), 0.5, torch.zeros(2, 6), output=lambda answer: answer[1]).network
    assert [t.shape[-1] for t in small(torch.zeros(2, 6))] == [4, 4, 6]


class HardCoded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x)
        return self.fc(h.view(-1, 128))  # the line that the error must name


def test_a_width_in_the_code_is_named_with_its_line() -> None:
    line = next(
        i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "error must name" in text
    )
    network = nn.Sequential(nn.Identity(), HardCoded())
    with pytest.raises(
        ConversionError, match=rf"written as a number.*module '1', test_narrowing.py:{line}: return self.fc"
    ):
        narrow(network, 0.5, torch.zeros(2, 3, 4, 4))


def test_a_layer_without_a_channel_is_named() -> None:
    network = nn.Sequential(nn.Linear(6, 64), nn.Linear(64, 4), nn.Linear(4, 2))
    with pytest.raises(
        ConversionError, match=r"0.125 leaves '[12].weight .axis [01].' \(size 4\) without.*1/4"
    ):
        narrow(network, 0.125, torch.zeros(2, 6))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ratio": 0.0}, "ratio must be a number above 0"),
        ({"ratio": math.nan}, "ratio must be a number above 0"),
        ({"ratio": 0.5, "groups": 0}, "groups .gamma. must be at least 1"),
        ({"ratio": 0.5, "example": "text"}, "example must be a tensor"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    options = {"example": torch.zeros(2, 4), **options}
    with pytest.raises(OptionError, match=words):
        narrow(nn.Linear(4, 4), **options)


def test_a_network_that_cannot_be_followed_is_named() -> None:
    class Deciding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) if x.sum() > 0 else x

    with pytest.raises(
        ConversionError,
        match=r"cannot be run on sizes alone.*decides by the values.*return self.fc\(x\) if x.sum",
    ):
        narrow(Deciding(), 0.5, torch.zeros(2, 4))


def test_edits_of_another_network_are_refused() -> None:
    edits = narrow(Dense(8), 0.5, torch.zeros(2, 3, 8, 8)).edits
    with pytest.raises(ConversionError, match=r"name a tensor .* that the network lacks"):
        apply_edits(nn.Linear(2, 2), edits)
    with pytest.raises(ConversionError, match="not the network that was narrowed"):
        apply_edits(nn.Linear(2, 2), {"tensors": {"weight": [1]}, "attributes": {}})


class Bottleneck(nn.Module):
    def __init__(self, width: int, pre: bool) -> None:
        super().__init__()
        self.pre = pre
        self.norm = nn.BatchNorm2d(width)
        self.conv1, self.conv2 = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 3, padding=1)
        self.conv3, self.short = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, 2 * width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm(x)) if self.pre else x
        return F.relu(self.conv3(F.relu(self.conv2(F.relu(self.conv1(h)))))) + self.short(x)


@pytest.mark.parametrize("pre", [False, True])
@pytest.mark.parametrize(("gamma", "expected"), [(2, 2), (4, 2), (8, 2)])
def test_subgroups_follow_the_paper(gamma: int, expected: int, pre: bool) -> None:
    """128 channels a member: at most two groups of 64, none on the first layer or the first of a block."""
    network = nn.Sequential(nn.Conv2d(3, 256, 3), Bottleneck(256, pre), nn.Conv2d(512, 4, 1))
    x = torch.zeros(2, 3, 5, 5)
    small = narrow(network, 0.5, x, groups=gamma)
    groups = {n: m.groups for n, m in small.network.named_modules() if isinstance(m, nn.Conv2d)}
    last = 2 if gamma == 2 else 4  # 256 channels into 4 classes
    assert groups == {
        "0": 1, "1.conv1": 1, "1.conv2": expected, "1.conv3": expected, "1.short": expected, "2": last,
    }  # fmt: skip
    assert small.network[1].conv2.weight.shape == (128, 128 // expected, 3, 3)
    assert shapes(apply_edits(network, json.loads(json.dumps(small.edits)))) == shapes(small.network)


def _spread(small: nn.Module, wide: nn.Module) -> None:
    """Write the narrow network's weights to the even channels of the wide one and zeros elsewhere."""
    into = wide.state_dict()
    for name, values in small.state_dict().items():
        if values.dim() == 0:
            continue
        full = torch.zeros_like(into[name])
        step = [b // a for a, b in zip(values.shape, full.shape, strict=True)]
        full[tuple(slice(None, None, s) for s in step)] = values.to(full.dtype)
        into[name].copy_(full)


@pytest.mark.parametrize("name", ["residual", "vit", "language", "bare"])
def test_slices_find_the_channels_that_matter(name: str) -> None:
    """A wide network with a narrow one hidden in it: the slice by importance is that narrow network."""
    case = CASES[name]
    hidden, wide, x = case.make(case.width // 2), case.make(case.width), case.x(3)
    _spread(hidden, wide)
    small = narrow(wide, 0.5, x, heads="keep")
    cut = slice_weights(wide, small.channels, 0, 1)
    for tensor, values in hidden.named_parameters():
        found = cut[tensor]
        if found.norm() > 0:  # up to the rescaling by sqrt(2)
            ratio = (found.norm() / values.norm()).item()
            assert any(math.isclose(ratio, r, rel_tol=1e-4) for r in (1.0, math.sqrt(2))), (tensor, ratio)
            torch.testing.assert_close(found, values * ratio, msg=lambda text, t=tensor: f"{t}: {text}")


@pytest.mark.parametrize("by", ["importance", "random"])
def test_members_get_other_slices_and_keep_the_size_of_activations(by: str) -> None:
    torch.manual_seed(3)
    wide = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64))
    x = torch.randn(256, 32)
    small = narrow(wide, 0.5, x)
    outputs, firsts = [], []
    for member in range(4):
        network = copy.deepcopy(small.network)
        network.load_state_dict(slice_weights(wide, small.channels, member, 4, by=by))
        outputs.append(network(x))
        firsts.append({tuple(row) for row in network[0].weight.detach().tolist()})
    expected = wide(x).square().mean().sqrt()
    for output in outputs:
        assert output.square().mean().sqrt().item() == pytest.approx(expected.item(), rel=0.2)
    assert len(set.union(*firsts)) == 512  # between them the members have every channel
    assert all(a != b for i, a in enumerate(firsts) for b in firsts[:i])


def test_slices_check_the_member() -> None:
    small = narrow(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), 0.5, torch.zeros(2, 4))
    with pytest.raises(OptionError, match="member must be from 0 to 3; got 4"):
        slice_weights(small.network, small.channels, 4, 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("resnet18", 64, {}),
        ("mobilenetv2_100", 64, {}),
        ("efficientnet_b0", 64, {}),
        ("convnext_atto", 64, {}),
        ("vgg11_bn", 64, {}),
        ("regnety_002", 64, {}),
        ("densenet121", 64, {"block_config": (2, 2, 2, 2)}),
        ("vit_tiny_patch16_224", 32, {"depth": 2, "img_size": 32}),
        ("swin_tiny_patch4_window7_224", 56, {"depths": (1, 2), "num_heads": (2, 4), "img_size": 56}),
    ],
)
def test_timm_narrows(timm: Any, name: str, size: int, options: dict[str, Any]) -> None:
    with torch.device("meta"):
        network = timm.create_model(name, num_classes=10, **options)
        x = torch.zeros(2, 3, size, size)
    small = narrow(network, 0.5, x).network
    ratio = sum(p.numel() for p in small.parameters()) / sum(p.numel() for p in network.parameters())
    assert 0.25 <= ratio < 0.3  # 0.250 to 0.265 at full depth, where stems and heads weigh less
    assert small(x).shape == (2, 10)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit"])
def test_transformers_narrow(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 17, "max_position_embeddings": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    small |= {"num_attention_heads": 4, "hidden_size": 16}
    tokens = {"input_ids": torch.randint(0, 17, (3, 6))}
    if name == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=17, n_positions=16, n_embd=16, n_layer=1, n_head=4, bos_token_id=0, eos_token_id=0
        )
        network, x = transformers.GPT2LMHeadModel(config), tokens
    elif name == "llama":
        network, x = (
            transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, num_key_value_heads=2)),
            tokens,
        )
    elif name == "bert":
        network, x = transformers.BertForSequenceClassification(transformers.BertConfig(**small)), tokens
    else:
        config = transformers.ViTConfig(**small, image_size=8, patch_size=4, num_labels=5)
        network, x = transformers.ViTForImageClassification(config), torch.randn(3, 3, 8, 8)
    half = narrow(network, 0.5, x, output=lambda answer: answer.logits)
    for tensor, shape in shapes(half.network).items():
        before = network.state_dict()[tensor].shape
        hidden = [b in (16, 48, 32, 64) or (name == "llama" and b == 8) for b in before]
        if "position_ids" in tensor or "position_embeddings" in tensor or "wpe" in tensor:
            hidden[:-1] = [False] * (len(hidden) - 1)
        assert shape == tuple(b // 2 if h else b for b, h in zip(before, hidden, strict=True)), tensor
