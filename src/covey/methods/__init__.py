"""One file a method: options, parameterization, private parts, in that order."""

from covey.ensemble import Method
from covey.methods.batch_ensemble import BatchEnsemble
from covey.methods.hypernetwork import Hypernetwork
from covey.methods.masksembles import Masksembles
from covey.methods.mc_dropout import MCDropout
from covey.methods.mimo import MIMO
from covey.methods.mixture import Mixture
from covey.methods.packed import Packed
from covey.methods.replicate import DeepEnsemble, MultiHead, NormEnsemble, Replicate
from covey.methods.shapeshifter import ShapeShifter
from covey.methods.slimmable import Slimmable
from covey.methods.superweights import SuperWeights

METHODS: dict[str, type[Method]] = {
    "replicate": Replicate,
    "deep-ensemble": DeepEnsemble,
    "multi-head": MultiHead,
    "norm-ensemble": NormEnsemble,
    "batch-ensemble": BatchEnsemble,
    "masksembles": Masksembles,
    "mimo": MIMO,
    "mc-dropout": MCDropout,
    "hypernetwork": Hypernetwork,
    "mixture": Mixture,
    "superweights": SuperWeights,
    "shapeshifter": ShapeShifter,
    "slimmable": Slimmable,
    "packed": Packed,
}
