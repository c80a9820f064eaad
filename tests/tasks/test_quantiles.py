"""Quantile regression: the pinball loss, the members' mean, intervals and their coverage."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient
from torch import Tensor, nn

import covey
from covey import Quantiles
from covey.calibration import Margin
from covey.cli.main import main
from covey.cli.serve import ServeFlags, _application
from covey.deploy import DeployedEnsemble, select_members
from covey.errors import DataError, OptionError, StoreError
from covey.quantiles import QuantileAnswer
from covey.scores import Evaluation, Record, fit_margin
from covey.serving import Limits
from covey.train import Machine, Recipe

LEVELS = Quantiles((0.05, 0.5, 0.95))


def noisy(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise that grows with x, of which the true quantiles are known."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(samples, 1, generator=generator)
    return x, x[:, 0] + (0.1 + x[:, 0]) * torch.randn(samples, generator=generator)


def network(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, outputs))


def test_the_loss_is_smallest_at_the_quantiles() -> None:
    targets = torch.randn(2001, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    true = torch.tensor(np.quantile(targets.numpy(), LEVELS.levels))
    best = LEVELS.losses(true.expand(2001, 3), targets).mean(0)
    for step in (-0.1, 0.1):
        assert (LEVELS.losses((true + step).expand(2001, 3), targets).mean(0) > best).all()
    assert torch.autograd.gradcheck(
        lambda q: LEVELS(q, targets[:4]), torch.randn(4, 3).double().requires_grad_()
    )


def test_members_are_averaged_and_put_in_order() -> None:
    members = torch.tensor([[[0.0, 5.0, 4.0]], [[2.0, 3.0, 2.0]]])  # their mean is 1, 4, 3
    found = LEVELS.answer(members)
    assert found.quantiles.tolist() == [[1.0, 3.0, 4.0]]
    assert found.crossing == 1.0
    assert found.epistemic.tolist() == [[1.0, 1.0, 1.0]]
    scores = found.scores(torch.tensor([4.5]))
    assert scores["coverage"] == 0.0
    assert scores["width"] == 3.0
    assert scores["pinball"] == pytest.approx((0.05 * 3.5 + 0.5 * 1.5 + 0.95 * 0.5) / 3)
    assert scores["nominal"] == pytest.approx(0.9)


@pytest.mark.slow
def test_it_trains_and_covers() -> None:
    x, y = noisy(1500, 0)
    recipe = Recipe(epochs=60, batch=100, optimizer="adam", lr=0.02, decay=0.0, run="loop")
    machine = Machine(accelerator="cpu", progress=False)
    history = covey.fit(
        network(), (x, y), recipe, method=covey.BatchEnsemble(members=2), loss=LEVELS, machine=machine
    )
    made = history.ensemble.eval()
    (known, known_y), (new, new_y) = noisy(500, 1), noisy(2000, 2)
    assert made.task == "quantiles(0.05, 0.5, 0.95)"
    found = covey.evaluate(made, (new, new_y), validation=(known, known_y))
    assert history.last["rmse"] < 0.9  # of the median; the noise itself has about 0.66
    with torch.no_grad():
        validation, test = (LEVELS.answer(made(given)) for given in (known, new))
    scores = test.scores(new_y)
    assert scores["coverage"] == pytest.approx(0.9, abs=0.04)
    assert {name: found.scores["ensemble"][name] for name in scores} == pytest.approx(scores)
    assert found.calibration["margin"].margin == test.conformal(validation, known_y).margin
    assert found.scores["calibration"]["margin"]["coverage"] == pytest.approx(0.9, abs=0.04)
    widths = (test.high - test.low)[new[:, 0].argsort()]
    assert widths[-200:].mean() > 2 * widths[:200].mean()  # as the noise is
    wider = test.conformal(validation, known_y, alpha=0.02)
    assert wider.margin > 0
    assert wider.scores(new_y)["coverage"] == pytest.approx(0.98, abs=0.02)


def test_two_levels_are_no_mean_and_variance() -> None:
    pair = Quantiles((0.1, 0.9))
    assert pair.centre(torch.tensor([[1.0, 3.0]])).tolist() == [[2.0]]
    assert LEVELS.centre(torch.tensor([[1.0, 3.0, 9.0]])).tolist() == [[3.0]]
    history = covey.fit(
        network(2), noisy(40, 0), Recipe(epochs=1, run="loop"), method=covey.DeepEnsemble(members=2), loss=pair,
        machine=Machine(accelerator="cpu", progress=False),
    )  # fmt: skip
    assert history.ensemble.task == "quantiles(0.1, 0.9)"


def two_targets(samples: int, seed: int, scale: float = 3.0, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """The same noise around x, and noise of its own that is `scale` times as large."""
    x, y = noisy(samples, seed)
    _, other = noisy(samples, seed + 100)
    return x, torch.stack((y, shift + scale * other), 1)


def test_several_targets_are_so_many_alone() -> None:
    torch.manual_seed(0)
    outputs, targets = torch.randn(2, 50, 6), torch.randn(50, 2)
    together = LEVELS.answer(outputs)
    assert together.quantiles.shape == (50, 2, 3)
    margins = together.fitted_margin(targets)
    for k in range(2):
        alone = LEVELS.answer(outputs[..., 3 * k : 3 * k + 3])
        torch.testing.assert_close(together.quantiles[:, k], alone.quantiles)
        torch.testing.assert_close(together.epistemic[:, k], alone.epistemic)
        assert margins[k] == alone.fitted_margin(targets[:, k])
        wider = LEVELS.answer(outputs, margins)
        torch.testing.assert_close(
            wider.high[:, k], alone.conformal(alone, targets[:, k]).high, msg="each target has its own margin"
        )
    losses = [LEVELS(outputs[0, :, 3 * k : 3 * k + 3], targets[:, k]) for k in range(2)]
    torch.testing.assert_close(LEVELS(outputs[0], targets), sum(losses) / 2)
    torch.testing.assert_close(LEVELS.each(outputs[0], targets).mean(), sum(losses) / 2)
    with pytest.raises(OptionError, match=r"targets have shape \(50, 1\); expected .*\(50, 2, 1\)"):
        LEVELS(outputs[0], targets[:, 0])
    with pytest.raises(OptionError, match="fitted for 1 target, and the answer is for 2"):
        _ = LEVELS.answer(outputs, (0.1,)).low


def test_several_targets_from_training_to_a_file(tmp_path: Path) -> None:
    (x, y), (known, known_y), (new, new_y) = (
        two_targets(count, seed) for seed, count in enumerate((300, 200, 400))
    )
    data = covey.data.adapt({"train": (x, y), "validation": (known, known_y), "test": (new, new_y)})
    recipe = Recipe(
        epochs=15, batch=50, optimizer="adam", lr=0.02, run="loop", quantiles=LEVELS.levels, keep="best"
    )
    machine = Machine(accelerator="cpu", progress=False)
    history = covey.fit(network(6), data, recipe, method=covey.BatchEnsemble(members=2), machine=machine)
    ensemble = history.ensemble.eval()
    found = covey.evaluate(ensemble, data)
    assert found.scores["calibration"]["margin"]["coverage"] == pytest.approx(0.9, abs=0.05)
    ensemble.conformal = found.calibration["margin"]
    answer = ensemble.predict(new)
    covered = ((answer.low <= new_y) & (new_y <= answer.high)).double().mean(0)
    assert ((covered > 0.8) & (covered < 0.98)).all(), covered
    covey.save(ensemble, tmp_path / "stored")
    again = covey.load(tmp_path / "stored", network=network(6))
    assert again.conformal == ensemble.conformal
    record = found.record
    assert record is not None
    record.save(tmp_path / "outputs.npz")
    assert Record.load(tmp_path / "outputs.npz").targets.shape == (400, 2)
    chosen = select_members(ensemble, data, keep=1, score="pinball")
    assert len(chosen.members) == 1
    covey.export(ensemble, tmp_path / "file.onnx", new[:5])
    told = DeployedEnsemble(tmp_path / "file.onnx").predict(new[:7])
    torch.testing.assert_close(told.high, answer.high[:7], rtol=1e-4, atol=1e-4)
    assert told.quantiles.shape == (7, 2, 3)


def test_several_targets_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = two_targets(300, 0, scale=100, shift=1000)
    np.savez("own.npz", x=x.numpy(), y=y.numpy())
    words = "train batch-ensemble --members 2 --data own.npz --quantiles 0.1 0.5 0.9 --epochs 4 --batch 20"
    assert main([*words.split(), "--lr", "0.02", "--keep", "best", "--no-progress", "--folder", "run"]) == 0
    assert main(["evaluate", "run"]) == 0
    assert "quantiles, 80 %" in (tmp_path / "run" / "report.html").read_text()
    margins = Evaluation.load("run").calibration["margin"].margin
    np.save("new.npy", x[:5].numpy())
    assert main(["export", "run"]) == 0
    rows = {}
    for source in ("run", "run/ensemble.onnx"):
        capsys.readouterr()
        assert main(["predict", source, "new.npy"]) == 0
        rows[source] = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    for own, exported in zip(*rows.values(), strict=True):
        assert {k: float(v) for k, v in own.items()} == pytest.approx(
            {k: float(v) for k, v in exported.items()}, rel=1e-4, abs=1e-4
        )
        for k, (lowest, highest) in enumerate(((-2, 4), (800, 1500))):
            assert lowest < float(own[f"q(0.1)[{k}]"]) <= float(own[f"q(0.9)[{k}]"]) < highest
            margin = float(own[f"q(0.1)[{k}]"]) - float(own[f"low[{k}]"])
            assert margin == pytest.approx(margins[k], abs=0.01 * abs(highest)), "in the target's unit"
    with pytest.raises(OptionError, match="one class or one number per sample are served"):
        _application(ServeFlags(folder="run"), Limits())


def test_what_does_not_fit() -> None:
    for levels in ((), (0.0, 0.5), (0.9, 0.1), (0.5, 0.5)):
        with pytest.raises(OptionError, match="between 0 and 1 and rise"):
            Quantiles(levels)
    with pytest.raises(OptionError, match=r"3 quantiles need as many"):
        LEVELS(torch.zeros(4, 2), torch.zeros(4))
    with pytest.raises(OptionError, match=r"targets have shape \(3, 1\); expected .*\(4, 1\)"):
        LEVELS(torch.zeros(4, 3), torch.zeros(3))
    with pytest.raises(OptionError, match=r"members' outputs \(M, B, 3\)"):
        LEVELS.answer(torch.zeros(4, 3))
    found = LEVELS.answer(torch.zeros(2, 4, 3))
    with pytest.raises(OptionError, match="4 validation samples are too few for alpha=0.1; it takes 9"):
        found.conformal(found, torch.zeros(4))
    with pytest.raises(OptionError, match=r"targets have shape \(5,\); the answer is for \(4,\)"):
        found.scores(torch.zeros(5))


def test_a_margin_is_the_smallest_that_keeps_the_promise() -> None:
    answer = Quantiles((0.4, 0.6)).answer(torch.zeros(1, 9, 2))
    assert answer.fitted_margin(torch.arange(1.0, 10.0), alpha=0.7) == 3.0  # of 9, the 10 * 0.3rd
    with pytest.raises(OptionError, match="some targets or quantiles are NaN"):
        answer.fitted_margin(torch.tensor([float("nan"), *range(8)]))


def test_an_ensemble_carries_its_levels_and_its_margin(tmp_path: Path) -> None:
    x, y = noisy(60, 0)
    ensemble = covey.convert(network(), covey.DeepEnsemble(members=2), example=x, task=LEVELS)
    with torch.no_grad():
        assert ensemble.loss(x, y) == pytest.approx(sum(LEVELS(own, y) for own in ensemble(x)))
    answer = ensemble.predict(x)
    assert isinstance(answer, QuantileAnswer)
    assert not answer.guaranteed
    assert "0.05" in str(answer)
    ensemble.conformal = fit_margin(answer, y)
    covey.save(ensemble, tmp_path / "stored")
    again = covey.load(tmp_path / "stored", network=network()).predict(x)
    assert again.asked == LEVELS
    torch.testing.assert_close(again.high, answer.high + ensemble.conformal.margin)
    assert ((again.low <= y) & (y <= again.high)).double().mean() >= 0.9
    config = json.loads((tmp_path / "stored" / "config.json").read_text())
    for task in ("quantiles(0.9, 0.1)", "quantiles(a)", "quantile"):
        (tmp_path / "stored" / "config.json").write_text(json.dumps({**config, "task": task}))
        with pytest.raises(StoreError, match="rise|is written such as|task is one of"):
            covey.load(tmp_path / "stored", network=network())


def test_a_negative_margin_leaves_no_end_beyond_the_other() -> None:
    answer = LEVELS.answer(torch.tensor([[[0.0, 1.0, 2.0], [0.0, 3.0, 8.0]]]), margin=-3.0)
    assert answer.low.tolist() == [1.0, 3.0]
    assert answer.high.tolist() == [1.0, 5.0]


def test_scores_of_one_level_have_no_interval() -> None:
    median = Quantiles((0.5,))
    found = covey.evaluate(network(1), noisy(40, 0), task=median)
    assert found.about["task"] == "quantiles(0.5)"
    assert found.scores["ensemble"]["coverage"] is None
    x, y = noisy(40, 0)
    outputs = network(1)(x).detach()
    assert found.scores["ensemble"]["pinball"] == pytest.approx(float((outputs[:, 0] - y).abs().mean() / 2))


def test_samples_have_weights() -> None:
    x, y = noisy(30, 0)
    weights = torch.linspace(0.5, 1.5, 30)
    ensemble = covey.convert(network(), covey.DeepEnsemble(members=2), example=x, task=LEVELS)
    with torch.no_grad():
        found, outputs = ensemble.losses(x, y, weights=weights).tolist(), ensemble(x).tolist()
    for own, loss in zip(outputs, found, strict=True):
        expected = 0.0
        for quantiles, target, weight in zip(own, y.tolist(), weights.tolist(), strict=True):
            for level, q in zip(LEVELS.levels, quantiles, strict=True):
                expected += weight * max(level * (target - q), (level - 1) * (target - q)) / 90
        assert loss == pytest.approx(expected, rel=1e-5)
    data = covey.data.adapt((x, y), sample_weight=weights)
    machine = Machine(accelerator="cpu", progress=False)
    recipe = Recipe(epochs=1, batch=10, run="loop", quantiles=LEVELS.levels)
    covey.fit(network(), data, recipe, method=covey.DeepEnsemble(members=2), machine=machine)


def test_members_are_chosen_by_their_pinball_loss() -> None:
    x, y = noisy(60, 0)
    ensemble = covey.convert(network(), covey.DeepEnsemble(members=3), example=x, task=LEVELS)
    chosen = select_members(ensemble, (x, y), keep=1, score="pinball")
    with torch.no_grad():
        alone = [float(LEVELS(own.sort(-1).values, y)) for own in ensemble(x)]
    assert chosen.members == (alone.index(min(alone)),)
    with pytest.raises(OptionError, match="score is 'pinball' for these quantiles"):
        select_members(ensemble, (x, y), score="nll")


def test_what_is_refused_before_training(tmp_path: Path) -> None:
    x, y = noisy(40, 0)
    machine = Machine(accelerator="cpu", progress=False)
    recipe = Recipe(epochs=1, quantiles=(0.1, 0.9))
    with pytest.raises(OptionError, match="between 0 and 1 and rise"):
        Recipe(quantiles=(0.9, 0.1))
    with pytest.raises(OptionError, match="leave out loss='mse'"):
        Recipe(quantiles=(0.1, 0.9), loss="mse")
    with pytest.raises(OptionError, match="data are for classification.*--task regression"):
        covey.fit(network(2), (x, (y > 0).long()), recipe, machine=machine)
    with pytest.raises(DataError, match="has 2 outputs and the data need 4: 2 numbers with loss 'quantiles"):
        covey.fit(network(2), (x, torch.stack((y, y), 1)), recipe, machine=machine)
    with pytest.raises(
        DataError, match=r"the network has 3 outputs and the data need 2: .* 'quantiles\(0.1, 0.9\)'"
    ):
        covey.fit(network(3), (x, y), recipe, machine=machine)
    with pytest.raises(OptionError, match="choose='nll' is not defined for quantiles"):
        covey.fit(network(2), (x, y), Recipe(quantiles=(0.1, 0.9), choose="nll"), machine=machine)
    teacher = covey.convert(network(), covey.DeepEnsemble(members=2), example=x, task=LEVELS)
    with pytest.raises(OptionError, match="the teacher's task is 'quantiles"):
        covey.distill(teacher, network(), (x, y), Recipe(epochs=1), machine=machine)


def test_a_run_goes_on_with_its_own_levels(tmp_path: Path) -> None:
    def fit(levels: Quantiles, epochs: int, **options: bool) -> covey.Ensemble:
        recipe = Recipe(epochs=epochs, batch=20, run="loop")
        return covey.fit(
            network(), noisy(40, 0), recipe, method=covey.DeepEnsemble(members=2), loss=levels, folder=tmp_path / "run",
            machine=Machine(accelerator="cpu", progress=False), **options,
        ).ensemble  # fmt: skip

    fit(LEVELS, 1)
    with pytest.raises(
        StoreError, match=r"own.loss was .quantiles\(0.05, 0.5, 0.95\). and is .quantiles\(0.1,"
    ):
        fit(Quantiles((0.1, 0.5, 0.9)), 2, resume=True)
    assert fit(LEVELS, 2, resume=True).task == str(LEVELS)


def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = noisy(300, 0)
    np.savez("own.npz", x=x.numpy(), y=1000 + 100 * y.numpy())
    words = "train batch-ensemble --members 2 --data own.npz --quantiles 0.1 0.5 0.9 --epochs 4 --batch 20"
    assert main([*words.split(), "--lr", "0.02", "--keep", "best", "--no-progress", "--folder", "run"]) == 0
    assert main(["evaluate", "run"]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    for told in ("Pinball", "quantiles, 80 %", "Share of targets at or below each quantile"):
        assert told in page
    scores = Evaluation.load("run")
    assert isinstance(scores.calibration["margin"], Margin)
    assert Record.load("run/outputs.npz").task == "quantiles(0.1, 0.5, 0.9)"
    with TestClient(_application(ServeFlags(folder="run", defer=100), Limits())) as client:
        answer = client.post("/predict", json={"rows": x[:5].tolist(), "members": True}).json()
        tensors = {"inputs": [{"name": "x0", "shape": [5, 1], "datatype": "FP64", "data": x[:5].tolist()}]}
        outputs = client.post("/v2/models/run/infer", json=tensors).json()["outputs"]
        assert client.get("/v2/models/run").json()["outputs"][1]["shape"] == [-1, 3]
    assert answer["levels"] == [0.1, 0.5, 0.9]
    assert {output["name"]: output["shape"] for output in outputs}["quantiles"] == [5, 3]
    np.save("new.npy", x[:5].numpy())
    assert main(["export", "run"]) == 0
    deployed = DeployedEnsemble("run/ensemble.onnx")
    assert {"quantiles", "low", "high"} <= set(deployed.about["outputs"])
    rows = {}
    for source in ("run", "run/ensemble.onnx"):
        capsys.readouterr()
        assert main(["predict", source, "new.npy"]) == 0
        rows[source] = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    for own, served in zip(rows["run"], answer["predictions"], strict=True):
        assert [float(own[f"q({level})"]) for level in (0.1, 0.5, 0.9)] == pytest.approx(
            served["quantiles"], rel=1e-4
        )
        assert served["high"] == pytest.approx(float(own["high"]), rel=1e-4)
        assert np.mean(served["members"], 0) == pytest.approx(served["quantiles"], rel=1e-4)
        assert served["defer"] == (served["width"] > 100)
    for own, exported in zip(*rows.values(), strict=True):
        assert {key: float(own[key]) for key in own} == pytest.approx(
            {k: float(v) for k, v in exported.items()}, rel=1e-4
        )
        assert 800 < float(own["q(0.1)"]) <= float(own["q(0.5)"]) <= float(own["q(0.9)"]) < 1500
        margin = float(own["q(0.1)"]) - float(own["low"])
        assert margin == pytest.approx(scores.calibration["margin"].margin, abs=0.01), "in the target's unit"
