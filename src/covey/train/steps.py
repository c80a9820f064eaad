"""The kinds of step that a phase may name."""

from __future__ import annotations

from covey.train.nested import drawn, row_optimizer
from covey.train.optimizer import make_optimizer
from covey.train.step import Step, plain

STEPS: dict[str, Step] = {
    "plain": Step(make_optimizer, plain),
    "drawn": Step(row_optimizer, drawn),
}
