"""The ensembles of the papers by name: networks of `covey.zoo`, one per member (or one for all), and the options."""

from __future__ import annotations

from covey.methods.superweights import SuperWeights

PRESETS: dict[str, tuple[tuple[str, ...], SuperWeights]] = {
    "homogeneous": (("wrn-28-10",), SuperWeights(members=4, budget=36_500_000, clusters="shape")),
    "gradient-conflict": (
        ("wrn-28-10",),
        SuperWeights(members=4, budget=36_500_000, clusters="shape", refine_at=20, tau=0.1),
    ),
    "heterogeneous": (
        ("wrn-34-8", "wrn-28-12", "wrn-28-10", "wrn-28-8"),
        SuperWeights(members=4, budget=36_500_000),
    ),
    "multi-width": (
        ("wrn-28-7", "wrn-28-4", "wrn-28-3"),
        SuperWeights(members=3, refine_at=20, tau=0.1, decouple_at=10, beta=0.9),
    ),
    "multi-depth-width": (
        ("wrn-28-7", "wrn-28-4", "wrn-16-7", "wrn-16-4"),
        SuperWeights(members=4, refine_at=20, tau=0.1, decouple_at=10, beta=0.9),
    ),
    "families": (("cifar-mobilenet-v2", "wrn-28-5"), SuperWeights(members=2)),
}
