"""covey.compare: methods and seeds on a network and data of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.errors import DataError, OptionError

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
DATA = {"train": (X[:40], Y[:40]), "test": (X[40:], Y[40:])}
QUIET = covey.Machine(accelerator="cpu", progress=False)
RECIPE = covey.Recipe(epochs=1, batch=16, run="loop")


def make() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def compared(methods: Any, network: Any = make, data: Any = DATA, **options: Any) -> Any:
    return covey.compare(network, methods, data, RECIPE, machine=QUIET, **options)


@pytest.mark.slow
def test_runs_are_what_fit_and_evaluate_give(tmp_path: Path) -> None:
    found = compared(
        {"one": None, "two": covey.DeepEnsemble(members=2)}, seeds=(0, 1), folder=tmp_path / "runs"
    )
    torch.manual_seed(1)
    network = make()
    recipe = covey.Recipe(epochs=1, batch=16, run="loop", seed=1)
    alone = covey.fit(network, DATA, recipe, method=covey.DeepEnsemble(members=2), machine=QUIET).ensemble
    expected = covey.evaluate(alone, covey.data.adapt(DATA))
    (run,) = [run for run in found.runs if (run.method, run.seed) == ("two", 1)]
    assert run.evaluation.scores == expected.scores
    nlls = [run.evaluation.headline["nll"] for run in found.runs if run.method == "two"]
    assert found["two"]["nll"] == pytest.approx(sum(nlls) / 2)
    assert nlls[0] != nlls[1]
    assert "20 test samples" in str(found)
    assert "two" in str(found)
    again = compared(
        {"one": None, "two": covey.DeepEnsemble(members=2)}, seeds=(0, 1), folder=tmp_path / "runs"
    )
    assert again["two"]["nll"] == found["two"]["nll"]
    assert found.report(tmp_path / "report").name == "report.html"
    with pytest.raises(KeyError, match="'three' was not compared; there are one, two"):
        found["three"]


def test_what_cannot_be_compared() -> None:
    with pytest.raises(DataError, match="compared on test data"):
        compared(["single"], data=(X, Y))
    with pytest.raises(OptionError, match="two methods are called 'BatchEnsemble'"):
        compared([covey.BatchEnsemble(members=2), covey.BatchEnsemble(members=4)])
    with pytest.raises(OptionError, match="at least one method"):
        compared([])
    with pytest.raises(OptionError, match=r"seeds is a list of them, such as range\(2\); got 2"):
        compared(["single"], seeds=2)
    with pytest.raises(OptionError, match="list of names or methods"):
        compared("single")
    with pytest.raises(OptionError, match=r"network\(\) is to return a torch.nn.Module; got int"):
        compared(["single"], network=lambda: 3)
    with pytest.raises(OptionError, match="baseline is one of 'single'"):
        compared(["single"], baseline="deep")
