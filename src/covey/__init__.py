"""The accuracy, calibration and uncertainty of an ensemble of neural networks, for about the price of one."""

__version__ = "0.1.0"

from importlib import import_module
from typing import TYPE_CHECKING, Any

from covey.combine import Prediction, Regression
from covey.convert import convert
from covey.coverage import Coverage
from covey.ensemble import Ensemble, Group, Method, Parameterization
from covey.errors import CoveyError
from covey.loss import loss
from covey.methods import (
    METHODS,
    MIMO,
    BatchEnsemble,
    DeepEnsemble,
    Hypernetwork,
    Masksembles,
    MCDropout,
    Mixture,
    MultiHead,
    NormEnsemble,
    Packed,
    Replicate,
    ShapeShifter,
    Slimmable,
    SuperWeights,
)
from covey.store import load
from covey.train import History, Machine, Recipe, Schedule, fit
from covey.train.late import late
from covey.train.phased import PHASED, Economical, LatePhase
from covey.train.trajectory import FGE, SWAG, Snapshot, gather

if TYPE_CHECKING:
    from covey.scores import evaluate

__all__ = [
    "FGE",
    "METHODS",
    "MIMO",
    "PHASED",
    "SWAG",
    "BatchEnsemble",
    "Coverage",
    "CoveyError",
    "DeepEnsemble",
    "Economical",
    "Ensemble",
    "Group",
    "History",
    "Hypernetwork",
    "LatePhase",
    "MCDropout",
    "Machine",
    "Masksembles",
    "Method",
    "Mixture",
    "MultiHead",
    "NormEnsemble",
    "Packed",
    "Parameterization",
    "Prediction",
    "Recipe",
    "Regression",
    "Replicate",
    "Schedule",
    "ShapeShifter",
    "Slimmable",
    "Snapshot",
    "SuperWeights",
    "convert",
    "evaluate",
    "fit",
    "gather",
    "late",
    "load",
    "loss",
]


def __getattr__(name: str) -> Any:
    """Import packages that are slow to import when they are first asked for."""
    if name in ("data", "report", "scores", "sklearn", "zoo"):
        return import_module(f"covey.{name}")
    if name == "evaluate":
        return import_module("covey.scores").evaluate
    raise AttributeError(f"module 'covey' has no attribute {name!r}")
