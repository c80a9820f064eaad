import math

import pytest
import torch

from covey.errors import OptionError
from covey.train import Recipe, Schedule


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(), {0: 0.1, 57: 0.1, 200: 0.1}),
        # the papers' own drops
        (
            Schedule(kind="multistep", milestones=(60, 120, 160), factor=0.2),
            {59.99: 0.1, 60: 0.02, 120: 0.004, 160: 0.0008, 199: 0.0008},
        ),
        (
            Schedule(kind="linear", start=80, end=160, final=0.05),
            {0: 0.1, 80: 0.1, 100: 0.0875, 160: 0.05, 190: 0.05},
        ),
        (Schedule(kind="linear", final=0.0), {0: 0.1, 50: 0.075, 200: 0.0}),
        (Schedule(kind="cosine"), {0: 0.1, 100: 0.05, 200: 0.0}),
        (Schedule(kind="constant", warmup=10), {0: 0.0, 5: 0.05, 10: 0.1, 100: 0.1}),
        (Schedule(kind="cyclic", cycle=40), {0: 0.1, 20: 0.05, 39.999999: 0.0, 40: 0.1, 60: 0.05}),
        (
            Schedule(kind="triangular", cycle=2, start=160, final=0.01),
            {100: 0.1, 160: 0.1, 161: 0.01, 161.5: 0.055},
        ),
    ],
)
def test_values_by_hand(schedule, expected):
    found = {epoch: schedule.at(epoch, lr=0.1, epochs=200) for epoch in expected}
    assert found == pytest.approx(expected, abs=1e-8)


def test_cosine_is_torchs():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.3)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    ours = Schedule(kind="cosine")
    for step in range(50):
        assert ours.at(step / 10, lr=0.3, epochs=5) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


def test_scaled_keeps_the_shape():
    recipe = Recipe(epochs=200, lr=0.1, schedule=Schedule(kind="linear", start=80, end=160, final=0.05))
    small = recipe.scaled(0.1)
    assert small.epochs == 20
    for share in (0.1, 0.5, 0.6, 0.9):
        full = recipe.schedule.at(200 * share, lr=0.1, epochs=200)
        assert math.isclose(full, small.schedule.at(20 * share, lr=0.1, epochs=20))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "stairs"}, "schedule.kind is one of constant"),
        ({"kind": "multistep"}, "needs schedule.milestones"),
        ({"milestones": (3, 2)}, "in rising order"),
        ({"start": 5, "end": 4}, "end comes after"),
        ({"cycle": 0}, "cycle is above 0"),
        ({"warmup": -1}, "warmup is at least 0"),
        ({"warmup": math.nan}, "warmup is at least 0; got nan"),
        ({"final": math.inf}, "final is at least 0; got inf"),
        ({"factor": math.nan}, "factor is above 0; got nan"),
        ({"kind": "linear", "end": math.nan}, "end is above 0; got nan"),
        ({"milestones": (2, math.nan, 1)}, "milestones is at least 0; got nan"),
        ({"milestones": (-1,)}, "milestones is at least 0; got -1"),
    ],
)
def test_bad_schedules(options, words):
    with pytest.raises(OptionError, match=words):
        Schedule(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"epochs": 0}, "epochs is a whole number of at least 1"),
        ({"batch": 2.5}, "batch is a whole number"),
        ({"lr": 0.0}, "lr is above 0"),
        ({"clip": -1.0}, "clip is above 0"),
        ({"plan": "apart"}, "plan is one of 'same'"),
        ({"optimizer": "lion"}, "optimizer is one of 'sgd'"),
        ({"momentum": 1.0}, "momentum is at least 0 and below 1"),
        ({"decay": -0.1}, "decay is at least 0"),
        ({"keep": "worst"}, "keep is one of 'last'"),
    ],
)
def test_bad_recipes(options, words):
    with pytest.raises(OptionError, match=words):
        Recipe(**options)
