"""Everything the papers measure: scores of any ensemble, computed from stored outputs of its members."""

from covey.calibration import Conformal, Intervals, Temperature

from .calibration import fit_conformal, fit_intervals, fit_margin, fit_temperature
from .cost import Cost, measure_cost
from .evaluation import Evaluation
from .record import Record
from .running import evaluate, score
from .subsets import Anytime, Measured, anytime

__all__ = [
    "Anytime",
    "Conformal",
    "Cost",
    "Evaluation",
    "Intervals",
    "Measured",
    "Record",
    "Temperature",
    "anytime",
    "evaluate",
    "fit_conformal",
    "fit_intervals",
    "fit_margin",
    "fit_temperature",
    "measure_cost",
    "score",
]
