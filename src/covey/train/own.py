"""What the user brings of training, in place of covey's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

from covey.data import Data
from covey.errors import OptionError
from covey.losses import OwnLoss
from covey.train.callbacks import check_callbacks
from covey.train.recipe import Recipe


@dataclass(frozen=True)
class Own:
    """What the user brings of training: a loss, an optimiser, a schedule, callbacks. See `covey.fit`."""

    loss: OwnLoss | None = None
    optimizer: Callable[[Any], Optimizer] | None = None
    schedule: Callable[[Optimizer, int], Any] | None = None
    callbacks: Sequence[Any] = ()

    def check(self, data: Data, recipe: Recipe) -> None:
        """Refuse what is none of these, and what does not go together."""
        for name in ("loss", "optimizer", "schedule"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise OptionError(
                    f"{name} is a function of your own; got {value!r}. Those that covey has are chosen in "
                    f"Recipe({name}=...)."
                )
        if isinstance(self.loss, type):
            raise OptionError(
                f"loss is a function of outputs and targets, and {self.loss.__name__} is a class: give "
                f"{self.loss.__name__}()."
            )
        check_callbacks(self.callbacks)
        if self.loss is None:
            return
        if data.class_weights is not None:
            raise OptionError(
                "class_weight is for covey's losses; a loss of your own takes its own, or sample_weight."
            )
        recipe_says = recipe.loss != "auto" or recipe.smoothing or recipe.ignore_index is not None
        if recipe_says or recipe.levels not in (None, self.loss):
            raise OptionError(
                "loss= is a function of your own, so the recipe's loss, quantiles, smoothing and ignore_index have no "
                "meaning; leave them out."
            )
