"""A run once more: replaced by another, gone on with, and made longer."""

import json
import re
import warnings

import pytest

from covey.cli.main import main

WORDS = ("train", "single", "--network", "mlp", "--network-option", "hidden=[4]", "--no-progress")
FEW = ("--samples", "40", "--batch", "16", "--epochs", "1", "--folder", "run")


@pytest.fixture
def covey(tmp_path, monkeypatch, capsys):
    """Runs a command in an empty folder; returns its exit code, what it printed and its complaints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # a command replaces it

    def run(*words):
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def trained(covey, tmp_path):
    """The folder of a run that is done."""
    assert covey(*WORDS, *FEW)[0] == 0
    return tmp_path / "run"


def listed(folder):
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name != ".lock"
    }


def test_a_run_is_replaced_only_if_asked(covey, trained):
    before = json.loads((trained / "settings.json").read_text())["recipe"]["seed"]
    code, _, err = covey(*WORDS, *FEW, "--seed", 7)
    assert (code, before) == (2, 0)
    assert "--overwrite" in err
    assert covey("evaluate", "run", "--limit", 20)[0] == 0  # a report, figures, evaluations
    code, out, _ = covey(*WORDS, *FEW, "--seed", 7, "--overwrite", "--no-evaluate")
    assert code == 0
    assert "1 epoch is done" in out
    assert json.loads((trained / "settings.json").read_text())["recipe"]["seed"] == 7
    assert not (trained / "evaluation.json").exists()  # the old run's
    assert not (trained / "evaluations").exists()
    assert not (trained / ".replaced").exists()


@pytest.mark.parametrize("kind", ["file", "folder", "link inside", "link"])
def test_what_covey_did_not_write_is_never_overwritten(covey, trained, tmp_path, kind):
    elsewhere = tmp_path / "mine"
    elsewhere.mkdir()
    (elsewhere / "thesis.tex").write_text("years of work")
    target = "run"
    if kind == "file":
        (trained / "notes.txt").write_text("keep")
    elif kind == "folder":
        (trained / "pictures").mkdir()
    elif kind == "link inside":
        (trained / "figures").symlink_to(elsewhere)
    else:
        (tmp_path / "alias").symlink_to(trained)
        target = "alias"
    before = listed(trained)
    code, _, err = covey(*WORDS, *FEW[:-1], target, "--overwrite")
    assert code == 2
    assert {
        "file": "notes.txt",
        "folder": "pictures",
        "link inside": "figures (a link)",
        "link": "is a link",
    }[kind] in err
    assert listed(trained) == before
    assert (elsewhere / "thesis.tex").read_text() == "years of work"


def test_a_run_comes_back_if_the_next_does_not_begin(covey, trained, monkeypatch):
    before = listed(trained)
    assert covey(*WORDS, *FEW, "--overwrite", "--data", "no-such-data")[0] == 2

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("covey.train.checkpoint.check_space", full)
    assert covey(*WORDS, *FEW, "--overwrite")[0] == 2
    assert listed(trained) == before


def test_overwrite_and_resume_exclude_each_other(covey, trained):
    code, _, err = covey(*WORDS, *FEW, "--overwrite", "--resume")
    assert code == 2
    assert "choose one" in err


def test_a_run_goes_on_without_its_flags(covey, tmp_path, monkeypatch):
    own = ("batch-ensemble", "--members", 3, "--lr", 0.2, "--run", "loop")
    command = ("train", *own, *WORDS[2:], *FEW[:-3], 4, "--folder")
    assert covey(*command, "whole")[0] == 0
    stop = iter([None, None, KeyboardInterrupt])

    def after_epoch(*_):
        kind = next(stop, None)
        if kind:
            raise kind

    monkeypatch.setattr("covey.train.history.write", after_epoch)
    code, _, err = covey(*command, "run")
    assert code == 130
    assert "covey: stopped; `covey train --resume run` goes on from the last checkpoint" in err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    for words in (("evaluate", "run"), ("predict", "run", "x.npy"), ("export", "run"), ("bench", "run")):
        code, _, err = covey(*words)
        assert code == 2
        assert "run is not finished: `covey train --resume run` goes on with it." in err
    code, _, err = covey("train", "--resume", "run", "--lr", 0.3)
    assert code == 2
    assert "lr was 0.2 and is 0.3" in err
    code, out, err = covey("train", "--resume", "run")
    assert code == 0, err
    assert "resumed from" in err
    assert re.search(r"all 4 epochs are done, 3 members, [\d,]+ parameters, run as loop\n", out)
    names = [next((tmp_path / run / "ensemble").glob("tensors-*")).name for run in ("run", "whole")]
    assert names[0] == names[1]  # a name comes from the content


def test_resume_says_what_it_needs(covey, trained):
    for words, told in (
        (("--resume",), "covey train --resume FOLDER"),
        (("--resume", "nowhere"), "there is no such folder"),
        (("--resume", "run", "--folder", "other"), "two folders"),
        ((), "--resume FOLDER"),
    ):
        code, _, err = covey("train", *words)
        assert code == 2
        assert told in err


def test_a_network_of_ones_own_is_named_again(covey, tmp_path):
    (tmp_path / "net.py").write_text("from torch import nn\n\ndef make(features, outputs):\n"
                                     "    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))\n")  # fmt: skip
    network = ("--network", "net.py:make")
    assert covey("train", "single", *network, *FEW, "--no-progress")[0] == 0
    code, _, err = covey("train", "--resume", "run")
    assert code == 2
    assert "only run if you name it: --network" in err
    assert covey("train", "--resume", "run", *network)[0] == 0


def test_a_finished_run_gets_more_epochs(covey, trained):
    first = json.loads((trained / "settings.json").read_text())["seconds"]
    code, out, err = covey("train", "--resume", "run", "--epochs", 3)
    assert code == 0, err
    assert "all 3 epochs are done" in out
    assert "the learning rate goes from 0 to 0.0375 and falls from there" in err  # 0.05 (1 + cos(pi / 3)) / 2
    found = json.loads((trained / "settings.json").read_text())
    assert found["recipe"]["epochs"] == 3
    assert found["seconds"] >= first
    assert len((trained / "history.jsonl").read_text().splitlines()) == 3
    assert (trained / "evaluation.json").exists()
    assert covey("train", "--resume", "run", "--no-evaluate")[0] == 0  # which changes nothing
    assert (trained / "evaluation.json").exists()
    assert covey("train", "--resume", "run", "--epochs", 4, "--no-evaluate")[0] == 0
    assert not (trained / "evaluation.json").exists()  # those were scores of another ensemble
    found = json.loads((trained / "settings.json").read_text())
    code, _, err = covey("train", "--resume", "run", "--epochs", 2)
    assert code == 2
    assert "epochs was 4 and is 2" in err
    assert json.loads((trained / "settings.json").read_text()) == found  # as it was before that was refused


def test_phased_training_does_not_get_longer(covey):
    words = ("train", "economical", "--members", 2, *WORDS[2:], *FEW[:-3], 4, "--folder", "run")
    assert covey(*words)[0] == 0
    code, _, err = covey("train", "--resume", "run", "--epochs", 6)
    assert code == 2
    assert "a run of 4 epochs, which cannot go on to 6: it goes through phases" in err


def test_a_comparison_makes_no_run_longer(covey):
    words = (
        "compare",
        "--methods",
        "single",
        "--samples",
        40,
        "--folder",
        "runs",
        "--no-progress",
        *WORDS[2:6],
    )
    assert covey(*words, "--epochs", 1)[0] == 0
    code, out, err = covey(*words, "--epochs", 2)
    assert code != 0
    assert "epochs was 1 and is 2" in out + err
