"""Results of experiments as files: what is in them, what is left out, and how they grow from seed to seed."""

import json
import os
import shutil
from collections import Counter
from dataclasses import replace

import pytest

import covey
from covey.cli import planned, recipes, results, run
from covey.cli.main import main
from covey.errors import StoreError
from covey.report import members

RECIPE = """
method = "late-phase"

[about]
paper = "none"
table = "none"
title = "digits"

[options]
members = 2
start = 0.5
collapse = false

[dataset]
data = "digits"
samples = 100

[network]
network = "wrn-10-1"

[recipe]
epochs = 2
batch = 50

[compare]
seeds = [0, 1]
collapsed = true
subsets = true
interpolation = 20
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    (folder / "digits.toml").write_text(RECIPE)
    words = [
        "reproduce",
        str(folder / "digits.toml"),
        "--folder",
        str(folder / "runs"),
        "--results",
        str(folder),
    ]
    assert main([*words, "--seeds", "1"]) == 0
    first = results.read(folder / "digits.json")
    assert main([*words, "--seeds", "0"]) == 0
    return folder, first


def test_results_grow_with_every_seed(place):
    folder, first = place
    found = results.read(folder / "digits.json")
    assert [one["repeat"] for one in first["runs"]] == [1]
    assert [one["repeat"] for one in found["runs"]] == [0, 1]
    assert found["runs"][1] == first["runs"][0]
    assert found["planned"] == first["planned"] == 2
    assert results.state(first).startswith("1 of 2 runs, 1 seed,")


def test_results_tell_how_to_make_them_again(place):
    found = results.read(place[0] / "digits.json")
    assert found["command"] == "covey reproduce digits"
    assert found["about"]["title"] == "digits"
    assert {"covey", "torch", "python"} <= found["versions"].keys()
    run = found["runs"][0]
    assert run["settings"]["recipe"]["epochs"] == 2
    assert run["seconds"] > 0
    assert run["label"] == "late-phase"


def test_every_way_of_collapsing_is_scored(place):
    run = results.read(place[0] / "digits.json")["runs"][0]
    assert run["collapsed"].keys() == {"exact", "mean", "mean, new statistics"}
    stored = json.loads((place[0] / "runs" / "late-phase-0" / "evaluation.json").read_text())
    assert run["scores"]["ensemble"]["nll"] == pytest.approx(stored["scores"]["ensemble"]["nll"], rel=1e-5)
    assert "disagreement_matrix" not in run["scores"]["diversity"]


def test_every_subset_of_members_is_scored_and_drawn(place):
    folder, _ = place
    found = results.read(folder / "digits.json")["runs"][0]["subsets"]["subsets"]
    assert sorted(each["members"] for each in found) == [[0], [0, 1], [1]]
    stored = json.loads((folder / "runs" / "late-phase-0" / "evaluation.json").read_text())
    (both,) = (each for each in found if each["members"] == [0, 1])
    assert both["score"] == pytest.approx(stored["scores"]["ensemble"]["accuracy"], abs=1e-4)
    drawn = {path.stem for path in (folder / "runs" / "figures").glob("*.svg")}
    assert {"anytime-multiply_adds", "anytime-milliseconds"} <= drawn
    assert {"interpolation", "interpolation-accuracy"} <= drawn


@pytest.mark.parametrize("file", [run.SUBSETS, run.COLLAPSED])
def test_a_run_without_a_score_that_is_asked_for_is_not_done(place, file):
    recipe = recipes.read(str(place[0] / "digits.toml"))
    flags, base = planned.from_recipe(recipe, "full")
    (one, _) = planned.planned_runs(base, replace(flags, folder=str(place[0] / "runs")))
    assert planned.is_done(one)
    assert not planned.is_done(replace(one, folder=one.folder.parent / "another"))
    subsets = one.folder / file
    text = subsets.read_text()
    subsets.unlink()
    try:
        assert not planned.is_done(one)
        assert planned.is_done(replace(one, subsets=False, collapsed=False))
    finally:
        subsets.write_text(text)


def _robustness(place) -> int | None:
    stored = json.loads((place / "single-0" / "evaluation.json").read_text())
    return stored["scores"].get("robustness", {}).get("samples")


def test_scores_that_are_asked_for_later_are_added_and_others_stay(tmp_path):
    words = ["compare", "--methods", "single", "--data", "digits", "--samples", "60", "--network", "mlp"]
    words += ["--epochs", "1", "--folder", str(tmp_path), "--no-progress"]
    assert main(words) == 0
    assert _robustness(tmp_path) is None
    assert main([*words, "--corruptions", "5"]) == 0
    assert _robustness(tmp_path) == 5
    assert not (tmp_path / "single-0" / "subsets.json").exists()
    assert main([*words, "--subsets"]) == 0
    assert (tmp_path / "single-0" / "subsets.json").exists()
    assert _robustness(tmp_path) == 5
    weights = sorted((tmp_path / "single-0" / "ensemble").iterdir())
    before = [path.read_bytes() for path in weights]
    (tmp_path / "single-0" / "outputs.npz").unlink()
    (tmp_path / "single-0" / "subsets.json").unlink()
    assert main([*words, "--subsets"]) == 0
    assert (tmp_path / "single-0" / "subsets.json").exists()
    assert [path.read_bytes() for path in weights] == before  # nothing was trained again


def test_a_landscape_that_cannot_be_computed_does_not_cost_the_report(place, monkeypatch, capsys):
    def fails(*args, **options):
        raise RuntimeError("no such line")

    monkeypatch.setattr("covey.scores.landscape.interpolation", fails)
    words = ["compare", "--recipe", str(place[0] / "digits.toml"), "--folder", str(place[0] / "runs")]
    assert main([*words, "--seeds", "0", "1"]) == 0
    told = capsys.readouterr().out
    assert "repetition 1: no loss around its members: no such line" in told
    assert "report:" in told


def test_results_without_a_score_that_the_recipe_asks_for_now_are_not_enough(place, tmp_path):
    found = json.loads((place[0] / "digits.json").read_text())
    for one in found["runs"]:
        del one["subsets"]
    (tmp_path / "digits.json").write_text(json.dumps(found))
    words = ["reproduce", str(place[0] / "digits.toml"), "--folder", str(place[0] / "runs")]
    assert main([*words, "--results", str(tmp_path)]) == 0
    again = results.read(tmp_path / "digits.json")["runs"]
    assert all("subsets" in one for one in again)


def test_clusters_of_layers_stand_beside_the_subsets(tmp_path):
    data = covey.data.load("digits")
    network = covey.zoo.create("wrn-10-1", classes=10, channels=1)
    example = data.prepare(data.test.inputs[:4])
    ensemble = covey.convert(network, covey.SuperWeights(members=2, budget=3.0), example=example)
    run.score(tmp_path, ensemble, data)
    run.score_subsets(tmp_path, ensemble, data)
    found = run.read_subsets(tmp_path)
    groups = ensemble.layout.facts["clusters"]
    sizes = Counter(cluster for by_depth in found["clusters"] for cluster in by_depth)
    assert sizes == {number: len(layers) for number, layers in enumerate(groups)}
    drawn = members.draw_clusters(found["clusters"], name="SuperWeights")
    assert drawn.alt.startswith(f"{len(groups)} clusters of {sizes.total()} layers")


RUNS = '{"format": 1, "planned": 1, "runs": '


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 7}',
        '{"format": 1}',
        "[" * 5000,
        '{"format": ' + "1" * 5000 + "}",
        RUNS + "[3]}",
    ],
)
def test_files_that_hold_no_results(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(StoreError, match=r"x\.json"):
        results.read(tmp_path / "x.json")


def test_a_pipe_holds_no_results(tmp_path):
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(StoreError, match="no ordinary file"):
        results.read(tmp_path / "x.json")


@pytest.mark.parametrize("name", ["cost.json", "collapsed.json", "subsets.json"])
@pytest.mark.parametrize("text", ["", "[]", '{"members": "many"}', "[" * 5000, None])
def test_a_run_whose_files_were_changed_is_refused(place, tmp_path, name, text):
    (source,) = [path.parent for path in (place[0] / "runs").rglob("*-0/cost.json")]
    folder = shutil.copytree(source, tmp_path / "run")
    (folder / name).unlink()
    if text is None:
        os.mkfifo(folder / name)
    else:
        (folder / name).write_text(text)
    with pytest.raises(StoreError, match=name):
        results.entry("late-phase", 0, folder)


def test_runs_of_another_machine_are_not_done_again(place, tmp_path, capsys):
    before = results.read(place[0] / "digits.json")
    shutil.copy(place[0] / "digits.json", tmp_path)
    words = ["reproduce", str(place[0] / "digits.toml"), "--folder", str(tmp_path / "runs")]
    assert main([*words, "--results", str(tmp_path)]) == 0
    assert "2 of 2 runs stand in" in capsys.readouterr().out
    assert not list((tmp_path / "runs").glob("late-phase*"))
    assert results.read(tmp_path / "digits.json")["runs"] == before["runs"]


def test_runs_with_other_settings_are_done_again(place, tmp_path, capsys):
    found = json.loads((place[0] / "digits.json").read_text())
    found["runs"][0]["settings"]["recipe"]["lr"] = 0.7
    (tmp_path / "digits.json").write_text(json.dumps(found))
    words = ["reproduce", str(place[0] / "digits.toml"), "--folder", str(tmp_path / "runs")]
    assert main([*words, "--results", str(tmp_path)]) == 0
    assert "1 of 2 runs stand in" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "runs").glob("late-phase*")] == ["late-phase-0"]
    first = results.read(tmp_path / "digits.json")["runs"][0]
    assert first["settings"]["recipe"]["lr"] != 0.7


def test_results_do_not_tell_where_data_lie(place):
    run = results.read(place[0] / "digits.json")["runs"][0]
    assert run["settings"]["dataset"]["root"] is None
