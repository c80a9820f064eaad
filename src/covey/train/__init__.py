"""Training: `fit`, and the pieces it is made of for loops of one's own."""

from covey.train.engine import fit
from covey.train.history import History
from covey.train.recipe import Machine, Recipe
from covey.train.schedules import Schedule
from covey.train.state import Job, Phase, State

__all__ = ["History", "Job", "Machine", "Phase", "Recipe", "Schedule", "State", "fit"]
