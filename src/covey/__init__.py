"""The accuracy, calibration and uncertainty of an ensemble of neural networks, for about the price of one."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from covey.collapsing import collapse
from covey.combine import MultiLabel, Prediction, Regression
from covey.conversion import convert, dry_run
from covey.coverage import Coverage
from covey.ensemble import Ensemble
from covey.errors import CoveyError
from covey.extras import explained
from covey.layout import Layout
from covey.losses import loss
from covey.method import Method, Share, Training, Turn
from covey.parameterization import Group, Parameterization
from covey.quantiles import QuantileAnswer, Quantiles
from covey.registry import METHODS, TRAININGS, register
from covey.store import load, save
from covey.version import __version__

if TYPE_CHECKING:
    from covey import data as data
    from covey import deploy as deploy
    from covey import hf as hf
    from covey import lightning as lightning
    from covey import parts as parts
    from covey import report as report
    from covey import scores as scores
    from covey import sklearn as sklearn
    from covey import zoo as zoo
    from covey.deploy import Selection, Soup, distill, export, fuse, select_members, soup
    from covey.methods import (
        MIMO,
        BatchEnsemble,
        DeepEnsemble,
        Hypernetwork,
        LowRank,
        Masksembles,
        MCDropout,
        Mixture,
        MultiHead,
        NormEnsemble,
        Packed,
        Replicate,
        ShapeShifter,
        SharedLowRank,
        Slimmable,
        SuperWeights,
        TabM,
    )
    from covey.report.comparison import compare
    from covey.scores import anytime, evaluate
    from covey.train import History, Machine, Recipe, Schedule, fit
    from covey.trainings import FGE, SWAG, Economical, Late, LatePhase, Single, Snapshot, gather, late

__all__ = [
    "FGE",
    "METHODS",
    "MIMO",
    "SWAG",
    "TRAININGS",
    "BatchEnsemble",
    "Coverage",
    "CoveyError",
    "DeepEnsemble",
    "Economical",
    "Ensemble",
    "Group",
    "History",
    "Hypernetwork",
    "Late",
    "LatePhase",
    "Layout",
    "LowRank",
    "MCDropout",
    "Machine",
    "Masksembles",
    "Method",
    "Mixture",
    "MultiHead",
    "MultiLabel",
    "NormEnsemble",
    "Packed",
    "Parameterization",
    "Prediction",
    "QuantileAnswer",
    "Quantiles",
    "Recipe",
    "Regression",
    "Replicate",
    "Schedule",
    "Selection",
    "ShapeShifter",
    "Share",
    "SharedLowRank",
    "Single",
    "Slimmable",
    "Snapshot",
    "Soup",
    "SuperWeights",
    "TabM",
    "Training",
    "Turn",
    "__version__",
    "anytime",
    "collapse",
    "compare",
    "convert",
    "distill",
    "dry_run",
    "evaluate",
    "export",
    "fit",
    "fuse",
    "gather",
    "late",
    "load",
    "loss",
    "register",
    "save",
    "select_members",
    "soup",
]

# Imported when first asked for, so that `import covey` costs little more than `import torch`.
_PACKAGES = (
    "data", "deploy", "hf", "lightning", "methods", "parts", "report", "scores", "sklearn", "train", "trainings", "zoo",
)  # fmt: skip
_HOMES = {
    "covey.methods": (
        "BatchEnsemble", "DeepEnsemble", "Hypernetwork", "LowRank", "MCDropout", "MIMO", "Masksembles", "Mixture",
        "MultiHead", "NormEnsemble", "Packed", "Replicate", "ShapeShifter", "SharedLowRank", "Slimmable",
        "SuperWeights", "TabM",
    ),
    "covey.deploy": ("Selection", "Soup", "distill", "export", "fuse", "select_members", "soup"),
    "covey.report.comparison": ("compare",),
    "covey.scores": ("anytime", "evaluate"),
    "covey.train": ("History", "Machine", "Recipe", "Schedule", "fit"),
    "covey.trainings": ("FGE", "SWAG", "Economical", "Late", "LatePhase", "Single", "Snapshot", "gather", "late"),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import what is slow to import when it is first asked for."""
    try:
        if name in _PACKAGES:
            return import_module(f"covey.{name}")
        if name in _HOME_OF:
            return getattr(import_module(_HOME_OF[name]), name)
    except ModuleNotFoundError as error:
        raise explained(error) from None
    raise AttributeError(f"module 'covey' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES])
