"""A spread of the sweep: what works today on other people's networks goes on working.

`COVEY_SWEEP=all` runs every method on every network.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sweep
import torch
import verdicts
from catalogue import Network, every, importable
from checks import Case
from page import written
from sweep import stored
from torch import Tensor, nn
from verdicts import Verdict, judge, methods, why_meaningless

import covey

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
TABLE = {(verdict.network, verdict.method): verdict for verdict in stored(PAGE.with_suffix(".json"))}
# each network with the methods that have been hard on its kind
SPREAD: dict[str, tuple[str, ...]] = {
    "siamese": ("deep-ensemble", "packed"),
    "inputs by keyword": ("batch-ensemble", "packed"),
    "buffers updated by hand": ("multi-head", "masksembles"),
    "tied weights": ("batch-ensemble", "mimo"),
    "spectral norm": ("replicate",),
    "activation checkpointing": ("batch-ensemble", "mc-dropout"),
    "stored activation": ("multi-head", "mimo"),
    "cache in eval mode": ("replicate",),
    "changes its input in place": ("deep-ensemble",),
    "embedding with max norm": ("multi-head",),
    "squeeze and excite": ("norm-ensemble", "packed"),
    "video": ("masksembles",),
    "recurrent over convolutions": ("batch-ensemble", "packed"),
    "encoder with padding": ("norm-ensemble", "packed"),
    "graph by edges": ("replicate",),
    "graphs by adjacency": ("deep-ensemble",),
    "batch in one dict": ("batch-ensemble",),
    "autocast inside": ("batch-ensemble", "mimo"),
    "streaming by buffer": ("deep-ensemble",),
    "tensors as attributes": ("packed",),
    "hooks that replace": ("mimo",),
    "norms that stay frozen": ("multi-head",),
    "torchvision resnet18": ("hypernetwork", "superweights"),
    "torchvision squeezenet": ("batch-ensemble", "mc-dropout"),
    "timm resnext50_32x4d": ("mimo", "shapeshifter"),
    "timm convnext_atto": ("masksembles", "packed"),
    "transformers DistilBertForSequenceClassification": ("norm-ensemble",),
    "transformers GPT2LMHeadModel": ("batch-ensemble",),
}
CASES = [(network, method) for network, chosen in SPREAD.items() for method in chosen]
if os.environ.get("COVEY_SWEEP") == "all":
    CASES = [(network, method) for network in every() for method in methods()]


@pytest.mark.parametrize(("name", "method"), CASES)
def test_what_works_goes_on_working(name: str, method: str) -> None:
    package = name.split()[0]
    if package in ("timm", "torchvision", "transformers") and not importable(package):
        pytest.skip(f"{package} cannot be imported here")
    found = judge(every()[name], method)
    before = TABLE.get((name, method))
    if before is not None and before.verdict == "ok":
        assert found.verdict == "ok", found.reason
    assert found.verdict in ("ok", "no pack", "refused"), found.reason


def test_the_table_has_the_spread() -> None:
    """Every case of the spread is in the table, and none has a fault there."""
    for network, chosen in SPREAD.items():
        for method in chosen:
            assert TABLE[network, method].verdict in ("ok", "no pack", "refused"), (network, method)


def test_the_page_shows_the_table() -> None:
    """A row of the page, written anew from the table, is the row that stands there."""
    table = [verdict for verdict in TABLE.values() if verdict.network == "mlp"]
    fresh = written(table, every())
    row = next(line for line in fresh.splitlines() if line.startswith("| mlp "))
    assert row in PAGE.read_text()


def test_a_member_that_answers_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    converted = verdicts.converted

    def with_other_members(network: Network, method: str) -> tuple[Case, float]:
        case, seconds = converted(network, method)
        member = case.ensemble.member

        def shifted(k: int) -> nn.Module:
            plain = member(k)
            with torch.no_grad():
                plain[-1].bias.add_(1e-3)
            return plain

        case.ensemble.member = shifted
        return case, seconds

    monkeypatch.setattr(verdicts, "converted", with_other_members)
    found = judge(every()["mlp"], "replicate")
    assert found.verdict == "wrong"
    assert "member 0" in found.reason


def test_a_parameter_without_a_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = covey.Ensemble.loss

    def of_the_first(ensemble: covey.Ensemble, inputs: Any, targets: Tensor) -> Tensor:
        return loss(ensemble, inputs, targets) * 0 + ensemble(inputs, members=[0]).square().mean()

    monkeypatch.setattr(covey.Ensemble, "loss", of_the_first)
    found = judge(every()["mlp"], "deep-ensemble")
    assert found.verdict == "wrong"
    assert "member 1 gets no gradient" in found.reason


def test_a_conversion_that_moves_the_random_state_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    convert = covey.convert

    def and_draws(*args: Any, **kwargs: Any) -> covey.Ensemble:
        torch.rand(1)
        return convert(*args, **kwargs)

    monkeypatch.setattr(covey, "convert", and_draws)
    assert "random state" in judge(every()["mlp"], "replicate").reason


def test_a_method_that_means_nothing_is_told_from_one_that_is_refused() -> None:
    assert why_meaningless(every()["mlp"]).keys() == {"norm-ensemble", "mc-dropout"}
    assert why_meaningless(every()["mlp with norms and dropout"]) == {}
    assert "mimo" in why_meaningless(every()["logistic regression"])


@pytest.mark.slow
def test_the_command_stores_what_it_finds(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    words = ["--only", "^mlp$", "--methods", "replicate", "norm-ensemble", "--json", str(table)]
    # a process of its own, because it forks and torch's gradients do not survive that
    command = [sys.executable, str(Path(sweep.__file__)), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stderr
    assert [verdict.verdict for verdict in stored(table)] == ["ok", "refused"]
    assert "1 ok, 1 refused" in done.stdout
    again = subprocess.run([*command, "--missing"], capture_output=True, text=True, timeout=170, check=False)
    assert "nothing to run" in again.stdout, "a case that the table has was run again"


def test_the_page_says_which_state_was_run() -> None:
    cases = [Verdict("mlp", "replicate", "ok", commit="abc1234", day="2026-01-02")]
    cases.append(Verdict("mlp", "packed", "ok"))
    page = written(cases, every())
    assert "| 2026-01-02 | abc1234 | 1 |" in page
    assert "| not recorded | not recorded | 1 |" in page
