"""Lightning's Trainer trains ensembles, and gives the numbers that covey gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import covey
from covey.errors import DataError, OptionError
from covey.train import Machine, Recipe, Schedule

lightning = pytest.importorskip("lightning")
EnsembleModule = covey.lightning.EnsembleModule

pytestmark = pytest.mark.filterwarnings("default")  # Lightning warns for itself

INPUTS = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0).long()
LOADER = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=10)


def network(outputs: int = 3, width: int = 8, dropout: float = 0.5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, outputs)
    )


def ensemble(method: covey.Method | None = None, **options: Any) -> covey.Ensemble:
    outputs = {"regression": 1, "gaussian": 2}.get(options.get("task", ""), 3)
    method = covey.BatchEnsemble(members=2) if method is None else method
    made = covey.convert(network(outputs), method, example=INPUTS[:4], **options)
    made.run = "loop"
    return made


class Seeded(lightning.Callback):
    """The same dropout at the same step, however many random numbers a trainer draws for itself."""

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        torch.manual_seed(trainer.global_step)


def trainer(**options: Any) -> Any:
    settings = dict(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=1,
    )
    callbacks = [Seeded(), *options.pop("callbacks", [])]
    return lightning.Trainer(**{**settings, **options}, callbacks=callbacks)


def sgd(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, momentum=0.9)


def same_scores(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (None if value is None else pytest.approx(value, rel=1e-5)), name


def equal(one: covey.Ensemble, other: covey.Ensemble) -> None:
    for name, tensor in one.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


def test_it_trains_as_a_loop_of_ones_own_does() -> None:
    # validation in between must change nothing, nor leave the networks' dropout off
    by_hand, trained = ensemble(), ensemble()
    optimiser = sgd(by_hand.param_groups(0.1, 0.01))
    by_hand.train()
    for epoch in range(2):
        for i, (x, y) in enumerate(LOADER):
            torch.manual_seed(3 * epoch + i)
            optimiser.zero_grad()
            by_hand.loss(x, y).backward()
            optimiser.step()
        for group in optimiser.param_groups:
            group["lr"] *= 0.5
    module = EnsembleModule(
        trained,
        lr=0.1,
        weight_decay=0.01,
        optimizer=sgd,
        schedule=lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.5),
    )
    trainer().fit(module, LOADER, LOADER)
    equal(by_hand, trained)
    assert trained.skeleton().training


def test_it_trains_as_coveys_own_engine_does() -> None:
    # without dropout, whose random numbers the engine keeps apart for each step
    trained, expected = (
        covey.convert(network(dropout=0.0), covey.BatchEnsemble(members=3), example=INPUTS[:2], seed=0)
        for _ in "ab"
    )
    trained.run = "loop"
    trainer().fit(EnsembleModule(trained, lr=0.1, weight_decay=0.01, optimizer=sgd), LOADER)
    recipe = Recipe(
        epochs=2, batch=10, shuffle=False, lr=0.1, momentum=0.9, nesterov=False, decay=0.01,
        schedule=Schedule(kind="constant"), run="loop",
    )  # fmt: skip
    data = covey.data.adapt((INPUTS, TARGETS), validation=0)
    covey.fit(expected, data, recipe, machine=Machine(accelerator="cpu", progress=False))
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(trained.state_dict()[name], tensor, msg=name)


def test_evaluation_is_coveys() -> None:
    made = ensemble()
    module = EnsembleModule(made)
    run = trainer()
    run.fit(module, LOADER, LOADER)
    expected = covey.evaluate(made, (INPUTS, TARGETS))
    scores = expected.scores["ensemble"]
    assert float(run.callback_metrics["val_nll"]) == pytest.approx(scores["nll"], rel=1e-5)
    assert float(run.callback_metrics["val_accuracy"]) == pytest.approx(scores["accuracy"])
    logged = run.test(module, LOADER, verbose=False)[0]
    assert module.evaluation is not None
    same_scores(module.evaluation.scores["ensemble"], scores)
    assert logged["test_ece"] == pytest.approx(scores["ece"], rel=1e-5)
    answers = run.predict(module, LOADER)
    torch.testing.assert_close(torch.cat([found["probs"] for found in answers]), made.predict(INPUTS).probs)


@pytest.mark.parametrize("task", ["regression", "gaussian"])
def test_regression(task: str) -> None:
    made = ensemble(task=task)
    goal = INPUTS.sum(1)
    loader = DataLoader(TensorDataset(INPUTS, goal), batch_size=10)
    module = EnsembleModule(made)
    run = trainer(max_epochs=1)
    run.fit(module, loader, loader)
    expected = covey.evaluate(made, (INPUTS, goal), task="regression").scores["ensemble"]
    assert float(run.callback_metrics["val_mse"]) == pytest.approx(expected["rmse"] ** 2, rel=1e-4)
    run.test(module, loader, verbose=False)
    assert module.evaluation is not None
    same_scores(module.evaluation.scores["ensemble"], expected)


@pytest.mark.parametrize("validated", [False, True])
def test_labels_that_the_head_does_not_have(validated: bool) -> None:
    loader = DataLoader(TensorDataset(INPUTS, TARGETS + 5), batch_size=10)
    with pytest.raises(DataError, match="labels go from 5 to 7, and the network has 3 outputs"):
        trainer().fit(EnsembleModule(ensemble()), loader, loader if validated else None)


def test_quantiles() -> None:
    levels = covey.Quantiles((0.1, 0.5, 0.9))
    made = ensemble(task=levels)
    loader = DataLoader(TensorDataset(INPUTS, INPUTS[:, 0]), batch_size=10)
    module = EnsembleModule(made, lr=0.05)
    run = trainer()
    run.fit(module, loader, loader)
    answer = made.predict(INPUTS)
    pinball = float(levels(answer.quantiles, INPUTS[:, 0]))
    assert float(run.callback_metrics["val_pinball"]) == pytest.approx(pinball, rel=1e-5)
    run.test(module, loader, verbose=False)
    same_scores(
        module.evaluation.scores["ensemble"], covey.evaluate(made, (INPUTS, INPUTS[:, 0])).scores["ensemble"]
    )
    torch.testing.assert_close(
        torch.cat([b["quantiles"] for b in run.predict(module, loader)]), answer.quantiles
    )


def test_a_checkpoint_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    whole = EnsembleModule(ensemble(), lr=0.05)
    keeper = lightning.pytorch.callbacks.ModelCheckpoint(
        tmp_path, filename="{epoch}", save_top_k=-1, every_n_epochs=1
    )
    run = trainer(enable_checkpointing=True, callbacks=[keeper], default_root_dir=tmp_path)
    run.fit(whole, LOADER)
    resumed = EnsembleModule(ensemble(), lr=0.05)
    trainer().fit(resumed, LOADER, ckpt_path=tmp_path / "epoch=0.ckpt")
    equal(whole.ensemble, resumed.ensemble)
    assert resumed.ensemble.runs == whole.ensemble.runs
    loaded = EnsembleModule.load_from_checkpoint(tmp_path / "epoch=1.ckpt", ensemble=ensemble())
    equal(whole.ensemble, loaded.ensemble)


def test_dicts_and_labels_that_do_not_count() -> None:
    rows = [{"input": x, "labels": y} for x, y in zip(INPUTS, TARGETS, strict=True)]
    for row in rows[::3]:
        row["labels"] = torch.tensor(-100)
    made = ensemble()
    module = EnsembleModule(made, ignore_index=-100)
    run = trainer(max_epochs=1)
    loader = DataLoader(rows, batch_size=7)
    run.fit(module, loader, loader)
    nll = float(run.callback_metrics["val_nll"])
    run.test(module, loader, verbose=False)
    kept = [i for i in range(24) if i % 3]
    expected = covey.evaluate(made, (INPUTS[kept], TARGETS[kept])).scores["ensemble"]
    assert module.evaluation is not None
    same_scores(module.evaluation.scores["ensemble"], expected)
    assert nll == pytest.approx(expected["nll"], rel=1e-5)


def test_running_statistics_are_estimated_anew_where_a_method_asks() -> None:
    networks = [network(), network(width=4)]
    made, twin = (
        covey.convert(networks, covey.Slimmable(norms="shared"), example=INPUTS[:4]) for _ in range(2)
    )
    made.run = twin.run = "loop"
    trainer(max_epochs=1).fit(EnsembleModule(made), LOADER)
    twin.load_state_dict(made.state_dict())
    twin.refresh_statistics([inputs for inputs, _ in LOADER])
    for mine, theirs in zip(made.state, twin.state, strict=True):
        assert torch.equal(mine.own["1.running_mean"], theirs.own["1.running_mean"])


def test_what_it_refuses() -> None:
    with pytest.raises(OptionError, match="expected an ensemble.*got Sequential"):
        EnsembleModule(network())
    with pytest.raises(
        DataError, match=r"pair \(inputs, targets\), or a dict with the key 'labels'; got a Tensor"
    ):
        trainer(max_epochs=1).fit(EnsembleModule(ensemble()), DataLoader(INPUTS, batch_size=10))
    frozen = ensemble().requires_grad_(False)
    with pytest.raises(OptionError, match="every parameter of the ensemble is frozen"):
        EnsembleModule(frozen).configure_optimizers()
    sgd = torch.optim.SGD(network().parameters(), lr=0.1)
    with pytest.raises(OptionError, match="optimizer makes one when training begins: .* got a SGD"):
        EnsembleModule(ensemble(), optimizer=sgd)
    with pytest.raises(OptionError, match="schedule makes one when training begins: .* got a StepLR"):
        EnsembleModule(ensemble(), schedule=torch.optim.lr_scheduler.StepLR(sgd, 1))
    with pytest.raises(OptionError, match="optimizer made a list; expected torch's Optimizer"):
        EnsembleModule(ensemble(), optimizer=list).configure_optimizers()
    with pytest.raises(OptionError, match="schedule made a int; expected a schedule"):
        EnsembleModule(ensemble(), schedule=lambda optimizer: 3).configure_optimizers()
