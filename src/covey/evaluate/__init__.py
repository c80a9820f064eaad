"""Everything the papers measure: scores of any ensemble, computed from stored outputs of its members."""

import sys
from types import ModuleType

from .calibration import Conformal, Temperature, fit_conformal, fit_temperature
from .cost import Cost, measure
from .evaluation import Evaluation, evaluate, score
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


class _Package(ModuleType):
    """This package can be called as the function that gave it its name: `covey.evaluate(ensemble, data)`."""

    __call__ = staticmethod(evaluate)


sys.modules[__name__].__class__ = _Package
