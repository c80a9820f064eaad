"""Snapshot ensembles: the weights at the ends of cycles of one training run."""

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
class Snapshot(Training):
    """Keep the weights at equally spaced moments of one training run as members.

    Huang et al. (2017). Stores M P parameters. With `Recipe(average=...)` the average of the weights so far is kept at
    each moment, with running statistics of its own, once averaging has begun: paper 1's snapshots of averaged SGD.

    Args:
        members: how many snapshots; the last is the end of training.
        start: when the time begins in which they are taken: a share of training, or an epoch if 1 or more.
        cycles: whether the learning rate restarts after each snapshot and falls as a cosine until the next;
            otherwise it follows the recipe.
    """

    members: int = 5
    start: float = 0.0
    cycles: bool = True

    def phases(self, recipe: Recipe) -> list[Phase]:
        """One, which keeps weights on its way."""
        check_whole_run(recipe, self.members)
        start = epoch_of(self.start, recipe.epochs)
        length = (recipe.epochs - start) / self.members
        if length < 1:
            raise OptionError(
                f"{self.members} snapshots after epoch {start} of {recipe.epochs} are more than one an epoch; take "
                "fewer, or train longer."
            )
        wanted = [round(start + length * (i + 1)) for i in range(self.members)]
        cosine = Schedule(kind="cyclic", start=start, cycle=length)

        def rate(epoch: float) -> float:
            schedule = cosine if self.cycles and epoch >= start else recipe.schedule
            return schedule.at(epoch, lr=recipe.lr, epochs=recipe.epochs)

        return [collecting(wanted, recipe, rate)]

    def result(self, recipe: Recipe) -> Method:
        """Whole networks."""
        return DeepEnsemble(members=self.members)
