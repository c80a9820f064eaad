"""Activation checkpointing as timm and transformers switch it on: the same gradients, of every member."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from catalogue import every, importable
from torch import Tensor, nn
from torch.utils import checkpoint as checkpointing

import covey
from covey.networks.calls import arguments

SWITCHES = {
    "timm vit_tiny_patch16_224": "set_grad_checkpointing",
    "timm resnet18": "set_grad_checkpointing",
    "transformers BertForSequenceClassification": "gradient_checkpointing_enable",
}


def _gradients(name: str, method: covey.Method, switch: str | None) -> dict[str, Tensor]:
    """The gradients of one training step, without dropout."""
    network = every()[name]
    net, example = network.make(), network.example()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if switch is not None:
        getattr(net, switch)()
    ensemble = covey.convert(net, method, example=example, output=network.output, check=False).train()
    ensemble.run = "loop"
    args, kwargs = arguments(example)
    ensemble(*args, **kwargs).square().sum().backward()
    return {label: p.grad for label, p in ensemble.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "method",
    [covey.BatchEnsemble(members=2), covey.DeepEnsemble(members=2)],
    ids=lambda method: type(method).__name__,
)
@pytest.mark.parametrize("name", SWITCHES)
def test_gradients_are_those_without_it(
    name: str, method: covey.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = name.split()[0]
    if not importable(package):
        pytest.skip(f"{package} cannot be imported here")
    recomputed = []
    frames = checkpointing._checkpoint_without_reentrant_generator

    def counted(*args: Any, **kwargs: Any) -> Any:
        recomputed.append(1)
        return frames(*args, **kwargs)

    monkeypatch.setattr(checkpointing, "_checkpoint_without_reentrant_generator", counted)
    expected = _gradients(name, method, None)
    assert not recomputed
    found = _gradients(name, method, SWITCHES[name])
    assert recomputed, "nothing was checkpointed"
    assert found.keys() == expected.keys()
    for label, gradient in expected.items():
        torch.testing.assert_close(found[label], gradient)
