"""A fused ensemble answers as the ensemble does, with less work and without covey."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.deploy import metadata
from covey.deploy.joining import named
from covey.deploy.tracing import Example
from law_networks import NETWORKS, call
from test_laws import CASES, ensemble_of

aten = torch.ops.aten
SPREAD = [
    ("batch-ensemble", "resnet"),
    ("masksembles", "mlp"),
    ("mimo", "convnet"),
    ("norm-ensemble", "twice"),
    ("shapeshifter", "depthwise"),
]
GRID = [case for case in CASES if case not in SPREAD and case[0] != "mc-dropout"]
"""MC-dropout becomes fixed draws, which the ensemble itself does not give twice."""


def fused_and_ensemble(method: str, name: str, **options: Any) -> tuple[nn.Module, covey.Ensemble]:
    ensemble = ensemble_of(method, name).eval()
    ensemble.run = "loop"
    return covey.fuse(ensemble, NETWORKS[name].x(4), **options), ensemble


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for key, tensor in expected.items():
        scale = tensor.abs().max().clamp_min(1).item()
        torch.testing.assert_close(found[key], tensor, rtol=0, atol=1e-9 * scale)


def answers(ensemble: covey.Ensemble, x: Any) -> dict[str, Tensor]:
    return named(call(ensemble.predict, x))


def targets(module: nn.Module, *wanted: Any) -> int:
    return sum(node.target in wanted for node in module.graph.nodes)  # type: ignore[union-attr]


def check(method: str, name: str) -> None:
    fused, ensemble = fused_and_ensemble(method, name)
    for samples in (1, 5):
        x = NETWORKS[name].x(samples)
        assert_equal(call(fused, x), answers(ensemble, x))


@pytest.mark.parametrize(("method", "name"), SPREAD)
def test_equal_at_any_batch_size(method: str, name: str) -> None:
    check(method, name)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), GRID)
def test_equal_for_every_method_and_network(method: str, name: str) -> None:
    check(method, name)


def test_nothing_of_covey_is_in_it() -> None:
    fused, _ = fused_and_ensemble("multi-head", "mlp")
    for node in fused.graph.nodes:  # type: ignore[union-attr]
        if node.op == "call_function":
            assert not node.target.__module__.startswith("covey")
    assert "covey" not in fused.code
    assert not list(fused.parameters())
    # the body runs once, and each member's head after it
    assert targets(fused, aten.linear.default) == 2 + 3
    with torch.no_grad():
        again = copy.deepcopy(fused)(NETWORKS["mlp"].x(2))
    assert again["member_logits"].shape == (3, 2, 4)


def test_batch_norms_are_folded_where_nothing_else_reads_the_layer() -> None:
    folded, _ = fused_and_ensemble("batch-ensemble", "resnet")
    assert targets(folded, aten.batch_norm.default) == 0

    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.fc = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.conv(x)
            return self.fc((self.norm(h) + h).mean((2, 3)))

    x = torch.randn(3, 1, 5, 5)
    ensemble = covey.convert(Read(), covey.DeepEnsemble(members=2), example=x).eval()
    fused = covey.fuse(ensemble, x)
    assert targets(fused, aten.batch_norm.default) == 2
    torch.testing.assert_close(fused(x)["member_logits"], ensemble(x))


def test_sums_and_relus_write_in_place_where_nobody_else_reads() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = x.relu()  # of the input, which is the caller's
            once = self.first(x)
            twice = (once.relu() + x).relu()  # a ReLU's own answer is not overwritten
            third = self.second(twice) + once  # `once` is read again
            return self.head(third.relu().mean((2, 3)))

    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    ensemble = covey.convert(Residual(), covey.BatchEnsemble(members=2), example=x).eval()
    for layout in ("contiguous", "channels_last"):
        fused = covey.fuse(ensemble, x, memory_format=layout)
        given = x.clone().requires_grad_()
        found = fused(given)
        torch.testing.assert_close(found["probs"], ensemble.predict(x).probs, atol=1e-5, rtol=0)
        assert torch.equal(given, x)
        (own,) = torch.autograd.grad(found["probs"][:, 0].sum(), given)
        plain = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(ensemble.answer(ensemble(plain)).probs[:, 0].sum(), plain)
        torch.testing.assert_close(own, expected, atol=1e-5, rtol=1e-4)
        assert targets(fused, aten.relu.default) == 3  # of the input, and of each member's `once`
        assert targets(fused, aten.relu_.default) == 4
        assert targets(fused, aten.add_.Tensor) >= 2


def test_masked_channels_are_cut_out() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3),
    )  # fmt: skip
    x = torch.randn(2, 1, 8, 8)
    ensemble = covey.convert(network, covey.Masksembles(members=4, scale=3.0), example=x).eval()
    ensemble.run = "loop"
    fused = covey.fuse(ensemble, x)
    torch.testing.assert_close(fused(x)["member_logits"], ensemble(x), rtol=1e-4, atol=1e-5)
    kept = -(-int(ensemble.parts["masked"].r["7.weight"][0].sum()) // 8) * 8  # type: ignore[attr-defined]
    assert kept == 16, "of 32 channels, in eights"
    shapes = [tuple(tensor.shape) for tensor in fused.buffers() if tensor.ndim > 1]
    # the first layer is shared, so that its channels are read by one member or another
    assert sorted(shapes) == [(3, kept)] * 4 + [(kept, 32, 3, 3)] * 4 + [(32, 1, 3, 3)]


def test_calibration_is_inside() -> None:
    ensemble = ensemble_of("batch-ensemble", "mlp").eval()
    ensemble.temperature = covey.scores.Temperature("members", (0.5, 2.0, 3.0))
    ensemble.conformal = covey.scores.Conformal("aps", 0.1, 0.7)
    x = NETWORKS["mlp"].x(4)
    fused = covey.fuse(ensemble, x)
    found, expected = fused(x), ensemble.predict(x)
    torch.testing.assert_close(found["probs"], expected.probs)
    assert torch.equal(found["sets"], expected.sets)


def test_regression() -> None:
    x = torch.randn(6, 3)
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    ensemble = covey.convert(network, covey.DeepEnsemble(members=3), example=x, task="gaussian").eval()
    found, expected = covey.fuse(ensemble, {"input": x})(input=x), ensemble.predict(x)
    names = ["mean", "std", "epistemic", "aleatoric", "member_mean", "member_variance"]
    assert list(found) == names
    for name in names:
        torch.testing.assert_close(found[name], getattr(expected, name))


def test_random_members_become_fixed_draws() -> None:
    x = torch.randn(64, 6)
    network = nn.Sequential(nn.Linear(6, 400), nn.Dropout(0.25), nn.Linear(400, 3))
    ensemble = covey.convert(network, covey.MCDropout(members=3), example=x).eval()
    fused = covey.fuse(ensemble, x, seed=1)
    found = fused(x)["member_logits"]
    assert torch.equal(found, fused(x)["member_logits"])
    torch.testing.assert_close(found[:, 5:6], fused(x[5:6])["member_logits"], msg="the batch does not matter")
    assert not torch.equal(found, covey.fuse(ensemble, x, seed=2)(x)["member_logits"])
    draws = [tensor for tensor in fused.buffers() if tensor.shape == (1, 400)]
    assert len(draws) == 3, "each member has its own"
    for k, draw in enumerate(draws):
        kept = draw[draw != 0]
        torch.testing.assert_close(kept, torch.full_like(kept, 1 / 0.75))
        assert 0.65 < len(kept) / 400 < 0.85
        torch.testing.assert_close(found[k], network[2](network[0](x) * draw))


def test_attention_that_drops_its_weights() -> None:
    x = torch.randn(4, 5, 8)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    ensemble = covey.convert(nn.Sequential(layer, nn.Linear(8, 3)), covey.MCDropout(members=2), example=x)
    fused = covey.fuse(ensemble, x)
    assert torch.equal(fused(x)["probs"], fused(x)["probs"])
    assert fused(x[:1])["member_logits"].shape == (2, 1, 5, 3)


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = -x
        return self.fc(x)


def test_a_network_that_cannot_be_traced_names_the_line() -> None:
    x = torch.randn(4, 3)
    ensemble = covey.convert(Choosing(), covey.DeepEnsemble(members=2), example=x, check=False)
    with pytest.raises(
        covey.CoveyError, match=r"cannot be traced at .*test_fuse.py, line \d+: if x.sum\(\) > 0"
    ):
        covey.fuse(ensemble, x)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return self.fc(x) @ by if by.ndim else self.fc(x) * by


def test_an_argument_that_is_no_batch(capfd: pytest.CaptureFixture[str]) -> None:
    x, by = torch.randn(4, 3), torch.tensor(2.0)
    ensemble = covey.convert(Scaled(), covey.DeepEnsemble(members=2), example=(x, by)).eval()
    given = Example.of(ensemble.skeleton(), (x, by))
    told = metadata.describe(ensemble, given, ["probs"], None, False, "made")["inputs"]
    assert [entry["shape"] for entry in told.values()] == [["batch", 3], []]
    torch.testing.assert_close(
        covey.fuse(ensemble, (x, by))(x[:1], by)["probs"], ensemble.predict(x[:1], by).probs
    )
    square = torch.randn(3, 3)  # as many rows as there are samples
    ensemble = covey.convert(Scaled(), covey.DeepEnsemble(members=2), example=(x, square)).eval()
    with pytest.raises(covey.CoveyError, match="as many rows as there are samples"):
        covey.fuse(ensemble, (x[:3], square))
    assert "torch/_guards.py" not in capfd.readouterr().err, "torch's own pages are not shown"


def test_examples_that_are_none() -> None:
    ensemble = ensemble_of("multi-head", "mlp")
    with pytest.raises(covey.CoveyError, match="holds no tensor"):
        covey.fuse(ensemble, {})
    with pytest.raises(covey.CoveyError, match="is a list; an exported network takes tensors"):
        covey.fuse(ensemble, ([torch.zeros(2, 6)],))
    with pytest.raises(covey.CoveyError, match="memory_format"):
        covey.fuse(ensemble, torch.zeros(2, 6), memory_format="nhwc")  # type: ignore[arg-type]


def test_examples_that_the_network_does_not_take(capfd: pytest.CaptureFixture[str]) -> None:
    ensemble = ensemble_of("multi-head", "mlp")
    with pytest.raises(covey.CoveyError, match=r"does not take the example, x \(2, 7\) of float64: "):
        covey.fuse(ensemble, torch.zeros(2, 7).double())
    with pytest.raises(covey.CoveyError, match=r"does not take the example, x \(2, 6\) of int64: "):
        covey.fuse(ensemble, torch.zeros(2, 6, dtype=torch.int64))
    with pytest.raises(covey.CoveyError, match="answer to the example is NaN"):
        covey.fuse(ensemble, torch.full((2, 6), torch.nan).double())
    with pytest.raises(covey.CoveyError, match="fuse takes an ensemble, .* got a Linear"):
        covey.fuse(nn.Linear(6, 3), torch.zeros(2, 6))  # type: ignore[arg-type]
    assert capfd.readouterr().err == ""


def test_inputs_of_another_kind_are_refused() -> None:
    fused = covey.fuse(ensemble_of("multi-head", "mlp"), torch.zeros(2, 6).double())
    for dtype in (torch.float32, torch.int64):
        with pytest.raises(
            AssertionError, match=r"fused for x of float64; convert it with x.to\(torch.float64\)"
        ):
            fused(torch.zeros(2, 6, dtype=dtype))
    tokens = torch.randint(0, 11, (4, 5))
    fused = covey.fuse(covey.convert(Positions(), covey.DeepEnsemble(members=2), example=tokens), tokens)
    assert_equal(fused(tokens.int()), fused(tokens))
    with pytest.raises(AssertionError, match="fused for tokens of int64"):
        fused(tokens.float())


class Positions(nn.Module):
    """Adds as many positions as there are tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Parameter(torch.randn(1, 16, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head((self.words(tokens) + self.places[:, : tokens.shape[1]]).relu().mean(1))


def test_inputs_of_another_size_are_refused() -> None:
    tokens = torch.randint(0, 11, (4, 5))
    ensemble = covey.convert(Positions(), covey.DeepEnsemble(members=2), example=tokens).eval()
    fused = covey.fuse(ensemble, tokens)
    assert_equal(fused(tokens[:3]), named(ensemble.predict(tokens[:3])))
    # one token would be added to five positions, and answered
    for others in (tokens[:, :1], torch.randint(0, 11, (4, 9))):
        with pytest.raises(
            AssertionError, match=r"fused for tokens of shape \(batch, 5\); fuse again for another"
        ):
            fused(others)


class Pooled(nn.Module):
    """Pools over its features, (B, C), which to torch are one image of B channels."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.first, self.pool, self.last = nn.Linear(6, 32), pool, nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pool(self.first(x)))


@pytest.mark.parametrize("pool", [nn.MaxPool1d(2), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(16)])
def test_pools_over_features_are_not_cut(pool: nn.Module) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6)
    ensemble = covey.convert(Pooled(pool), covey.BatchEnsemble(members=2), example=x).eval()
    torch.testing.assert_close(covey.fuse(ensemble, x)(x)["probs"], ensemble.predict(x).probs)


class InputAndX(nn.Module):
    """Two arguments, of which the first has the name that torch's containers give to x."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(4, 3)

    def forward(self, input: Tensor, x: Tensor) -> Tensor:
        return self.first(input) + self.second(x)


def test_arguments_called_input_and_x() -> None:
    torch.manual_seed(0)
    both = torch.randn(5, 6), torch.randn(5, 4)
    ensemble = covey.convert(InputAndX(), covey.BatchEnsemble(members=2), example=both).eval()
    torch.testing.assert_close(covey.fuse(ensemble, both)(*both)["probs"], ensemble.predict(*both).probs)


def test_an_example_without_samples() -> None:
    ensemble = covey.convert(nn.Linear(6, 3), covey.DeepEnsemble(members=2), example=torch.randn(2, 6))
    with pytest.raises(covey.errors.OptionError, match=r"'x' is empty, of shape \(0, 6\)"):
        covey.fuse(ensemble, torch.randn(0, 6))
