"""The ensembles of the papers by name: networks of `covey.zoo`, one per member (or one for all), and the options."""

from __future__ import annotations

from covey.methods.mixture import Mixture
from covey.methods.superweights import SuperWeights
from covey.parts.template_method import TemplateMethod

PRESETS: dict[str, tuple[tuple[str, ...], TemplateMethod]] = {
    # One SuperWeight per layer and no refinement is MixtureEnsembles: the two papers print the same numbers for it.
    "homogeneous": (("wrn-28-10",), Mixture(members=4, budget=36_500_000)),
    "gradient-conflict": (
        ("wrn-28-10",),
        SuperWeights(members=4, budget=36_500_000, refine_at=20, tau=0.1),
    ),
    "heterogeneous": (
        ("wrn-34-8", "wrn-28-12", "wrn-28-10", "wrn-28-8"),
        SuperWeights(members=4, budget=36_500_000, refine_at=20, tau=0.1),
    ),
    "multi-width": (
        ("wrn-28-7", "wrn-28-4", "wrn-28-3"),
        SuperWeights(members=3, budget=1.0, refine_at=20, tau=0.1, decouple_at=10, beta=0.9),
    ),
    "multi-depth-width": (
        ("wrn-28-7", "wrn-28-4", "wrn-16-7", "wrn-16-4"),
        SuperWeights(members=4, budget=1.0, refine_at=20, tau=0.1, decouple_at=10, beta=0.9),
    ),
    "families": (
        ("cifar-mobilenet-v2", "wrn-28-5"),
        SuperWeights(members=2, budget=1.0, refine_at=20, tau=0.1),
    ),
}
