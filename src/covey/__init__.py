"""The accuracy, calibration and uncertainty of an ensemble of neural networks, for about the price of one."""

__version__ = "0.1.0"

from covey.combine import Prediction, Regression
from covey.convert import convert
from covey.coverage import Coverage
from covey.deploy.store import load
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
    Replicate,
    ShapeShifter,
    Slimmable,
    SuperWeights,
)

__all__ = [
    "METHODS",
    "MIMO",
    "BatchEnsemble",
    "Coverage",
    "CoveyError",
    "DeepEnsemble",
    "Ensemble",
    "Group",
    "Hypernetwork",
    "MCDropout",
    "Masksembles",
    "Method",
    "Mixture",
    "MultiHead",
    "NormEnsemble",
    "Parameterization",
    "Prediction",
    "Regression",
    "Replicate",
    "ShapeShifter",
    "Slimmable",
    "SuperWeights",
    "convert",
    "load",
    "loss",
]
