"""Folders that covey.fit wrote, opened by the commands."""

import csv
import io
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import covey as library
from covey.cli.main import main
from covey.train import Machine, Recipe, fit
from covey.zoo import MLP, names

QUIET = Machine(accelerator="cpu", progress=False)
SHORT = Recipe(epochs=2, batch=16, run="loop")
NETWORK = """
from torch import nn

def make(outputs):
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, outputs))
"""


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
def fitted(tmp_path):
    """A run in `run`, its ensemble, and its data in `held.npz`."""
    torch.manual_seed(0)
    inputs = torch.randn(60, 3)
    y = (inputs.sum(1) > 0).long()
    (tmp_path / "net.py").write_text(NETWORK)
    np.savez(tmp_path / "held.npz", x=inputs[:20].numpy(), y=y[:20].numpy())
    network = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    method = library.BatchEnsemble(members=3)
    history = fit(network, (inputs, y), SHORT, method=method, folder=tmp_path / "run", machine=QUIET)
    return history.ensemble, inputs, y


def test_a_network_of_ones_own_is_shown_scored_and_asked(covey, fitted):
    ensemble, inputs, y = fitted
    code, _, err = covey("show", "run")
    assert code == 2
    assert "name the function that makes it, --network FILE.py:FUNCTION" in err
    own = ("--network", "net.py:make")
    code, out, err = covey("show", "run", *own)
    assert code == 0, err
    assert "batch-ensemble members=3" in out
    assert "all 2 epochs are done" in out

    code, out, err = covey("predict", "run", "held.npz", *own)
    assert code == 0, err
    rows = list(csv.DictReader(io.StringIO(out)))
    expected = ensemble.predict(inputs[:20])
    assert [float(row["p(1)"]) for row in rows] == pytest.approx(expected.probs[:, 1].tolist(), abs=1e-6)

    code, _, err = covey("evaluate", "run", *own)
    assert code == 2
    assert "where its test data are is not known" in err
    code, out, err = covey("evaluate", "run", *own, "--data", "held.npz")
    assert code == 0, err
    accuracy = (expected.label == y[:20]).double().mean()
    assert f"accuracy       {accuracy:.4f}" in out


def test_what_cannot_be_known_is_refused(covey, fitted, tmp_path):
    own = ("--network", "net.py:make")
    (tmp_path / "new.csv").write_text("a,b,c\n1,2,3\n")
    np.save(tmp_path / "wide.npy", np.zeros((4, 5), np.float32))
    np.save(tmp_path / "whole.npy", np.zeros((4, 3), np.uint8))
    np.savez(tmp_path / "odd.npz", x=np.zeros((2, 3), np.float32), y=np.array([0, 7]))
    for words, told in (
        (("predict", "run", "new.csv"), "were made into them is not known"),
        (("predict", "run", "wide.npy"), "inputs of shape 5; the network was trained on 3"),
        (("predict", "run", "whole.npy"), "type uint8; the network was trained on float32"),
        (("evaluate", "run", "--data", "odd.npz"), "y has the class 7; the network knows 0 to 1"),
        (("evaluate", "run", "--data", "wide.npy"), "expected an .npz file with inputs x and answers y"),
    ):
        code, _, err = covey(*words, *own)
        assert code == 2, words
        assert told in err
    code, _, err = covey("train", "--resume", "run")
    assert code == 2
    assert "covey.fit(..., resume=True)" in err


def test_a_network_of_the_zoo_and_known_data_need_nothing_more(covey, tmp_path):
    data = library.data.load("iris")
    network = names.build("mlp", shape=(4,), outputs=3, options={"hidden": [6]})
    fit(network, data, SHORT, method=library.DeepEnsemble(members=2), folder=tmp_path / "run", machine=QUIET)
    code, out, err = covey("show", "run")
    assert code == 0, err
    assert "network   mlp" in out
    header = ",".join(column["name"] for column in data.record["columns"])
    (tmp_path / "new.csv").write_text(f"{header}\n5.1,3.5,1.4,0.2\n")
    code, out, err = covey("predict", "run", "new.csv")
    assert code == 0, err
    assert out.count("\n") == 2


def test_numbers_of_several_outputs_are_all_written(covey, tmp_path):
    inputs = torch.randn(40, 3)
    fit(
        names.build("mlp", shape=(3,), outputs=4, options={"hidden": [4]}),
        (inputs, inputs[:, :2] * 2),
        SHORT,
        folder=tmp_path / "run",
        machine=QUIET,
    )
    np.save(tmp_path / "x.npy", inputs[:2].numpy())
    code, out, err = covey("predict", "run", "x.npy")
    assert code == 0, err
    assert "prediction[0]" in out
    assert "prediction[1]" in out


def test_a_run_that_was_stopped_is_shown(covey, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("covey.train.engine.save_ensemble", stop)
    with pytest.raises(KeyboardInterrupt):
        fit(MLP(features=3, hidden=(4,), classes=2), (torch.randn(40, 3), torch.arange(40) % 2), SHORT,
            folder=tmp_path / "run", machine=QUIET)  # fmt: skip
    code, out, err = covey("show", "run")
    assert code == 0, err
    assert "not finished: covey.fit(..., resume=True) goes on" in out
