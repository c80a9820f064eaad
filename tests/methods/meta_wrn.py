"""WRN-28-10 without memory, to count on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import covey
from covey import zoo
from covey.networks.anatomy import Anatomy


def wrn_28_10(classes: int = 10) -> Anatomy:
    with torch.device("meta"):
        network = zoo.create("wrn-28-10", classes=classes)
    return Anatomy(network, head=("head.weight", "head.bias"), stem=("stem.weight",))


def built(method: covey.Method, bodies: Sequence[Anatomy]) -> covey.Ensemble:
    """The ensemble that a method designs for these networks."""
    method = method.for_networks(len(bodies))
    return method.build(bodies, method.design(bodies))
