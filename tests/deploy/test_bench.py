"""Every form of an ensemble is timed in one run, or it is said why it cannot be."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.deploy import benching
from covey.deploy.benching import Bench, Row, bench, in_turns
from covey.deploy.tracing import Example
from covey.errors import OptionError


class Two(nn.Module):
    """Takes two tensors by name."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 8), nn.Linear(3, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head((self.left(a) + self.right(b)).relu())


class Choosing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            x = -x
        return self.fc(x)


@pytest.mark.slow
def test_every_form_of_a_network_with_several_inputs() -> None:
    torch.manual_seed(0)
    network = Two()
    inputs = {"a": torch.randn(5, 4), "b": torch.randn(5, 3)}
    ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example=inputs)
    found = bench(ensemble, network, inputs, batches=(1, 7), repeats=1, int8=inputs, int8_limit=1.0)
    assert [(row.form, row.batch) for row in found.rows] == [
        (form, batch) for batch in (1, 7) for form in ("network", "eager", "fused", "onnx", "int8")
    ]
    assert found.missing == {}
    weights = {row.form: row.weight_bytes for row in found.rows}
    assert weights["network"] == 4 * sum(p.numel() for p in network.parameters())
    assert weights["eager"] == 2 * weights["network"]
    for row in found.rows:
        assert row.throughput == pytest.approx(row.batch / row.seconds)
        assert (row.form == "network") <= (row.ratio == 1.0)
        if row.peak_bytes is not None:
            assert row.peak_bytes > row.weight_bytes
    assert ensemble.training, "left in the mode it was in"
    assert json.loads(json.dumps(found.to_dict()))["best"] == found.best


def test_forms_that_are_not_possible_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 4)
    network = Choosing()
    ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example=x, check=False)

    def broken(*_: Any, **__: Any) -> Any:
        raise AssertionError("never called: there is nothing to compile")

    monkeypatch.setattr(torch, "compile", broken)
    found = bench(ensemble, network, x, batches=(2,), repeats=1, compiled=True)
    assert [row.form for row in found.rows] == ["network", "eager"]
    assert "cannot be traced at" in found.missing["fused"]
    assert "calibration inputs" in found.missing["int8"]
    assert set(found.missing) == {"fused", "onnx", "int8", "compiled"}
    assert found.best == "eager"
    assert "onnx is not possible: the network cannot be traced" in str(found)


def test_a_compiler_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(module: nn.Module) -> Any:
        def call(*_: Any) -> Any:
            raise RuntimeError("no C++ compiler found")

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    x = torch.randn(4, 4)
    network = nn.Sequential(nn.Linear(4, 3))
    ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example=x)
    with pytest.raises(OptionError, match="torch.compile failed: RuntimeError: no C"):
        benching._compiled(ensemble, Example.of(network, x))


def test_the_best_is_fastest_over_all_batches_and_never_the_network() -> None:
    times = {"network": (1.0, 1.0), "eager": (4.0, 4.0), "fused": (0.5, 6.0), "onnx": (1.5, 1.5)}
    rows = []
    for place, batch in enumerate((1, 32)):
        for form, ratios in times.items():
            rows.append(Row(form, batch, ratios[place] / 1000, ratios[place], 1.0, 10, None))
    found = Bench(tuple(rows), {}, 2, 7, False)
    assert found.best == "onnx"
    told = str(found)
    assert (
        "Best here: onnx, which takes 1.50 and 1.50 of the single network's time at batch 1 and 32." in told
    )
    assert "takes 1 and 1 ms at batch 1 and 32" in told
    assert "2 threads, without VNNI" in told


def test_turns_tell_slow_from_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benching, "_REST", 0.0)
    seconds = in_turns({"slow": lambda: time.sleep(0.02), "quick": lambda: None}, repeats=2)
    assert seconds["slow"] >= 0.02
    assert seconds["quick"] < 0.01


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batches": ()}, "no batch size"),
        ({"batches": (0,)}, "batches is a whole number"),
        ({"repeats": 0}, "repeats"),
    ],
)
def test_mistakes_are_told(options: dict[str, Any], said: str) -> None:
    network = nn.Linear(4, 3)
    ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example=torch.randn(2, 4))
    with pytest.raises(covey.CoveyError, match=said):
        bench(ensemble, network, torch.randn(2, 4), **options)
