"""Every method is started late as it says: widened from one member, or made of the plain trained network."""

import pytest
import torch
from small import blobs, mlp

import covey
from covey.cli.planned import passes_of
from covey.cli.settings import Settings
from covey.train.recipe import Recipe

QUIET = covey.Machine(accelerator="cpu", progress=False)
RECIPE = Recipe(epochs=3, batch=16, lr=0.05)
WIDENED = [
    covey.Replicate(members=3),
    covey.NormEnsemble(members=3),
    covey.BatchEnsemble(members=3, init="ones"),
    covey.Hypernetwork(members=3, linear=True, budget=None),
]
CONVERTED = [
    covey.Masksembles(members=3),
    covey.MCDropout(members=3),
    covey.MIMO(members=3, init="copy"),
    covey.Packed(members=2, alpha=2.0, init="slice"),
]


def network():
    return mlp(norm=True, dropout=0.1)


@pytest.mark.parametrize("method", [*WIDENED, *CONVERTED], ids=lambda method: type(method).__name__)
def test_started_late(method):
    history = covey.fit(network(), blobs(), RECIPE, method=covey.late(method, 2, 0.1), machine=QUIET)
    assert history.ensemble.method == method
    assert [row["phase"] for row in history.rows] == [0, 0, 1]
    assert history.last["accuracy"] > 0.8  # the training before is not lost


@pytest.mark.parametrize("method", CONVERTED, ids=lambda method: type(method).__name__)
def test_a_converted_start_is_made_of_the_trained_network(method):
    """Until the start, the plain network is trained as it would be alone."""
    training = covey.late(method, 2)
    whole = covey.fit(network(), blobs(), RECIPE, method=training, machine=QUIET)
    alone = covey.fit(network(), blobs(), RECIPE, method=covey.Single(), machine=QUIET)
    assert whole.rows[0]["loss"] == alone.rows[0]["loss"]
    assert whole.rows[1]["accuracy"] == alone.rows[1]["accuracy"]


def test_widths_of_a_slice_are_those_of_the_method():
    training = covey.late(covey.Packed(members=2, alpha=1.0, init="slice"), 1)
    history = covey.fit(network(), blobs(), RECIPE, method=training, machine=QUIET)
    assert history.ensemble.member(0)[0].weight.shape == (4, 6)


@pytest.mark.parametrize(
    ("name", "options", "passes"),
    [
        ("single", {}, 1.0),
        ("superweights", {"members": 4}, 4.0),
        ("mixture", {"members": 4}, 4.0),
        ("packed", {"members": 4, "alpha": 2.0}, 1.0),
        ("mimo", {"repeats": 3}, 3.0),
        ("mc-dropout", {"members": 10}, 1.0),
        ("late-phase", {"members": 10}, 1.0),
        ("deep-ensemble", {"members": 5}, 5.0),
    ],
)
def test_the_passes_that_reproduce_counts(name, options, passes):
    assert passes_of(Settings.from_dict({"method": name, "options": options})) == passes
    if name == "deep-ensemble":
        apart = {"method": name, "options": options, "recipe": {"plan": "independent"}}
        assert passes_of(Settings.from_dict(apart)) == 1.0


def test_a_late_start_from_the_command_line_s_words():
    training = covey.Late(method="batch-ensemble:members=2,init=ones", start=1)
    history = covey.fit(network(), blobs(), RECIPE, method=training, machine=QUIET)
    assert history.ensemble.method == covey.BatchEnsemble(members=2, init="ones")
    assert torch.isfinite(history.ensemble.predict(blobs().test.inputs).probs).all()
