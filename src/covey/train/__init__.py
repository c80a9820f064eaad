"""Training: `fit`, and the pieces it is made of for loops of one's own."""

from covey.train.callbacks import Callback, MLflow, TensorBoard, View, WandB
from covey.train.engine import fit
from covey.train.history import History
from covey.train.recipe import Machine, Recipe
from covey.train.schedules import Schedule
from covey.train.state import Job, Phase, State

__all__ = [
    "Callback",
    "History",
    "Job",
    "MLflow",
    "Machine",
    "Phase",
    "Recipe",
    "Schedule",
    "State",
    "TensorBoard",
    "View",
    "WandB",
    "fit",
]
