"""All that training needs besides the network, the method and the data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from covey.data import Augment
from covey.errors import OptionError
from covey.options import check_above, check_choice, check_least, check_share, check_whole
from covey.quantiles import Quantiles
from covey.tables import counted
from covey.train.schedules import Schedule, epoch_of

PlanName = Literal["same", "split", "independent", "shuffled"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train.

    Args:
        epochs: passes over the training data, counted in minibatches consumed.
        batch: samples in a minibatch; the last one of an epoch may be smaller. A DataLoader has its own setting.
        accumulate: minibatches whose gradients, averaged by their samples, make one step; the last step of an epoch may
            have fewer.
        shuffle: whether samples are shuffled anew in every epoch; False keeps their order. A DataLoader has its own
            setting.
        plan: which samples members see in a step: all the "same" minibatch; its parts ("split"); each the next
            minibatch of its own ("independent"), so that a step consumes as many as there are members; or each a
            minibatch out of its own order of the whole epoch ("shuffled").
        optimizer: "sgd", "adam", "adamw" or "lamb" (from the package timm).
        lr: learning rate before the schedule.
        momentum: of SGD; the first beta of the others.
        nesterov: whether SGD's momentum is Nesterov's.
        decay: weight decay.
        decay_vectors: whether norms and biases decay too.
        schedule: of the learning rate.
        loss: "auto" follows the data: "cross-entropy" for classes and text, "gaussian" or "mse" for numbers. "binary"
            is for classes too: each on its own, as if an image could show several.
        quantiles: levels between 0 and 1, such as 0.05 0.5 0.95: the network answers with these quantiles of a number,
            and is trained with their pinball loss.
        smoothing: label smoothing of the cross-entropy.
        ignore_index: the label of samples, or of positions in them, that do not count, such as -100; None: all count,
            and a label that is no class is an error.
        clip: largest norm of the gradient; None does not clip.
        augment: what happens to training images.
        ema: decay of an exponential moving average of the weights, such as 0.999, which then is what is
            validated and kept; 0 for none.
        average: when to begin averaging weights, one snapshot per epoch (SWA): a share of training, or an epoch if
            1 or more. The average is what the run ends with; running statistics are estimated anew for it.
        patience: stop after this many epochs without a better validation score; None never stops early.
        keep: "last" keeps the weights of the last epoch, "best" those with the ensemble's best validation score.
        choose: the validation score of the ensemble by which patience and keep decide.
        member_chunk: how many members run at once, to save memory; None for all.
        run: how members run: "loop", "batched", or "auto", which measures both, and channels last for images, before
            the first step.
        checkpoint: minibatches between checkpoints; None for one per epoch.
        seed: of all random choices in training.
    """

    epochs: int = 20
    batch: int = 128
    accumulate: int = 1
    shuffle: bool = True
    plan: PlanName = "same"
    optimizer: Literal["sgd", "adam", "adamw", "lamb"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    nesterov: bool = True
    decay: float = 5e-4
    decay_vectors: bool = True
    schedule: Schedule = field(default_factory=lambda: Schedule(kind="cosine"))
    loss: Literal["auto", "cross-entropy", "binary", "gaussian", "mse"] = "auto"
    quantiles: tuple[float, ...] = ()
    smoothing: float = 0.0
    ignore_index: int | None = None
    clip: float | None = None
    augment: Augment = field(default_factory=Augment)
    ema: float = 0.0
    average: float | None = None
    patience: int | None = None
    keep: Literal["last", "best"] = "last"
    choose: Literal["accuracy", "nll", "rmse", "pinball"] | None = None
    member_chunk: int | None = None
    run: Literal["auto", "loop", "batched"] = "auto"
    checkpoint: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        choices = {
            "plan": ("same", "split", "independent", "shuffled"),
            "optimizer": ("sgd", "adam", "adamw", "lamb"),
            "loss": ("auto", "cross-entropy", "binary", "gaussian", "mse"),
            "keep": ("last", "best"),
            "choose": (None, "accuracy", "nll", "rmse", "pinball"),
            "run": ("auto", "loop", "batched"),
        }
        for name, known in choices.items():
            check_choice(name, getattr(self, name), known)
        if self.levels is not None and self.loss != "auto":
            raise OptionError(
                f"quantiles have a loss of their own, the pinball loss; leave out loss={self.loss!r}.",
                setting="quantiles",
            )
        if not isinstance(self.schedule, Schedule):
            raise OptionError(f"schedule is a covey.Schedule(kind=...); got {self.schedule!r}.")
        if not isinstance(self.augment, Augment):
            raise OptionError(f"augment is a covey.data.Augment(...); got {self.augment!r}.")
        for name in ("epochs", "batch", "accumulate", "member_chunk", "patience", "checkpoint"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        for name in ("lr", "clip"):
            if getattr(self, name) is not None:
                check_above(name, getattr(self, name))
        for name in ("momentum", "ema", "smoothing"):
            check_share(name, getattr(self, name))
        if self.average is not None:
            if not 0 <= epoch_of(self.average, self.epochs) < self.epochs:
                raise OptionError(
                    f"average is a moment before the end of {counted(self.epochs, 'epoch')}; got {self.average}.",
                    setting="average",
                )
            if self.ema or self.keep == "best" or self.patience is not None:
                raise OptionError(
                    "average, ema and the best epoch (keep='best', patience) are different answers of a run; "
                    "ask for one."
                )
        if self.schedule.warmup > self.epochs:
            raise OptionError(
                f"schedule.warmup is part of the training, which has {counted(self.epochs, 'epoch')}; got "
                f"{self.schedule.warmup:g}, before which the learning rate would not be reached.",
                setting="schedule.warmup",
            )
        if not -(2**63) <= self.seed < 2**63:
            raise OptionError(f"seed is a whole number of at most 64 bits; got {self.seed}.", setting="seed")
        check_least("decay", self.decay, 0)

    @property
    def levels(self) -> Quantiles | None:
        """The quantiles that are asked for; None if none are."""
        return Quantiles(self.quantiles) if self.quantiles else None

    @property
    def outputs_of_a_number(self) -> int:
        """How many outputs a network has for each number of a regression: quantiles, a mean, or with it a variance."""
        return len(self.quantiles) or (1 if self.loss == "mse" else 2)

    def scaled(self, by: float) -> Recipe:
        """The same recipe with `by` times as many epochs, at least one, and its schedule in proportion.

        >>> drops = Schedule(kind="multistep", milestones=(60, 120))
        >>> Recipe(epochs=200, schedule=drops).scaled(0.05).schedule.milestones
        (3.0, 6.0)
        """
        if not math.isfinite(by):
            raise OptionError(f"a recipe is scaled by a number that is finite; got {by}.")
        epochs = max(1, round(self.epochs * by))
        average = self.average
        if average is not None and average >= 1:
            average = average / self.epochs
        schedule = self.schedule.scaled(epochs / self.epochs)
        return replace(self, epochs=epochs, schedule=schedule, average=average)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Where to train.

    Args:
        accelerator: "cpu", "cuda", "mps", or "auto".
        devices: processes on this machine, one per device; on a CPU as many as you ask for.
        nodes: machines; start each with torchrun or `fabric run`.
        precision: "32-true", or mixed: "bf16-mixed", "16-mixed".
        shards: into how many parts a batch is cut, which run one after another and whose gradients are averaged.
            Norms see one part at a time, as they do with as many devices. At least one per process.
        threads: CPU threads of a process; None leaves torch's choice.
        channels_last: whether images are laid out with channels last, which is often faster for convolutions.
        progress: whether to show a progress bar.
        tensorboard: whether to write TensorBoard files to the run's folder (needs the package tensorboard).
    """

    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    shards: int = 1
    threads: int | None = None
    channels_last: bool = False
    progress: bool = True
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("devices", "nodes", "shards", "threads"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        if self.accelerator != "gpu":  # another word for cuda
            check_choice("accelerator", self.accelerator, ("auto", "cpu", "cuda", "mps"))
        check_choice("precision", self.precision, ("32-true", "bf16-mixed", "16-mixed"))
        world = self.devices * self.nodes
        if self.shards > 1 and self.shards % world:
            raise OptionError(
                f"shards are dealt out evenly: {self.shards} of them do not divide among {world} processes."
            )
