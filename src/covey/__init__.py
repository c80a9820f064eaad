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
    Masksembles,
    MCDropout,
    MultiHead,
    NormEnsemble,
    Packed,
    Replicate,
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
    "MCDropout",
    "Masksembles",
    "Method",
    "MultiHead",
    "NormEnsemble",
    "Packed",
    "Parameterization",
    "Prediction",
    "Regression",
    "Replicate",
    "convert",
    "load",
    "loss",
]
