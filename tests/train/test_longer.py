"""More epochs for a run that has ended."""

import math

import pytest
import torch
from torch import nn

from covey import BatchEnsemble
from covey.data import adapt
from covey.errors import OptionError, StoreError
from covey.train import Machine, Recipe, Schedule, fit
from covey.train.checkpoint import SPEC
from covey.trainings import Snapshot

QUIET = Machine(accelerator="cpu", progress=False)
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
DATA = adapt((X, (X.sum(1) > 0).long()), validation=0.25)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def run(epochs, folder, *, method=None, resume=False, **options):
    recipe = Recipe(epochs=epochs, batch=8, run="loop", **options)
    return fit(network(), DATA, recipe, method=method, folder=folder, machine=QUIET, resume=resume)


@pytest.mark.parametrize(
    "schedule", [Schedule(), Schedule(kind="multistep", milestones=(3,)), Schedule(kind="linear", end=2)]
)
def test_where_the_schedule_does_not_know_the_length_the_bits_are_those_of_a_longer_run(tmp_path, schedule):
    method = BatchEnsemble(members=2)
    run(2, tmp_path / "a", method=method, schedule=schedule)
    longer = run(4, tmp_path / "a", method=method, schedule=schedule, resume=True)
    whole = run(4, tmp_path / "b", method=method, schedule=schedule)
    for name, tensor in whole.ensemble.state_dict().items():
        assert torch.equal(tensor, longer.ensemble.state_dict()[name]), name
    assert longer["loss"] == whole["loss"]


def test_a_cosine_is_stretched_from_where_the_run_stands(tmp_path, caplog):
    caplog.set_level("INFO", logger="covey")
    run(2, tmp_path, lr=0.1, schedule=Schedule(kind="cosine"))
    longer = run(4, tmp_path, lr=0.1, schedule=Schedule(kind="cosine"), resume=True)
    assert "goes from 0 to 0.05 and falls" in caplog.text  # half of the way through four epochs
    assert longer["lr"][2] > longer["lr"][1]
    last = 0.1 * (1 + math.cos(math.pi * 3.75 / 4)) / 2  # before the last of four minibatches
    assert longer["lr"][3] == pytest.approx(last)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"average": 0.5}, "averages weights"),
        ({"method": Snapshot(members=2)}, "collects members"),
    ],
)
def test_what_follows_from_the_length_is_refused(tmp_path, options, why):
    run(4, tmp_path, **options)
    with pytest.raises(StoreError, match=f"of 4 epochs, which cannot go on to 8: .*{why}"):
        run(8, tmp_path, resume=True, **options)


def test_a_run_that_stopped_early_stays_as_it_is(tmp_path):
    ended = run(40, tmp_path, patience=1, lr=1e-9)
    assert len(ended.rows) < 40
    again = run(40, tmp_path, patience=1, lr=1e-9, resume=True)
    assert again.ended == ended.ended == "1 epoch without a better validation score"
    assert len(again.rows) == len(ended.rows)  # not one more
    with pytest.raises(StoreError, match="not at its last epoch"):
        run(80, tmp_path, patience=1, lr=1e-9, resume=True)


def test_a_checkpoint_whose_recipe_is_no_table_is_refused_by_its_schema() -> None:
    """Found by `make fuzz`: the number of epochs was looked up in a number."""
    settings = SPEC.keys["settings"]
    assert settings.fault({"recipe": {"epochs": 3}, "method": {}, "data": {}}, "settings") is None
    assert settings.fault({"recipe": 5, "method": {}, "data": {}}, "settings") == (
        "settings.recipe should be a table; got 5"
    )


def test_a_recipe_is_not_scaled_by_what_is_no_number() -> None:
    with pytest.raises(OptionError, match="finite; got nan"):
        Recipe(epochs=3).scaled(math.nan)


def test_a_folder_with_a_checkpoints_name_is_left_alone(tmp_path) -> None:
    run(2, tmp_path / "run")
    strange = tmp_path / "run" / "checkpoints" / "0000000000-0123456789abcdef.safetensors"
    strange.mkdir()
    run(3, tmp_path / "run", resume=True)
    assert strange.is_dir()
