"""One file a method: options, parameterization, private parts, in that order."""

from covey.ensemble import Method
from covey.methods.batch_ensemble import BatchEnsemble
from covey.methods.masksembles import Masksembles
from covey.methods.mc_dropout import MCDropout
from covey.methods.mimo import MIMO
from covey.methods.packed import Packed
from covey.methods.replicate import DeepEnsemble, MultiHead, NormEnsemble, Replicate

METHODS: dict[str, type[Method]] = {
    "replicate": Replicate,
    "deep-ensemble": DeepEnsemble,
    "multi-head": MultiHead,
    "norm-ensemble": NormEnsemble,
    "batch-ensemble": BatchEnsemble,
    "masksembles": Masksembles,
    "mimo": MIMO,
    "mc-dropout": MCDropout,
    "packed": Packed,
}
