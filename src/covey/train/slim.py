"""Slimmable networks' run: statistics that no step kept up to date are estimated again at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from covey.ensemble import Ensemble
from covey.train.averaging import refresh_statistics, training_inputs
from covey.train.prepare import build
from covey.train.recipe import Recipe
from covey.train.state import Job, Phase, State

if TYPE_CHECKING:
    from covey.methods.slimmable import Slimmable


def phases(method: Slimmable, recipe: Recipe) -> list[Phase]:
    """One phase; where widths share norms, each width's statistics are estimated over the training set afterwards."""

    def made(network: nn.Module | Sequence[nn.Module], job: Job) -> Ensemble:
        return build(network, method, job)

    def finish(job: Job, state: State) -> Ensemble:
        refresh_statistics(state.ensemble, training_inputs(job))
        return state.ensemble

    return [Phase(build=made, end=recipe.epochs, finish=finish if method.norms == "shared" else None)]
