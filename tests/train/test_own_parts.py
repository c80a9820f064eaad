"""What the user brings to fit: a loss, an optimiser, a schedule, weights, callbacks; and gradient accumulation."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import blobs, line, mlp
from torch import Tensor, nn

import covey
from covey.data import adapt
from covey.errors import MissingExtraError, OptionError
from covey.losses import member_losses
from covey.train import Callback, Machine, MLflow, Recipe, View, WandB

QUIET = Machine(accelerator="cpu", progress=False)
RECIPE = Recipe(epochs=2, batch=30, run="loop")


def trained(data: Any = None, recipe: Recipe = RECIPE, network: Any = None, **options: Any) -> covey.History:
    data, network = data or blobs(), network or mlp()
    return covey.fit(network, data, recipe, method=covey.DeepEnsemble(members=2), machine=QUIET, **options)


def same_weights(one: covey.History, other: covey.History, tolerance: float = 0.0) -> None:
    theirs = other.ensemble.state_dict()
    for name, tensor in one.ensemble.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=tolerance)


# --- a loss ---------------------------------------------------------------------------------------------


def each_sample(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), each_sample], ids=["mean", "each"])
def test_a_loss_of_ones_own(loss: Any) -> None:
    same_weights(trained(loss=loss), trained(), 1e-6)
    independent = Recipe(epochs=2, batch=30, run="loop", plan="independent")
    same_weights(trained(recipe=independent, loss=loss), trained(recipe=independent), 1e-6)


def test_a_loss_of_ones_own_for_numbers_and_in_a_loop_of_ones_own() -> None:
    network = mlp(1, 1)
    same_weights(trained(line(), network=network, loss=nn.MSELoss()), trained(line(), network=network), 1e-6)
    assert trained(line(), network=network, loss=nn.HuberLoss()).ensemble.task == "regression"
    ensemble = covey.convert(mlp(), covey.DeepEnsemble(members=2), example=torch.zeros(2, 6))
    x, y = torch.randn(5, 6), torch.arange(5) % 3
    torch.testing.assert_close(ensemble.loss(x, y, loss=each_sample), ensemble.loss(x, y))


def test_outputs_of_another_shape_than_the_targets_have_no_rmse() -> None:
    def mixture(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().amin(-1)

    row = trained(line(), network=mlp(1, 3), loss=mixture).last
    assert not {"rmse", "member_rmse"} & set(row)
    assert row["spread"] > 0
    best = Recipe(epochs=1, batch=30, run="loop", keep="best")
    with pytest.raises(OptionError, match="the network has 3 outputs for 1 number: .* only your loss knows"):
        trained(line(), best, network=mlp(1, 3), loss=mixture)


def test_one_output_without_an_axis_has_its_rmse() -> None:
    def squares(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets.reshape(outputs.shape)).square()

    flat = nn.Sequential(*mlp(1, 1), nn.Flatten(0))
    found = trained(line(), Recipe(epochs=2, batch=30, run="loop", keep="best"), network=flat, loss=squares)
    usual = trained(line(), network=mlp(1, 1))
    assert found.last["rmse"] == pytest.approx(usual.last["rmse"], rel=1e-4)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (
            lambda outputs, targets: outputs,
            r"shape \(30, 3\) for 30 samples.*\(\), or the loss of each, \(30,\)",
        ),
        (lambda outputs, targets: 1.0, r"returned float; expected a tensor"),
        (torch.nn.CrossEntropyLoss, r"CrossEntropyLoss is a class: give CrossEntropyLoss\(\)"),
        ("huber", r"loss is a function of your own; got 'huber'.*Recipe\(loss="),
    ],
)
def test_a_loss_that_is_none(loss: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        trained(loss=loss)
    with pytest.raises(OptionError, match="smoothing and ignore_index have no meaning"):
        trained(recipe=Recipe(smoothing=0.1), loss=each_sample)


# --- an optimiser and a schedule --------------------------------------------------------------------------


def test_an_optimiser_of_ones_own_resumes(tmp_path: Any) -> None:
    recipe = Recipe(
        epochs=3, batch=30, lr=0.01, decay=0.0, schedule=covey.Schedule(kind="constant"), run="loop"
    )
    named = Recipe(**{**vars(recipe), "optimizer": "adam"})
    same_weights(trained(recipe=recipe, optimizer=torch.optim.Adam), trained(recipe=named))
    make = functools.partial(torch.optim.RMSprop, alpha=0.9, momentum=0.5)
    expected = trained(recipe=recipe, optimizer=make)
    with pytest.raises(KeyboardInterrupt):
        trained(recipe=recipe, optimizer=make, folder=tmp_path, callbacks=[Interrupt(2)])
    with pytest.raises(covey.CoveyError, match=r"own.optimizer was 'RMSprop\(.*' and is 'Adagrad'"):
        trained(recipe=recipe, optimizer=torch.optim.Adagrad, folder=tmp_path, resume=True)
    other = functools.partial(torch.optim.RMSprop, alpha=0.9, momentum=0.6)
    with pytest.raises(
        covey.CoveyError, match=r"momentum=0.5\)' and is 'RMSprop\(alpha=0.9, momentum=0.6\)'"
    ):
        trained(recipe=recipe, optimizer=other, folder=tmp_path, resume=True)
    same_weights(trained(recipe=recipe, optimizer=make, folder=tmp_path, resume=True), expected)


class Interrupt(Callback):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_step(self, view: View) -> None:
        if view.epoch == self.epoch:
            raise KeyboardInterrupt


def one_cycle(optimizer: torch.optim.Optimizer, minibatches: int) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=minibatches + 1)


def test_a_schedule_of_ones_own_steps_with_the_minibatches_and_resumes(tmp_path: Any) -> None:
    recipe = Recipe(epochs=3, batch=30, run="loop")
    rates: list[float] = []

    class Watch(Callback):
        def on_step(self, view: View) -> None:
            rates.append(view.lr)

    expected = trained(recipe=recipe, schedule=one_cycle, callbacks=[Watch()])
    parameter = nn.Parameter(torch.zeros(1))
    scheduler = one_cycle(torch.optim.SGD([parameter], lr=0.05, momentum=0.9), 9)
    by_hand = []
    for _ in range(9):
        scheduler.optimizer.step()
        scheduler.step()
        by_hand.append(scheduler.get_last_lr()[0])
    assert rates == pytest.approx(by_hand)
    with pytest.raises(KeyboardInterrupt):
        trained(recipe=recipe, schedule=one_cycle, folder=tmp_path, callbacks=[Interrupt(2)])
    same_weights(trained(recipe=recipe, schedule=one_cycle, folder=tmp_path, resume=True), expected)


def test_a_loss_without_a_gradient() -> None:
    with pytest.raises(OptionError, match="has no gradient with respect to the outputs"):
        trained(loss=lambda outputs, labels: F.cross_entropy(outputs.detach(), labels))


def test_what_is_no_optimiser_and_no_schedule() -> None:
    with pytest.raises(OptionError, match="optimizer is a function of parameter groups.*got list"):
        trained(optimizer=lambda groups: groups)
    with pytest.raises(OptionError, match="LBFGS calls the loss several times"):
        trained(optimizer=torch.optim.LBFGS)
    with pytest.raises(OptionError, match="leaves .* of the ensemble's tensors out"):
        trained(optimizer=lambda groups: torch.optim.SGD(groups[0]["params"][:1], lr=0.1))
    plateau = lambda optimizer, _: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)  # noqa: E731
    with pytest.raises(OptionError, match="not one that goes by a score; got ReduceLROnPlateau"):
        trained(schedule=plateau)
    with pytest.raises(
        OptionError, match="called with the optimiser and the number of minibatches.*too many"
    ):
        trained(schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1))
    other = torch.optim.SGD(mlp().parameters(), lr=0.1)
    with pytest.raises(OptionError, match="the schedule is another optimiser's"):
        trained(schedule=lambda _, total: torch.optim.lr_scheduler.StepLR(other, total))
    with pytest.raises(OptionError, match="sets the learning rate itself"):
        covey.fit(mlp(), blobs(), RECIPE, method=covey.Snapshot(members=2), machine=QUIET, schedule=one_cycle)


# --- weights ----------------------------------------------------------------------------------------------


def test_weighted_losses_are_what_torch_gives() -> None:
    logits, labels = torch.randn(2, 7, 3), torch.arange(7) % 3
    weights, of_classes = torch.rand(7), torch.tensor([1.0, 0.0, 3.0])
    found = member_losses(logits, labels, weights=weights, class_weights=of_classes)
    for k in range(2):
        each = F.cross_entropy(logits[k], labels, weight=of_classes, reduction="none")
        torch.testing.assert_close(found[k], (weights * each).mean())
    numbers = torch.randn(7, 1)
    found = member_losses(logits[..., :1], numbers, "mse", weights=weights)
    torch.testing.assert_close(found[0], (weights[:, None] * (logits[0, :, :1] - numbers).square()).mean())


def test_weights_of_nought_leave_samples_out() -> None:
    data, everyone = blobs(), Recipe(epochs=3, batch=120, shuffle=False, run="loop")
    kept = torch.arange(90) % 3 > 0
    weighted = adapt(data, sample_weight=kept.float())
    part = adapt({"train": (data.train.inputs[kept], data.train.targets[kept])}, validation=0)
    same_weights(trained(weighted, everyone), trained(part, everyone), 1e-5)


def test_class_weights_balance_and_own_losses_take_sample_weights() -> None:
    data = adapt(
        (torch.randn(40, 6), torch.tensor([0] * 30 + [1] * 8 + [2] * 2)),
        class_weight="balanced",
        validation=0,
    )
    torch.testing.assert_close(data.class_weights, 40 / (3 * torch.tensor([30.0, 8.0, 2.0])))
    named = adapt(blobs(), class_weight={1: 5.0})
    assert named.class_weights.tolist() == [1.0, 5.0, 1.0]
    weights = torch.rand(90)
    own = trained(adapt(blobs(), sample_weight=weights), loss=each_sample)
    same_weights(own, trained(adapt(blobs(), sample_weight=weights)), 1e-6)
    with pytest.raises(AssertionError):
        same_weights(own, trained())
    with pytest.raises(OptionError, match="which sample weights are for"):
        trained(adapt(blobs(), sample_weight=weights), loss=nn.CrossEntropyLoss())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weight": [1.0, -1.0, 1.0]}, "class_weight are at least 0.*smallest is -1"),
        ({"class_weight": [1.0, 1.0]}, r"shape \(2,\); expected a number for each of 3 classes"),
        ({"class_weight": {7: 2.0}}, "names class 7; there are 0 to 2"),
        ({"class_weight": "even"}, "'balanced'.*got 'even'"),
        ({"sample_weight": -torch.ones(90)}, "sample_weight are at least 0"),
        ({"sample_weight": torch.ones(9)}, r"shape \(9,\); expected one number for each of 90"),
        ({"sample_weight": torch.zeros(90)}, "not all 0"),
    ],
)
def test_weights_that_are_none(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        adapt(blobs(), **options)


# --- gradient accumulation --------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [90, 80])
def test_accumulated_minibatches_step_like_one_large_one(samples: int) -> None:
    small = Recipe(epochs=2, batch=15, accumulate=2, shuffle=False, run="loop")
    large = Recipe(epochs=2, batch=30, shuffle=False, schedule=covey.Schedule(kind="constant"), run="loop")
    small = Recipe(**{**vars(small), "schedule": large.schedule})
    steps: list[int] = []

    class Watch(Callback):
        def on_end(self, view: View) -> None:
            steps.append(view.step)

    found = trained(blobs(samples), small, callbacks=[Watch()])
    expected = trained(blobs(samples), large, callbacks=[Watch()])
    same_weights(found, expected, 1e-5)
    assert steps == [6, 6]


def test_accumulation_is_for_steps_of_all_members() -> None:
    drawn = covey.late(covey.Replicate(members=2, where="all"), start=0, nested=False)
    with pytest.raises(OptionError, match="accumulate is for steps of all members"):
        covey.fit(mlp(), blobs(), Recipe(epochs=1, accumulate=2), method=drawn, machine=QUIET)


# --- callbacks --------------------------------------------------------------------------------------------


class Log(Callback):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_step(self, view: View) -> None:
        assert view.losses is not None
        self.told.append(("step", view.step, len(view.losses)))

    def on_epoch(self, view: View) -> None:
        self.told.append(("epoch", view.epoch, view.row["accuracy"]))

    def on_end(self, view: View) -> None:
        self.told.append(("end", view.ended))


def test_callbacks_are_told_of_steps_epochs_and_the_end() -> None:
    log = Log()
    history = trained(callbacks=[log])
    kinds = ["step"] * 3 + ["epoch"]
    assert [told[0] for told in log.told] == [*kinds, *kinds, "end"]
    assert log.told[3] == ("epoch", 1, history.rows[0]["accuracy"])
    assert log.told[-1] == ("end", "all 2 epochs are done")
    failing = Log()
    with pytest.raises(KeyboardInterrupt):
        trained(callbacks=[failing, Interrupt(1)])
    assert failing.told[-1] == ("end", "")
    with pytest.raises(OptionError, match="on_step, on_epoch and on_end"):
        trained(callbacks=[print])


def test_loggers_of_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def note(name: str) -> Any:
        return lambda *args, **kwargs: calls.append((name, args, kwargs))

    wandb = types.SimpleNamespace(run=None, init=note("init"), log=note("log"), finish=note("finish"))
    mlflow = types.SimpleNamespace(
        active_run=lambda: "open", start_run=note("start"), log_metrics=note("metrics"), end_run=note("end")
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    history = trained(callbacks=[WandB(project="birds"), MLflow()])
    assert calls[0] == ("init", (), {"project": "birds"})
    (logged,) = [args[0] for name, args, kwargs in calls if name == "log" and kwargs == {"step": 2}]
    assert logged["accuracy"] == history.last["accuracy"]
    assert ("finish", (), {"exit_code": 0}) in calls
    assert [name for name, *_ in calls if name in ("start", "end")] == []
    assert sum(name == "metrics" for name, *_ in calls) == 2


def test_loggers_that_are_not_installed() -> None:
    for make, name in ((WandB, "wandb"), (MLflow, "mlflow")):
        if name not in sys.modules:
            with pytest.raises(MissingExtraError, match=rf"pip install 'covey\[{name}\]'"):
                make()
