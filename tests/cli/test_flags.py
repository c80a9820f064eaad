"""What is typed wrong, and recipe files, in this process."""

import json
import re
import warnings
from contextlib import nullcontext

import pytest
import torch

from covey import zoo
from covey.cli import recipes
from covey.cli.main import main
from covey.cli.planned import CompareFlags, from_recipe, longest_first, planned_runs
from covey.cli.reproduce import SIZES, hours
from covey.cli.settings import Settings, parse_options, updated
from covey.errors import OptionError
from covey.train import Recipe


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trian"], "there is no command 'trian'; the nearest names are 'train'"),
        (["train"], "covey train takes a method, or a recipe file"),
        (["train", "pakced"], "there is no method 'pakced'; the nearest names are 'packed'"),
        (["train", "single", "--epoch", "3"], "has no flag --epoch; the nearest names are '--epochs'"),
        (
            ["train", "single", "--schedule.kidn", "cosine"],
            "has no flag --schedule.kidn; .*'--schedule.kind'",
        ),
        (["train", "single", "--epochs", "many"], "--epochs is a whole number; got 'many'"),
        (["train", "single", "--epochs", "0"], "epochs is a whole number of at least 1; got 0"),
        (["train", "single", "--plan", "apart"], "--plan"),
        (["train", "single", "--scale", "tiny"], "--scale is full or small; got 'tiny'"),
        (["train", "single", "--data", "digit"], "'digit' is neither a known data set nor a file.*'digits'"),
        (["train", "single", "--network", "resnt-18"], "there is no network 'resnt-18'; .*'resnet-18'"),
        (["train", "single", "--network-option", "hidden"], "an option is written name=value; got 'hidden'"),
        (["train", "--recipe", "nowhere.toml"], "there is no recipe 'nowhere.toml'"),
        (["evaluate", "nowhere"], "nowhere is no finished run of `covey train`"),
        (["evaluate"], "covey evaluate needs FOLDER"),
        (["predict", "nowhere", "x.npy", "--out", "x.txt"], "--out is a .csv or .json file; got 'x.txt'"),
        (["show", "nowhere"], "nowhere is no finished run"),
        (
            ["methods", "batch-ensembel"],
            "there is no method 'batch-ensembel'; the nearest names are 'batch-ensemble'",
        ),
        (["data", "mnits"], "'mnits' is neither a known data set nor a file.*'mnist'"),
        (["compare", "--methods", "singel"], "there is no method 'singel'"),
        (["compare", "--methods", "single", "single"], "two of the runs are the same"),
        (["compare", "--vary", "lr"], "--vary is written name=value,value; got 'lr'"),
        (
            ["compare", "--vary", "lr=1,2", "lr=3"],
            "--vary names lr twice; write all its values after one name",
        ),
        (["compare", "--methods", "single", "--vary", "depth=1,2"], "--vary 'depth=1': neither the method"),
        (["compare", "--jobs", "2", "--ray"], "--jobs and --ray are two ways of running"),
        (["reproduce"], "covey reproduce takes a recipe's name"),
        (
            ["train", "single", "--task", "regression"],
            "digits is for classification, so it cannot be used for regr",
        ),
        (["train", "single", "--target", "y"], "digits: a target is a column of a table of your own"),
        (["train", "single", "--image-size", "8"], "digits: an image size is for folders of images"),
        (["train", "single", "--split", "3"], "digits has no standard splits"),
        (
            ["train", "single", "--accelerator", "cuda"],
            "accelerator is 'cuda', and torch sees no such device",
        ),
        (["reproduce", "paper9"], "there is no recipe 'paper9'"),
    ],
)
def test_mistakes(words, expected, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert re.search(expected, err), err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method = \n", "bad.toml is not valid TOML: .*line 1"),
        (
            "[about]\n\n[recipe]\nepochs = 3\nlearning_rate = 1\n",
            "line 5: recipe has no setting 'learning_rate'",
        ),
        (
            'method = "single"\n[recipe]\nepochs = "ten"\n',
            "line 3: recipe.epochs should be a whole number; got 'ten'",
        ),
        ('method = "single"\n[recipe]\nlr = -1.0\n', "line 3: lr is above 0; got -1.0"),
        ('method = "singel"\n', "line 1: there is no method 'singel'"),
        ("[recpie]\nepochs = 3\n", "line 1: unknown key 'recpie'; the nearest names are 'recipe'"),
        ('[recipe.schedule]\nkind = "stairs"\n', "recipe.schedule.kind should be .*'cosine'.*got 'stairs'"),
    ],
)
def test_bad_recipe_files_name_line_and_key(text, expected, tmp_path, capsys):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    assert main(["train", "--recipe", str(path)]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert re.search(expected, err), err


@pytest.mark.parametrize(
    "command", ["train", "compare", "evaluate", "predict", "methods", "networks", "data", "reproduce", "show"]
)
def test_help_at_each_level(command, capsys):
    with pytest.raises(SystemExit) if command != "train" else nullcontext():
        main([command, "--help"])
    assert "usage" in capsys.readouterr().out


def test_help_of_a_method_explains_its_own_flags(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "packed", "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "--alpha" in out
    assert "--schedule.kind" in out
    assert "width of all members" in " ".join(out.replace("│", " ").split())


def test_flags_override_the_file_and_the_file_the_defaults(tmp_path, monkeypatch):
    path = tmp_path / "r.toml"
    path.write_text('method = "multi-head"\n[options]\nmembers = 7\n[recipe]\nepochs = 5\nlr = 0.3\n')
    seen = {}
    monkeypatch.setattr("covey.cli.run.train", lambda settings, folder, **_: seen.update(s=settings) or 1 / 0)
    assert main(["train", "--recipe", str(path), "--epochs", "2"]) == 1
    assert (seen["s"].method, seen["s"].options.members) == ("multi-head", 7)
    assert (seen["s"].recipe.epochs, seen["s"].recipe.lr, seen["s"].recipe.batch) == (2, 0.3, Recipe().batch)


def test_settings_survive_json():
    given = {
        "method": "multi-head",
        "options": {"members": 3, "where": ["norms", "head"]},
        "recipe": {"lr": 0.2},
    }
    settings = Settings.from_dict(given)
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_all_combinations():
    own = CompareFlags(methods=("single", "multi-head:members=2"), seeds=(0, 1), vary=("lr=0.1,0.01",))
    tasks = planned_runs(Settings(), own)
    assert len(tasks) == 8
    assert {(t.settings.method, t.settings.recipe.lr, t.settings.recipe.seed) for t in tasks} == {
        (m, lr, s) for m in ("single", "multi-head") for lr in (0.1, 0.01) for s in (0, 1)
    }


def test_a_name_that_method_and_recipe_share():
    def rates(*vary):
        (task,) = planned_runs(Settings(), CompareFlags(methods=("batch-ensemble:lr=0.5",), vary=vary))
        return task.settings.options.lr, task.settings.recipe.lr

    plain = Settings().recipe.lr
    assert (rates(), rates("lr=0.7"), rates("options-lr=0.7")) == ((0.5, plain), (0.5, 0.7), (0.7, plain))


def test_splits_of_the_data_are_repetitions():
    own = CompareFlags(methods=("single", "packed"), seeds=(3,), vary=("split=0,5",))
    tasks = planned_runs(Settings(), own)
    assert [(t.label, t.repeat, t.settings.dataset.split) for t in tasks] == [
        ("single", 0, 0), ("single", 1, 5), ("packed", 0, 0), ("packed", 1, 5),
    ]  # fmt: skip
    assert len({t.folder for t in tasks}) == 4
    assert [t.repeat for t in planned_runs(Settings(), CompareFlags(methods=("single",), seeds=(3, 7)))] == [
        3,
        7,
    ]


def test_processes_begin_with_the_longest_runs():
    own = CompareFlags(
        methods=("single", "packed:alpha=2,members=4", "deep-ensemble:members=4"), seeds=(0, 1)
    )
    ordered = longest_first(planned_runs(Settings(), own))
    assert [one.settings.method for one in ordered[::2]] == ["deep-ensemble", "packed", "single"]
    assert [one.repeat for one in ordered] == [0, 1] * 3


def test_a_method_can_have_settings_of_its_own():
    own = CompareFlags(methods=("packed:alpha=3", "single:network=wrn-10-2,lr=0.2"))
    packed, single = (task.settings for task in planned_runs(Settings(), own))
    assert (packed.options.alpha, packed.network.network) == (3, None)
    assert (single.network.network, single.recipe.lr) == ("wrn-10-2", 0.2)


def test_what_is_varied_stays_varied_at_the_small_size():
    flags, base = from_recipe(recipes.read("paper5-figure8-resnet-18"), "small")
    assert [task.settings.network.network for task in planned_runs(base, flags)] == ["wrn-10-1", "wrn-10-2"]


FILES = sorted(recipes.folder().glob("*.toml"))


BUILT: set[str] = set()  # most runs of most recipes have the same few networks


def _build(settings: Settings) -> None:
    """The settings' networks, without memory."""
    for name in (settings.network.network or "mlp").split("+"):
        shape = SIZES.get(settings.dataset.data, (0, (8,) if name == "mlp" else (3, 32, 32), 10))[1]
        options = {**zoo.find(name).arguments_for(shape), **parse_options(settings.network.network_option)}
        asked = f"{name} {options}"
        if asked in BUILT:
            continue
        with torch.device("meta"):
            assert sum(p.numel() for p in zoo.create(name, **{"classes": 10, **options}).parameters())
        BUILT.add(asked)


def test_there_are_recipes_of_all_five_papers():
    assert {path.name.partition("-")[0] for path in FILES} == {*(f"paper{i}" for i in range(1, 6)), "promise"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_recipes_can_be_planned_at_both_sizes(path):
    file = recipes.read(str(path))
    assert {"paper", "table", "title", "reports"} <= set(file.about)
    if "command" in file.about:
        return
    for scale in ("full", "small"):
        flags, base = from_recipe(file, scale)
        tasks = planned_runs(base, flags)
        assert tasks
        for task in tasks:
            _build(task.settings)
    assert file.at("small").recipe.epochs <= 40


def test_a_small_run_is_cheaper():
    file = recipes.read("paper4-table2-cifar100")
    full, small = (hours(file, scale, 1e10) for scale in ("full", "small"))
    assert full > 1000 * small


def test_the_list_of_recipes_builds_no_network(monkeypatch, capsys):
    def create(name, **options):
        raise AssertionError(f"{name} {options} is missing from the listed sizes")

    monkeypatch.setattr(zoo, "create", create)
    assert main(["reproduce", "--list"]) == 0
    assert "paper4-table2-cifar100" in capsys.readouterr().out


def test_fill_checks_kinds():
    with pytest.raises(OptionError, match="recipe.nesterov should be True or False; got 1"):
        updated(Recipe(), {"nesterov": 1}, "recipe")
    assert updated(Recipe(), {"lr": 1}, "recipe").lr == 1


def test_the_home_folder_where_the_shell_has_left_a_tilde(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    (tmp_path / "file").write_text("")
    assert main(["train", "single", "--folder=~/file"]) == 2
    assert f"cannot write to {tmp_path}/file: it is a file" in capsys.readouterr().err
    assert main(["show", "~/file"]) == 2
    assert f"{tmp_path}/file is no finished run" in capsys.readouterr().err
