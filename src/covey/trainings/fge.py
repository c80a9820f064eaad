"""Fast geometric ensembles: weights at the minima of a quickly cycling learning rate."""

from __future__ import annotations

from dataclasses import dataclass

from covey.errors import OptionError
from covey.method import Method, Training
from covey.methods.replicate import DeepEnsemble
from covey.train.recipe import Recipe
from covey.train.schedules import Schedule, epoch_of
from covey.train.state import Phase
from covey.trainings.trajectory import check_whole_run, collecting


@dataclass(frozen=True, kw_only=True)
class FGE(Training):
    """Keep the weights at the minima of a quickly cycling learning rate at the end of training as members.

    Fast geometric ensembling (Garipov et al., 2018). Stores M P parameters, M the
    number of cycles that fit between `start` and the end. With `Recipe(average=...)` the average of the weights so far
    is kept at each minimum, once averaging has begun.

    Args:
        start: when the cycles begin: a share of training, or an epoch if 1 or more. 0 on a trained network.
        cycle: epochs of a cycle, even: the learning rate falls for half of it, and rises again.
        high: the learning rate at the ends of a cycle.
        low: the learning rate in the middle of a cycle, where the weights are kept.
    """

    start: float = 0.8
    cycle: int = 2
    high: float = 5e-2
    low: float = 1e-2

    def phases(self, recipe: Recipe) -> list[Phase]:
        """One, which keeps weights on its way."""
        check_whole_run(recipe)
        start = epoch_of(self.start, recipe.epochs)
        if self.cycle < 2 or self.cycle % 2:
            raise OptionError(f"cycle is an even number of epochs, at least 2; got {self.cycle}.")
        if not 0 < self.low <= self.high:
            raise OptionError(f"low is above 0 and not above high; got {self.low} and {self.high}.")
        wanted = self._moments(recipe)
        if not wanted:
            raise OptionError(
                f"FGE starts at epoch {start} of {recipe.epochs}, and a cycle of {self.cycle} epochs does not fit in "
                "what is left. Start it earlier (start=), take a shorter cycle (cycle=), or train longer (epochs=)."
            )
        triangle = Schedule(kind="triangular", start=start, cycle=self.cycle, final=self.low)

        def rate(epoch: float) -> float:
            if epoch < start:
                return recipe.schedule.at(epoch, lr=recipe.lr, epochs=recipe.epochs)
            return triangle.at(epoch, lr=self.high, epochs=recipe.epochs)

        return [collecting(wanted, recipe, rate)]

    def result(self, recipe: Recipe) -> Method:
        """Whole networks, one for each cycle."""
        return DeepEnsemble(members=max(1, len(self._moments(recipe))))

    def _moments(self, recipe: Recipe) -> list[int]:
        """The epochs after which weights are kept: the middles of cycles."""
        start = epoch_of(self.start, recipe.epochs)
        return list(range(start + self.cycle // 2, recipe.epochs + 1, max(self.cycle, 1)))
