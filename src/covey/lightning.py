"""A LightningModule for ensembles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from covey.combine import Answer, MultiLabel, Prediction, Regression, class_axis
from covey.ensemble import Ensemble
from covey.errors import DataError, OptionError
from covey.extras import explained
from covey.losses import LossName, member_losses
from covey.networks.calls import arguments
from covey.networks.modes import modes_kept
from covey.quantiles import QuantileAnswer
from covey.scores.answered import answered
from covey.scores.running import score

try:
    from lightning.pytorch import LightningModule
except ModuleNotFoundError as error:
    raise explained(error) from None

if TYPE_CHECKING:
    from covey.scores import Evaluation

LABELS = "labels"
"""The key of the targets in batches that are dicts."""

_FACTORIES = {
    "optimizer": "torch.optim.AdamW",
    "schedule": "partial(torch.optim.lr_scheduler.StepLR, step_size=10)",
}
"""Examples of what makes them."""

_NAMES: dict[type, tuple[str, ...]] = {
    Prediction: ("probs", "label", "entropy", "mutual_information", "logits"),
    MultiLabel: ("probs", "labels", "entropy", "mutual_information", "logits"),
    Regression: ("mean", "variance", "epistemic", "aleatoric"),
    QuantileAnswer: ("quantiles", "epistemic"),
}


class EnsembleModule(LightningModule):
    """An ensemble that Lightning's Trainer trains, validates, tests and asks.

    A batch is a pair of inputs and targets, or a dict of keyword arguments with "labels" among them. Training goes down
    on the sum over members of each one's own mean loss (`train_loss`), right for every method. Validation logs the
    combined answer's `val_nll` and `val_accuracy`, or for regression `val_mse`, for quantiles `val_pinball`; testing
    leaves all of `covey.evaluate`'s scores in `evaluation`; prediction gives a dict of each batch's answers and
    uncertainty.

    Args:
        ensemble: what is trained, in place.
        lr: learning rate; methods have factors of it for some of their parameters.
        weight_decay: likewise.
        optimizer: makes an optimiser of parameter groups; AdamW by default.
        schedule: makes a schedule of the optimiser, stepped after each epoch; none by default.
        loss: as in `Ensemble.loss`; by default the one of the ensemble's task.
        smoothing: label smoothing of a cross-entropy.
        ignore_index: the label of what does not count; None if all do. -100 for data of transformers.

    Attributes:
        evaluation: what the last `trainer.test` measured.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        optimizer: Callable[[list[dict[str, Any]]], Optimizer] = torch.optim.AdamW,
        schedule: Callable[[Optimizer], Any] | None = None,
        loss: LossName | None = None,
        smoothing: float = 0.0,
        ignore_index: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(ensemble, Ensemble):
            raise OptionError(
                f"expected an ensemble, as covey.convert gives it; got {type(ensemble).__name__}."
            )
        if ensemble.method.turns():
            raise OptionError(
                f"{type(ensemble.method).__name__} changes its ensemble at some epochs, which only covey.fit does. "
                "Take covey.fit, or set refine_at=None and decouple_at=None."
            )
        for name, given in (("optimizer", optimizer), ("schedule", schedule)):
            if given is not None and not callable(given):
                raise OptionError(
                    f"{name} makes one when training begins: a class such as {_FACTORIES[name]}, or a function; got a "
                    f"{type(given).__name__}."
                )
        self.ensemble = ensemble
        self.lr, self.weight_decay = lr, weight_decay
        self.make_optimizer, self.make_schedule = optimizer, schedule
        self.loss, self.smoothing, self.ignore_index = loss, smoothing, ignore_index
        self.evaluation: Evaluation | None = None
        self._modes = ExitStack()
        self._collected: list[tuple[Tensor, Tensor]] = []

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Members' outputs, (M, B, ...)."""
        return self.ensemble(*args, **kwargs)

    # --- training --------------------------------------------------------------------------------------------

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The sum over members of their mean losses."""
        inputs, targets = _parts(batch)
        loss = self.ensemble.loss(
            inputs, targets, loss=self.loss, smoothing=self.smoothing, ignore_index=self.ignore_index
        )
        self.log("train_loss", loss, batch_size=len(targets))
        return loss

    def configure_optimizers(self) -> Any:
        """The optimiser over the ensemble's parameter groups, and its schedule."""
        groups = self.ensemble.param_groups(self.lr, self.weight_decay)
        if not groups:
            raise OptionError("every parameter of the ensemble is frozen, so there is nothing to train.")
        optimizer = self.make_optimizer(groups)
        if not isinstance(optimizer, Optimizer):
            raise OptionError(f"optimizer made a {type(optimizer).__name__}; expected torch's Optimizer.")
        if self.make_schedule is None:
            return optimizer
        schedule = self.make_schedule(optimizer)
        if not hasattr(schedule, "step"):
            raise OptionError(
                f"schedule made a {type(schedule).__name__}; expected a schedule of torch.optim.lr_scheduler."
            )
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def on_train_end(self) -> None:
        """Estimate running statistics anew where the method asks for it."""
        if self.ensemble.method.refreshes_statistics:
            self.ensemble.refresh_statistics(self._training_inputs())

    def _training_inputs(self) -> Iterator[Any]:
        for batch in cast(Iterable[Any], self.trainer.train_dataloader):
            yield _parts(self.trainer.strategy.batch_to_device(batch))[0]

    # --- evaluation ------------------------------------------------------------------------------------------

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log how good the combined answer is; batches count by their samples, so that the mean is over all of them."""
        inputs, targets = _parts(batch)
        answer = self._answer(inputs)
        if isinstance(answer, Regression):
            goal = targets.reshape(answer.mean.shape)
            error = (answer.mean - goal).square().mean()
            self.log("val_mse", error, batch_size=len(targets), on_epoch=True)
            return
        if isinstance(answer, QuantileAnswer):
            pinball = answer.asked(answer.quantiles, targets)
            self.log("val_pinball", pinball, batch_size=len(targets), on_epoch=True)
            return
        if isinstance(answer, MultiLabel):
            truths = targets.to(answer.log_odds.dtype)
            nll = torch.nn.functional.binary_cross_entropy_with_logits(answer.log_odds, truths)
            right = (answer.labels == (truths > 0.5)).float().mean()
            self.log_dict({"val_nll": nll, "val_accuracy": right}, batch_size=len(targets), on_epoch=True)
            return
        counts = torch.ones_like(targets, dtype=torch.bool)
        if self.ignore_index is not None:
            counts = targets != self.ignore_index
        if not counts.any():
            return
        log_probs, labels = answer.log_probs[counts], targets[counts]
        (nll,) = member_losses(log_probs[None], labels)
        accuracy = (log_probs.argmax(-1) == labels).float().mean()
        self.log_dict({"val_nll": nll, "val_accuracy": accuracy}, batch_size=len(labels), on_epoch=True)

    def on_test_epoch_start(self) -> None:
        """Begin a new evaluation."""
        if self.trainer.world_size > 1:
            raise OptionError(
                "scores need all answers in one process: test with lightning.Trainer(devices=1)."
            )
        self._collected = []

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Keep what the members answer."""
        inputs, targets = _parts(batch)
        outputs = self._outputs(inputs)
        if self.ensemble.task != "regression":
            outputs = outputs.movedim(class_axis(outputs, self.ensemble.class_dim), -1)
        self._collected.append((outputs.float().cpu(), targets.cpu()))

    def on_test_epoch_end(self) -> None:
        """Score the answers as `covey.evaluate` does, and log the scores of the combined one."""
        outputs = torch.cat([outputs for outputs, _ in self._collected], 1)
        targets = torch.cat([targets for _, targets in self._collected])
        self._collected = []
        record = answered((outputs, targets), self.ensemble.task, ignore_index=self.ignore_index)
        self.evaluation = score(record, stored=self.ensemble.temperature)
        for name, value in self.evaluation.scores["ensemble"].items():
            if value is not None:
                self.log(f"test_{name}", value)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """The combined answer and its uncertainty, as `predict` names them; batches may come without targets."""
        if isinstance(batch, tuple | list) or (isinstance(batch, Mapping) and LABELS in batch):
            batch, _ = _parts(batch)
        answer = self._answer(batch)
        names = _NAMES[type(answer)]
        return {name: getattr(answer, name) for name in names}

    def _answer(self, inputs: Any) -> Answer:
        return self.ensemble.answer(self._outputs(inputs))

    def _outputs(self, inputs: Any) -> Tensor:
        args, kwargs = arguments(inputs)
        return self.ensemble(*args, **kwargs)

    # Lightning puts modes back module by module, and would leave an ensemble's networks, which are no modules of it, in
    # eval mode after the first validation.

    def on_validation_model_eval(self) -> None:
        """Go into eval mode."""
        self._modes.enter_context(modes_kept(self))
        self._modes.enter_context(self.ensemble.modes_kept())
        self.eval()

    def on_validation_model_train(self) -> None:
        """Go back into the modes from before."""
        self._modes.close()

    def on_test_model_eval(self) -> None:
        """Go into eval mode."""
        self.on_validation_model_eval()

    def on_test_model_train(self) -> None:
        """Go back into the modes from before."""
        self.on_validation_model_train()

    # --- checkpoints -----------------------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep how members run, so that a resumed run gives the same numbers."""
        checkpoint["covey"] = {"runs": self.ensemble.runs, "measured": self.ensemble.measured}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Run members as they were run."""
        kept = checkpoint["covey"]
        self.ensemble.runs, self.ensemble.measured = dict(kept["runs"]), dict(kept["measured"])


def _parts(batch: Any) -> tuple[Any, Tensor]:
    """Inputs as a network takes them, and targets."""
    if isinstance(batch, Mapping) and LABELS in batch:
        inputs = {name: value for name, value in batch.items() if name != LABELS}
        return inputs, batch[LABELS]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    raise DataError(
        f"a batch is a pair (inputs, targets), or a dict with the key {LABELS!r}; got a {type(batch).__name__}."
    )
