"""WRN-28-10 without memory, to count on."""

from __future__ import annotations

import torch

from covey import zoo
from covey.networks.anatomy import Anatomy


def wrn_28_10(classes: int = 10) -> Anatomy:
    with torch.device("meta"):
        network = zoo.create("wrn-28-10", classes=classes)
    return Anatomy(network, head=("head.weight", "head.bias"), stem=("stem.weight",))
