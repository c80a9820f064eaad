"""Everything the papers measure: scores of any ensemble, computed from stored outputs of its members."""

from covey.calibration import Conformal, Temperature

from .anytime import Anytime, anytime
from .calibration import fit_conformal, fit_temperature
from .cost import Cost, measure_cost
from .evaluate import evaluate, score
from .evaluation import Evaluation
from .record import Record

__all__ = [
    "Anytime",
    "Conformal",
    "Cost",
    "Evaluation",
    "Record",
    "Temperature",
    "anytime",
    "evaluate",
    "fit_conformal",
    "fit_temperature",
    "measure_cost",
    "score",
]
