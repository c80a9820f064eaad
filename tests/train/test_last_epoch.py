"""Late-phase members take several minibatches a step, and still no epoch after the last is told of."""

import logging

from torch import nn

import covey
from covey.data import load
from covey.data.splits import fewer


def test_no_epoch_comes_after_the_last(caplog):
    data = fewer(load("digits"), 40, 0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.LayerNorm(8), nn.Linear(8, 10))
    recipe = covey.Recipe(epochs=3, batch=20, run="loop")
    machine = covey.Machine(accelerator="cpu", progress=False)
    with caplog.at_level(logging.INFO, "covey"):
        done = covey.fit(network, data, recipe, method=covey.LatePhase(members=10), machine=machine)
    assert done["epoch"][-1] == 3
    assert caplog.messages[-1].startswith("epoch 3 of 3")
