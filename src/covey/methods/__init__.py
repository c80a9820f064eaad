"""One file per method: options, parameterization, private parts, in that order."""

from covey.methods.batch_ensemble import BatchEnsemble
from covey.methods.hypernetwork import Hypernetwork
from covey.methods.low_rank import LowRank
from covey.methods.masksembles import Masksembles
from covey.methods.mc_dropout import MCDropout
from covey.methods.mimo import MIMO
from covey.methods.mixture import Mixture
from covey.methods.packed import Packed
from covey.methods.replicate import DeepEnsemble, MultiHead, NormEnsemble, Replicate
from covey.methods.shapeshifter import ShapeShifter
from covey.methods.shared_low_rank import SharedLowRank
from covey.methods.slimmable import Slimmable
from covey.methods.superweights import SuperWeights
from covey.methods.tabm import TabM

__all__ = [
    "MIMO",
    "BatchEnsemble",
    "DeepEnsemble",
    "Hypernetwork",
    "LowRank",
    "MCDropout",
    "Masksembles",
    "Mixture",
    "MultiHead",
    "NormEnsemble",
    "Packed",
    "Replicate",
    "ShapeShifter",
    "SharedLowRank",
    "Slimmable",
    "SuperWeights",
    "TabM",
]
