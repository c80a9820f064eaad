"""One network, trained alone."""

from __future__ import annotations

from dataclasses import dataclass

from covey.method import Method, Training
from covey.methods.replicate import Replicate
from covey.train.phases import method_phases
from covey.train.recipe import Recipe
from covey.train.state import Phase


@dataclass(frozen=True, kw_only=True)
class Single(Training):
    """One network, trained alone: what ensembles are compared with."""

    def phases(self, recipe: Recipe) -> list[Phase]:
        """One, with an ensemble of one member."""
        return method_phases(self.result(recipe), recipe)

    def result(self, recipe: Recipe) -> Method:
        """An ensemble of one."""
        return Replicate(members=1)
