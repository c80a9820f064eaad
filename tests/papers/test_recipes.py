"""What the recipes must have in common with the papers' text; that each can be planned is in tests/cli."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.cli import recipes
from covey.cli.planned import PlannedRun, from_recipe, planned_runs
from covey.methods.hypernetwork import Hypernetwork
from covey.methods.superweights import SuperWeights
from covey.trainings import FGE, Economical, LatePhase, Snapshot

FILES = sorted(path.stem for path in recipes.folder().glob("*.toml"))


def tasks(name: str, scale: str = "full") -> list[PlannedRun]:
    """All runs of a recipe; none where a command stands for it."""
    file = recipes.read(name)
    if "command" in file.about:
        return []
    flags, base = from_recipe(file, scale)
    return planned_runs(base, flags)


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("paper2")])
def test_late_phase_weights_decay_k_times_on_cifar_100_with_sgd_only(name: str) -> None:
    """Paper 2, appendix A: 0.0005 K on CIFAR-100 (SGD). A control without members owns nothing that decays."""
    for task in tasks(name):
        options = task.settings.options
        if not isinstance(options, LatePhase) or options.where == () or options.kind == "rank-one":
            continue
        sgd = task.settings.recipe.average is None
        wanted = options.members if task.settings.dataset.data == "cifar100" and sgd else 1
        assert options.decay == wanted, task.label


def test_table_8_has_the_base_network_for_one_member() -> None:
    labels = {task.settings.method: task for task in tasks("paper2-table8")}
    assert set(labels) == {"single", "late-phase"}
    found = {t.settings.options.members for t in tasks("paper2-table8") if t.settings.method == "late-phase"}
    assert found == {5, 10, 15, 20}


@pytest.mark.parametrize("name", FILES)
def test_no_drop_of_the_learning_rate_falls_on_the_end_or_beyond(name: str) -> None:
    """After refinement the schedule starts again, with the epochs that are left."""
    for task in tasks(name):
        recipe, options = task.settings.recipe, task.settings.options
        before = options.refine_at or 0 if isinstance(options, SuperWeights) else 0
        if recipe.schedule.kind == "multistep":
            assert max(recipe.schedule.milestones) < recipe.epochs - before, task.label


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "fashion-mnist"])
def test_paper_1_table_1_has_its_baselines(data: str) -> None:
    options = [task.settings for task in tasks(f"paper1-table1-{data}")]
    snapshots = [s for s in options if isinstance(s.options, Snapshot)]
    assert {(s.options.members, s.options.start, s.options.cycles) for s in snapshots} == {(10, 164, False)}
    assert {s.recipe.average for s in snapshots} == {0.8}  # of averaged SGD
    geometric = [s for s in options if isinstance(s.options, FGE)]
    assert {s.options.result(s.recipe).members for s in geometric} == (set() if "mnist" in data else {12})
    assert {s.recipe.average for s in geometric} <= {None}


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("paper1")])
def test_out_of_distribution_settings_have_one_set_of_norms_and_no_nesting(name: str) -> None:
    for task in tasks(name):
        options = task.settings.options
        if isinstance(options, Economical) and task.settings.dataset.ood and "s8" not in name:
            assert (options.norms, options.nested) == ("single", False), task.label
            assert options.noise == 0.5 or "table-s3" in name


def test_the_controls_of_paper_1_are_hypernetworks() -> None:
    for name, norms in (("paper1-table-s12-cifar10", "member"), ("paper1-table-s13-cifar100", "single")):
        control = tasks(name)[0].settings.options
        assert isinstance(control, Economical)
        method = control.late().method
        assert isinstance(method, Hypernetwork)
        assert (method.embeddings, method.norms) == ("shared", norms)


def test_members_are_as_many_as_the_tables_print() -> None:
    mimo = {name: [t for t in tasks(name) if t.settings.method == "mimo"] for name in FILES}
    assert {t.settings.options.members for t in mimo["paper4-table5"]} == {3}
    assert {t.settings.options.members for t in mimo["paper5-table10"]} == {4}


def test_table_7_of_paper_5_gives_members_their_own_order() -> None:
    found = {(t.settings.options.init, t.settings.recipe.plan) for t in tasks("paper5-table7-resnet-18")}
    assert found == {(init, order) for init in ("same", "fresh") for order in ("same", "shuffled")}


def test_a_folder_of_runs_does_not_hide_the_recipe_it_is_named_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "promise-fashion-mnist").mkdir()
    monkeypatch.chdir(tmp_path)
    assert recipes.find("promise-fashion-mnist") == recipes.folder() / "promise-fashion-mnist.toml"
