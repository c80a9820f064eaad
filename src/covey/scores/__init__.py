"""Everything the papers measure: scores of any ensemble, computed from stored outputs of its members."""

from covey.calibration import Conformal, Temperature

from .calibration import fit_conformal, fit_temperature
from .cost import Cost, measure
from .evaluate import evaluate, score
from .evaluation import Evaluation
from .record import Record

__all__ = [
    "Conformal",
    "Cost",
    "Evaluation",
    "Record",
    "Temperature",
    "evaluate",
    "fit_conformal",
    "fit_temperature",
    "measure",
    "score",
]
