"""Each method against its formula, computed another way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import covey
from covey import registry
from covey.methods.masksembles import draw_masks


def test_the_registry_is_the_files_and_the_doc_pages() -> None:
    root = Path(__file__).parents[2]
    modules = {registry.lookup(name).__module__.rpartition(".")[2] for name in registry.OWN_METHODS}
    entries = (root / "src/covey/methods").iterdir()
    files = {path.stem for path in entries if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules == files - {"__init__"}
    pages = {path.stem for path in (root / "docs/methods").glob("*.md")}
    assert pages - {"index"} == set(registry.OWN)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(6, 4),
        nn.Conv2d(6, 4, 3, groups=2),
        nn.Conv1d(6, 4, 3),
        nn.Conv3d(6, 4, 1),
        nn.ConvTranspose2d(6, 4, 3, groups=2),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_rank_one_weights_scale_inputs_and_outputs(layer: nn.Module) -> None:
    """w_k = W * (s r^T) is the layer between a scaling of its inputs and one of its outputs."""
    shape = (5, 6, *[4] * (layer.weight.ndim - 2))
    ens = covey.convert(layer, covey.BatchEnsemble(members=3))
    part = ens.parts["rank_one"]
    bias = ens.parts["replicated"].phi["bias"]
    x = torch.randn(shape)
    for k, output in enumerate(ens(x)):
        wide = (...,) + (None,) * (layer.weight.ndim - 2)
        inner = x * part.r["weight"][k][wide]
        outer = part.s["weight"][k][wide]
        no_bias = layer(inner) - (layer.bias[wide] if layer.weight.ndim > 2 else layer.bias)
        torch.testing.assert_close(output, no_bias * outer + bias[k][wide], rtol=1e-4, atol=1e-5)


def test_rank_one_starts_as_asked() -> None:
    layer = nn.Linear(200, 300)
    normal = covey.convert(layer, covey.BatchEnsemble(members=4, spread=0.5)).parts["rank_one"].r["weight"]
    assert normal.mean().item() == pytest.approx(1, abs=0.08)
    assert normal.std().item() == pytest.approx(0.5, rel=0.1)
    sign = covey.convert(layer, covey.BatchEnsemble(init="sign", positive=0.9)).parts["rank_one"].s["weight"]
    assert set(sign.unique().tolist()) == {-1.0, 1.0}
    assert (sign > 0).float().mean().item() == pytest.approx(0.9, abs=0.05)
    ens = covey.convert(layer, covey.BatchEnsemble(lr=0.25))
    vectors = next(g for g in ens.param_groups(0.1, 5e-4) if g["members"] and g["name"] == "rank_one")
    assert (vectors["lr"], vectors["weight_decay"]) == (0.025, 0.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 300), st.integers(2, 8), st.sampled_from([1.5, 2.0, 3.0]), st.integers(0, 1000))
def test_masks_have_the_promised_shape(features: int, members: int, scale: float, seed: int) -> None:
    masks = draw_masks(features, members, scale, seed)
    if masks is None:
        assert features < 16  # only very few features are ever refused
        return
    assert masks.shape == (members, features)
    assert masks.any(0).all()  # no feature is lost to all members
    kept = masks.sum(1)
    assert (kept == kept[0]).all()
    assert not masks.eq(masks[0]).all()


def test_masks_overlap_as_the_scale_says() -> None:
    """With m of m s positions kept, two masks share m / s of them on average."""
    masks = draw_masks(512, 4, 2.0, seed=0).float()
    kept = masks[0].sum()
    shared = torch.stack([(masks[i] * masks[j]).sum() for i in range(4) for j in range(i)]).mean()
    assert (shared / kept).item() == pytest.approx(0.5, abs=0.06)
    # m = int(c / (s (1 - (1 - 1/s)^n))) = int(512 / 1.875)
    assert kept.item() == pytest.approx(273, abs=3)


def test_a_masked_member_ignores_what_its_mask_drops() -> None:
    net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    ens = covey.convert(net, covey.Masksembles(members=4), example=torch.randn(2, 4))
    mask = ens.parts["masked"].r["2.weight"]
    assert mask.dtype == torch.float32
    for k in range(4):
        kept = mask[k].bool()
        hidden = F.relu(net[0](torch.randn(5, 4)))
        expected = hidden[:, kept] @ net[2].weight[:, kept].T + net[2].bias
        torch.testing.assert_close(ens.member(k)[2](hidden), expected)


def test_mimo_is_the_network_over_concatenated_channels() -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 5)
    ).double()
    x = torch.randn(3, 7, 2, 6, 6, dtype=torch.float64)
    ens = covey.convert(net, covey.MIMO(members=3), example=x[0])
    wide = torch.cat(list(ens.parts["stem"].phi["0.weight"]), 1)  # (8, 3 * 2, 3, 3)
    heads = ens.parts["replicated"].phi
    for mode in (True, False):
        ens.train(mode)
        middle = ens.member(0)[1:4]
        h = middle.train(mode)(F.conv2d(torch.cat(list(x), 1), wide, net[0].bias))
        expected = torch.einsum("bf,mcf->mbc", h, heads["4.weight"]) + heads["4.bias"][:, None]
        torch.testing.assert_close(ens(x, per_member=True), expected)
        running = middle[0].running_mean
        torch.testing.assert_close(ens.member(2)[1].running_mean, running)
    same = x[:1].expand(3, -1, -1, -1, -1)
    torch.testing.assert_close(ens(same, per_member=True), ens(x[0]))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0]))
def test_mimo_batches_repeat_every_sample_for_every_member(
    batch: int, members: int, repeats: int, rho: float
) -> None:
    nothing = covey.Layout(())
    share = covey.MIMO(members=members, repeats=repeats, rho=rho).share_out(nothing, batch)
    rows = share.rows
    assert rows.shape == (members, batch * repeats)
    for row in rows:
        assert row.bincount(minlength=batch).tolist() == [repeats] * batch
    same = batch * repeats - round((1 - rho) * batch * repeats)
    if rho == 1:
        assert (rows == rows[0]).all()
    assert (rows[:, len(rows[0]) - same :] == rows[0, len(rows[0]) - same :]).all()


def test_noise_is_in_units_of_the_root_mean_square() -> None:
    net = nn.Linear(300, 300)
    with torch.no_grad():
        net.weight.fill_(3.0)
    ens = covey.convert(net, covey.Replicate(members=4, noise=0.25))
    noise = ens.parts["replicated"].phi["weight"] - 3.0
    assert noise.std().item() == pytest.approx(0.75, rel=0.02)
    assert noise.mean().item() == pytest.approx(0, abs=0.01)


def test_fresh_members_are_drawn_as_their_layers_are() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.norm = nn.Linear(400, 400), nn.LayerNorm(400)
            self.token, self.zero = nn.Parameter(torch.randn(400) * 5 + 2), nn.Parameter(torch.zeros(3))

    ens = covey.convert(Net(), covey.DeepEnsemble(members=3))
    notes = {row.name: row.note for row in ens.coverage.rows}
    assert notes["fc.weight"] == "fresh by its layer's reset"
    assert notes["token"] == "fresh from its own mean and spread"
    assert notes["zero"] == "constant, kept"
    for k in range(3):
        member = ens.member(k)
        bound = 1 / 400**0.5  # torch's own uniform initialisation
        assert member.fc.weight.abs().max().item() == pytest.approx(bound, rel=0.01)
        assert member.fc.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
        assert torch.equal(member.norm.weight, torch.ones(400))
        assert member.token.std().item() == pytest.approx(5, rel=0.2)
        assert not member.zero.any()
    assert not torch.allclose(ens.member(0).token, ens.member(1).token)


def test_a_factory_makes_fresh_members() -> None:
    made = []

    def factory() -> nn.Module:
        made.append(nn.Linear(3, 2))
        return made[-1]

    ens = covey.convert(nn.Linear(3, 2), covey.DeepEnsemble(members=3, factory=factory))
    assert [torch.equal(ens.member(k).weight, made[k].weight) for k in range(3)] == [True] * 3
