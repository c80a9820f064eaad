"""Ways of training by name: what presets stand for, their recipes, and the command line."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import covey
from covey import Economical, LatePhase, Recipe, zoo
from covey.cli import recipes
from covey.cli.main import main
from covey.cli.planned import from_recipe, planned_runs
from covey.errors import OptionError, StoreError

FILES = sorted(p.stem for p in recipes.folder().glob("paper[12]-*.toml"))


def test_the_late_phase_preset_is_paper_two():
    late = LatePhase().late()
    assert late.method == covey.Replicate(members=10, where=("norms", "head"), gamma=1.0)
    assert (late.start, late.noise, late.nested, late.collapse) == (0.6, 0.0, True, True)
    first, second = LatePhase().phases(Recipe(epochs=200))
    assert (first.end, second.plan, second.step) == (120, "independent", "plain")


def test_the_economical_preset_is_paper_one():
    late = Economical().late()
    assert (late.start, late.noise, late.restart, late.nested, late.collapse) == (
        0.6,
        0.25,
        "head",
        True,
        False,
    )
    assert (late.method.members, late.method.norms, late.method.sizes) == (10, "member", (10, 7, 14))
    other = Economical(norms="shared", noise=0.5, nested=False).late()
    assert other.phases(Recipe(epochs=200))[1].step == "drawn"


@pytest.mark.parametrize("kind", ["copies", "rank-one", "embeddings"])
def test_every_kind_of_late_phase_weights_trains_and_collapses(kind):
    data = covey.data.load("digits")
    network = zoo.create("convnet", classes=10, channels=1, image_size=8)
    recipe = Recipe(epochs=2, batch=64, lr=0.05, run="loop")
    machine = covey.Machine(accelerator="cpu", progress=False)
    method = LatePhase(members=2, kind=kind, start=1, noise=0.1)
    found = covey.fit(network, data, recipe, method=method, machine=machine).ensemble
    plain = found.member(0)
    assert found.members == 1
    assert {n: t.shape for n, t in plain.state_dict().items()} == {
        n: t.shape for n, t in network.state_dict().items()
    }
    with torch.no_grad():
        answers = plain.eval()(data.prepare(data.test.inputs)).argmax(1)
    assert (answers == data.test.targets).float().mean() > 0.6


def test_an_unknown_kind():
    with pytest.raises(OptionError, match="one of 'copies', 'rank-one', 'embeddings'"):
        LatePhase(kind="bias").late()


def test_each_has_a_page():
    pages = {page.stem for page in (Path(__file__).parents[2] / "docs" / "methods").glob("*.md")}
    assert set(covey.TRAININGS) <= pages


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("name", FILES)
def test_recipes_plan_runs_that_can_begin(name, scale):
    file = recipes.read(name)
    if "command" in file.about:
        return
    flags, base = from_recipe(file, scale)
    tasks = planned_runs(base, flags)
    assert tasks
    for task in tasks:
        if isinstance(task.settings.options, covey.Training):
            assert task.settings.options.phases(task.settings.recipe)


def test_the_convnet_row_of_table_3_is_the_papers():
    settings = recipes.read("paper2-table3-convnet").at("full")
    first, second = settings.options.phases(settings.recipe)
    assert (first.end, settings.recipe.epochs, settings.options.noise, settings.options.where) == (
        50,
        200,
        0.5,
        ("norms",),
    )
    rate = settings.recipe.schedule
    for epoch, lr in ((0, 0.1), (100, 0.1), (130, 0.0505), (160, 0.001), (199, 0.001)):
        assert rate.at(epoch, lr=settings.recipe.lr, epochs=200) == pytest.approx(lr)
    assert second.plan == "independent"


def test_train_late_phase_from_the_command_line(tmp_path, capsys):
    folder = tmp_path / "run"
    words = ["train", "late-phase", "--network", "convnet", "--data", "digits", "--members", "3"]
    assert main([*words, "--epochs", "2", "--folder", str(folder), "--start", "1"]) == 0
    size = sum(p.numel() for p in zoo.create("convnet", classes=10, channels=1, image_size=8).parameters())
    assert f"1 member, {size:,} parameters" in capsys.readouterr().out
    rows = (folder / "history.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows] == ["phase", "0", "1"]
    words += ["--epochs", "1", "--start", "0", "--weights", str(folder)]
    assert main([*words, "--folder", str(tmp_path / "more")]) == 0


def test_weights_from_a_file(tmp_path, capsys):
    from covey.cli.settings import Network

    data = covey.data.load("digits")
    trained = zoo.create("convnet", classes=10, channels=1, image_size=8)
    save_file(trained.state_dict(), tmp_path / "network.safetensors")
    stored, recipe = str(tmp_path / "network.safetensors"), covey.Recipe(seed=5)
    made = Network(network="convnet", weights=stored).build(data, recipe)
    torch.testing.assert_close(made.state_dict(), trained.state_dict())
    with pytest.raises(OptionError, match=r"a .safetensors file or the folder of a run"):
        Network(network="convnet", weights="network.pt").build(data, recipe)
    for wrong in (stored, str(tmp_path / "none.safetensors")):
        with pytest.raises(StoreError, match="weights cannot be read"):
            Network(network="mlp", weights=wrong).build(data, recipe)


def test_table_6_in_small(tmp_path):
    """An LSTM on text with rank-one factors on the recurrent matrix, Adam, noise and SWA, in its three rows."""
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 120)
    data = covey.data.load(str(text), length=20)
    network = zoo.create("lstm", classes=256, hidden=12, embedding=10)
    file = recipes.read("paper2-table6")
    options, settings = file.settings.options, file.settings.recipe.scaled(0.1)
    late = replace(options, members=3)
    machine = covey.Machine(accelerator="cpu", progress=False)
    for way in (None, replace(late, members=1, noise=0.0), late):
        recipe = replace(settings, batch=16, lr=0.02)
        history = covey.fit(network, data, recipe, method=way, machine=machine)
        assert history.rows[-1]["bits"] < history.rows[0]["bits"] < 8
        assert history.ensemble.members == 1
        assert {n: t.shape for n, t in history.ensemble.member(0).state_dict().items()} == {
            n: t.shape for n, t in network.state_dict().items()
        }
