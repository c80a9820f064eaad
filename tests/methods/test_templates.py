from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import covey
from covey.parts.templates import Templates
from covey.scores.cost import peak_bytes

X = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(0))


def _net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        *(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


METHODS = {
    "hypernetwork": covey.Hypernetwork(members=3, budget=None, sizes=(2, 2, 3)),
    "mixture": covey.Mixture(members=3, budget=4.0),
    "superweights": covey.SuperWeights(members=3, budget=4.0),
    "shapeshifter": covey.ShapeShifter(members=3, budget=4.0),
}
EACH = pytest.mark.parametrize("name", METHODS)


def _made(name: str) -> tuple[covey.Ensemble, Templates]:
    ensemble = covey.convert(_net(), METHODS[name], example=X)
    part = ensemble.parts[name]
    assert isinstance(part, Templates)
    return ensemble, part


def _counted(part: Templates, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    calls: list[tuple[int, ...]] = []
    generate = part._generate

    def counting(body: int, members: tuple[int, ...], alone: bool) -> dict[str, torch.Tensor]:
        calls.append(members)
        return generate(body, members, alone)

    monkeypatch.setattr(part, "_generate", counting)
    return calls


@EACH
@pytest.mark.parametrize("run", ["loop", "batched"])
def test_eval_mode_generates_once_until_a_parameter_changes(
    name: str, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble, part = _made(name)
    ensemble.eval().run = run
    calls = _counted(part, monkeypatch)
    with torch.no_grad():
        first = ensemble(X)
        once = len(calls)
        assert once == (3 if run == "loop" else 1)
        assert torch.equal(ensemble(X), first)
        assert len(calls) == once
        next(part.parameters()).mul_(1.5)
        changed = ensemble(X)
        assert len(calls) == 2 * once
        assert not torch.allclose(changed, first)
        with torch.inference_mode():
            assert torch.equal(ensemble(X), changed)
        ensemble.load_state_dict({n: t * 0.5 for n, t in ensemble.state_dict().items()})
        half = ensemble(X)
        assert len(calls) == 3 * once
        ensemble.to(torch.float64)
        assert ensemble(X.double()).dtype == torch.float64
        assert len(calls) == 4 * once
        torch.testing.assert_close(ensemble(X.double()).float(), half, rtol=1e-4, atol=1e-5)
        twin = copy.deepcopy(ensemble)
        for parameter in twin.parameters():
            parameter.zero_()
        assert not twin(X.double()).any()


@EACH
def test_gradients_and_train_mode_never_meet_kept_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble, part = _made(name)
    ensemble.eval().run = "loop"
    with torch.no_grad():
        kept = ensemble(X)
    calls = _counted(part, monkeypatch)
    ensemble(X).sum().backward()
    assert len(calls) == 3
    assert all(p.grad is not None for p in part.parameters())
    before = len(calls)
    with torch.no_grad():
        ensemble.train()(X)
    assert len(calls) == before + 3
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.data.mul_(2)  # counts no change, hence the promise that train() and eval() forget
        assert not torch.allclose(ensemble.eval()(X), kept)


@EACH
def test_above_the_limit_nothing_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ensemble, part = _made(name)
    part.keep = 0
    ensemble.eval().run = "loop"
    calls = _counted(part, monkeypatch)
    with torch.no_grad():
        ensemble(X)
        ensemble(X)
    assert len(calls) == 6
    assert not part._kept


@EACH
@pytest.mark.parametrize("keep", [0, 256])
def test_a_loop_at_inference_holds_one_member_s_weights_or_keeps_them_all(name: str, keep: int) -> None:
    wide = nn.Sequential(
        *(nn.Conv2d(32, 32, 3, padding=1) for _ in range(5)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 3),
    )
    ensemble = covey.convert(wide, METHODS[name], example=torch.zeros(2, 32, 3, 3)).eval()
    ensemble.run = "loop"
    ensemble.parts[name].keep = keep
    x = torch.zeros(1, 32, 3, 3)
    stored = sum(t.nbytes for t in [*ensemble.parameters(), *ensemble.buffers(), x])
    with torch.inference_mode():
        made = (peak_bytes(ensemble, x) - stored) / sum(p.nbytes for p in wide.parameters())
    assert made < 2 if keep == 0 else 2.5 < made < 4.5


@EACH
def test_the_coverage_table_adds_up(name: str) -> None:
    ensemble, _ = _made(name)
    assert ensemble.coverage.total == sum(p.numel() for p in ensemble.parameters())
    assert "templates of" in str(ensemble.coverage)


@EACH
def test_the_gradient_of_templates_is_scaled_by_gamma(name: str) -> None:
    from dataclasses import replace

    gradients = []
    for gamma in (1.0, 0.25):
        ensemble = covey.convert(_net(), replace(METHODS[name], gamma=gamma), example=X)
        ensemble.load_state_dict(gradients[0][1] if gradients else ensemble.state_dict())
        ensemble.run = "loop"
        ensemble(X).square().sum().backward()
        bank = next(iter(ensemble.parts[name].named_banks().values()))
        gradients.append((bank.theta.grad, copy.deepcopy(ensemble.state_dict()), bank.alpha.grad))
        ensemble.load_state_dict(gradients[0][1])
    torch.testing.assert_close(gradients[0][0] * 0.25, gradients[1][0])
    torch.testing.assert_close(gradients[0][2], gradients[1][2])


@EACH
def test_stored_bytes_are_those_of_parameters_and_buffers(name: str, tmp_path) -> None:
    wide = nn.Sequential(
        *(nn.Conv2d(48, 48, 3, padding=1) for _ in range(4)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 3),
    )
    ensemble = covey.convert(wide, METHODS[name], example=torch.zeros(2, 48, 4, 4))
    covey.save(ensemble, tmp_path)
    (file,) = tmp_path.glob("*.safetensors")
    bytes_ = sum(t.numel() * t.element_size() for t in ensemble.state_dict().values())
    assert bytes_ <= file.stat().st_size <= 1.01 * bytes_


@EACH
def test_layers_that_the_answer_does_not_use_get_no_templates(name: str, tmp_path) -> None:
    class WithAux(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.aux = _net(), nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.body(x), self.aux(x)

    ensemble = covey.convert(WithAux(), METHODS[name], example=X, output=0)
    assert not [made for made in ensemble.parts[name].names if made.startswith("aux")]
    assert ensemble.parts[name].names
    ensemble.run = "loop"
    covey.save(ensemble.eval(), tmp_path)
    with torch.no_grad():
        assert torch.equal(covey.load(tmp_path, network=WithAux())(X), ensemble(X))


def _mixed(linear: int, kernels: int) -> nn.Module:
    """Square matrices of 64 parameters and kernels of 64 behind each other, and a head."""
    convolutions = [nn.Conv1d(4, 4, 4, padding="same", bias=False) for _ in range(kernels)]
    matrices = [nn.Linear(8, 8, bias=False) for _ in range(linear)]
    return nn.Sequential(*convolutions, *matrices, nn.Flatten(), nn.Linear(32, 3))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(
    ("linear", "kernels", "counts"), [(3, 0, True), (3, 2, True), (2, 2, False), (2, 3, False)]
)
@pytest.mark.parametrize("kind", ["hypernetwork", "mixture", "superweights", "shapeshifter"])
def test_what_a_network_is_made_of_decides_whether_linear_layers_count(
    kind: str, linear: int, kernels: int, counts: bool, tmp_path
) -> None:
    x = torch.randn(5, 4, 8)
    network = _mixed(linear, kernels)
    ensemble = covey.convert(network, covey.METHODS[kind](members=3), example=x)
    assert ensemble.layout.facts["linear"] is counts
    made = ensemble.layout.facts["makeup"][0]
    assert len(made) == kernels + (linear if counts else 0)
    covey.save(ensemble, tmp_path / kind)
    again = covey.load(tmp_path / kind, network=_mixed(linear, kernels))
    assert again.layout == ensemble.layout
    assert again.method == ensemble.method


@pytest.mark.parametrize("kind", ["hypernetwork", "mixture", "superweights", "shapeshifter"])
def test_a_budget_that_nobody_set_is_the_least_that_works(kind: str) -> None:
    # four heads and norms leave no room within the size of one network
    network = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 40))
    make, x = covey.METHODS[kind], torch.randn(5, 4)
    size = sum(p.numel() for p in network.parameters())
    heads = {"heads": "member"} if kind == "mixture" else {}
    ensemble = covey.convert(network, make(members=4, **heads), example=x)
    least = ensemble.layout.facts["budget"]
    assert size < ensemble.coverage.total <= least
    with pytest.raises(
        covey.CoveyError, match=f"at least {least:,} .*Raise the budget to {least} or leave it out"
    ):
        covey.convert(network, make(members=4, budget=least - 1, **heads), example=x)
    same = covey.convert(network, make(members=4, budget=least, **heads), example=x)
    assert same.layout == ensemble.layout
    # where the size of one network is enough, that is the budget
    wide = nn.Sequential(*(nn.Linear(24, 24) for _ in range(9)), nn.Linear(24, 2))
    assert covey.convert(wide, make(members=4), example=torch.randn(5, 24)).layout.facts["budget"] == 1.0
