"""`covey compare --search`: every method is searched as hard, by validation data alone."""

import json
from dataclasses import replace

import pytest
import torch

from covey.cli import search
from covey.cli.flags import UsageError
from covey.cli.main import main
from covey.cli.planned import CompareFlags, planned_runs
from covey.cli.settings import Dataset, Settings
from covey.data import load
from covey.store import load as load_ensemble

SMALL = [
    "--network",
    "mlp",
    "--network-option",
    "hidden=[8]",
    "--epochs",
    "2",
    "--batch",
    "64",
    "--no-progress",
]


def test_draws_fill_the_range_and_repeat():
    (space,) = search.read_spaces(["lr=0.001..1"], lr=0.1)
    drawn = search.candidates([space], 7, seed=3)
    assert drawn == search.candidates([space], 7, seed=3)
    assert drawn != search.candidates([space], 7, seed=4)
    assert drawn[0] == {}  # what the user gave
    rates = sorted(given["lr"] for given in drawn[1:])
    # one in each half decade between 0.001 and 1
    for k, rate in enumerate(rates):
        assert 10 ** (k / 2 - 3) * 0.99 <= rate <= 10 ** ((k + 1) / 2 - 3) * 1.01


def test_lists_are_dealt_out_evenly():
    spaces = search.read_spaces(["batch=32,64", "lr=0.01..0.1"], lr=0.1)
    batches = [given["batch"] for given in search.candidates(spaces, 5, seed=0)[1:]]
    assert sorted(batches) == [32, 32, 64, 64]


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ("lr", "name=low..high"),
        ("lr=0..1", "0 < low < high"),
        ("lr=1..0.1", "0 < low < high"),
        ("lr=a..b", "two numbers"),
    ],
)
def test_a_space_that_is_none(space, words):
    with pytest.raises(UsageError, match=words):
        search.read_spaces([space], lr=0.1)


def plan(*methods, **flags):
    base = Settings(dataset=Dataset(data="digits", **flags))
    return planned_runs(base, CompareFlags(methods=methods))


def test_what_cannot_be_searched(tmp_path):
    given = {"count": 3, "space": (), "way": iter}
    with pytest.raises(UsageError, match=r"multi-head lr=0\.1 sets lr, which --search is to choose"):
        search.searched(plan("single", "multi-head:lr=0.1"), tmp_path, **given)
    with pytest.raises(UsageError, match="--validation a share above 0"):
        search.searched(plan("single", validation=0.0), tmp_path, **given)
    with pytest.raises(UsageError, match="at least 2; got 1"):
        search.searched(plan("single"), tmp_path, **given | {"count": 1})


def test_the_better_half_meets_the_next_seed(tmp_path, capsys):
    """A setting that was lucky with the first seed does not win by that alone."""
    luck = {0: {0.1: -1.0, 0.2: -0.5}, 1: {0.1: 2.0}}
    tried = []

    def way(planned):
        for one in planned:
            rate, seed = one.settings.recipe.lr, one.settings.recipe.seed
            tried.append((one.settings.method, seed, rate))
            value = (
                {0.1: 1.0, 0.2: 0.9, 0.3: 0.8, 0.4: None}[rate] if one.settings.method == "single" else rate
            )
            if value is not None:
                value += luck.get(seed, {}).get(rate, 0.0)
            one.folder.mkdir(parents=True)
            if value is not None:
                (one.folder / search.TRIAL).write_text(json.dumps({"score": "nll", "value": value}))
            yield one, None

    base = Settings(dataset=Dataset(data="digits"))
    base = replace(base, recipe=replace(base.recipe, lr=0.1))
    runs = planned_runs(base, CompareFlags(methods=("single", "multi-head"), seeds=(0, 1, 2)))
    found = search.searched(runs, tmp_path, count=4, space=("lr=0.2,0.3,0.4",), way=way)
    assert [rate for method, seed, rate in tried if method == "single" and seed == 1] == [0.1, 0.2]
    assert not [seed for _, seed, _ in tried if seed == 2]  # one setting is left by then
    assert {one.settings.recipe.lr for one in found if one.settings.method == "single"} == {0.2}
    kept = json.loads((tmp_path / "search.json").read_text())["methods"]["single"]
    values = {trial["settings"].get("lr", 0.1): trial["values"] for trial in kept["trials"]}
    assert values == {0.1: [0.0, 3.0], 0.2: [0.4, 0.9], 0.3: [0.8], 0.4: [None]}
    assert "single: lr 0.2 (validation nll 0.6500, mean of 2 seeds, best of 4)" in capsys.readouterr().out


@pytest.mark.slow
def test_the_best_on_validation_data_is_compared(tmp_path, capsys):
    words = ["compare", "--methods", "single", "multi-head:members=2", "--folder", str(tmp_path), *SMALL]
    words += ["--search", "3", "--space", "lr=0.0001..0.1", "--validation", "0.3"]
    assert main(words) == 0
    out = capsys.readouterr().out
    kept = json.loads((tmp_path / "search.json").read_text())
    assert kept["score"] == "validation nll"
    single, several = kept["methods"]["single"], kept["methods"]["multi-head members=2"]
    tried = [trial["settings"] for trial in single["trials"]]
    assert tried == [trial["settings"] for trial in several["trials"]]
    best = min(range(3), key=lambda k: single["trials"][k]["values"][0])
    assert single["chosen"] == tried[best]
    # the score is that of the validation samples, computed here from the stored network
    data = load("digits", validation=0.3)
    network = load_ensemble(tmp_path / "search" / f"single-0-{best}" / "ensemble").member(0).eval()
    with torch.no_grad():
        logits = network(data.prepare(data.validation.inputs))
    nll = float(torch.nn.functional.cross_entropy(logits, data.validation.targets))
    assert single["trials"][best]["values"][0] == pytest.approx(nll, rel=1e-4)
    compared = json.loads((tmp_path / "single-0" / "settings.json").read_text())
    assert compared["recipe"]["lr"] == single["chosen"].get("lr", 0.05)
    assert f"(validation nll {nll:.4f}, best of 3)" in out
    assert not list((tmp_path / "search").rglob("evaluation.json"))  # nothing was scored on the test data
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")}
    assert main(words) == 0  # what was tried is not tried again
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")} == times
