"""Ensembles on a device that is not the CPU: everything is made there, and the answers are those from here."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from device import DEVICE, MODULE, Elsewhere, WrongDeviceError
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import covey
from covey.scores import fit_conformal, fit_temperature
from covey.ways import WAYS
from law_networks import NETWORKS, call, network
from test_laws import IMPOSSIBLE, METHODS, M, apart, ensemble_of

# An LSTM on an accelerator is a kernel of the accelerator's, which no other device has.
CASES = [(m, n) for m in METHODS for n in ("convnet", "vit", "tied") if (m, n) not in IMPOSSIBLE]


@pytest.fixture(autouse=True)
def _on():
    with Elsewhere():
        yield


def moved(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.to(DEVICE) if isinstance(leaf, Tensor) else leaf, value)


def same(there: Tensor, here: Tensor) -> None:
    """The device has the CPU's numbers, but for the order in which attention adds them up."""
    assert there.device == DEVICE
    torch.testing.assert_close(there.cpu(), here, rtol=1e-12, atol=1e-12)


def all_there(module: nn.Module) -> bool:
    tensors = [*module.parameters(), *module.buffers()]
    return all(tensor.device == DEVICE for tensor in tensors)


def twins(method: str, name: str) -> tuple[covey.Ensemble, covey.Ensemble]:
    """An ensemble here, and its copy on the device."""
    here = ensemble_of(method, name)
    there = copy.deepcopy(here).to(DEVICE)
    assert all_there(there)
    return here, there


def labels(outputs: Tensor) -> Tensor:
    """Class numbers that fit outputs (M, B, ..., C)."""
    return torch.arange(outputs[0, ..., 0].numel()).view(outputs.shape[1:-1]) % outputs.shape[-1]


@pytest.mark.parametrize("run", ["loop", "batched"])
@pytest.mark.parametrize(("method", "name"), CASES)
def test_members_run_and_learn_where_they_are(method: str, name: str, run: str) -> None:
    here, there = twins(method, name)
    here.run = there.run = run
    x = NETWORKS[name].x(4)
    for mode in (False, True):
        for given, per_member in ((x, False), (apart(x), True)):
            torch.manual_seed(0)
            expected = call(here.train(mode), given, per_member=per_member)
            torch.manual_seed(0)
            same(call(there.train(mode), moved(given), per_member=per_member), expected)
    y = labels(expected)
    torch.manual_seed(0)
    here.loss(x, y).backward()
    torch.manual_seed(0)
    there.loss(moved(x), moved(y)).backward()
    for ours, theirs in zip(here.parameters(), there.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            same(theirs.grad, ours.grad)
    for ours, theirs in zip(here.buffers(), there.buffers(), strict=True):
        same(theirs, ours)


@pytest.mark.parametrize(("method", "name"), [case for case in CASES if case[1] in ("convnet", "tied")])
def test_members_answer_and_are_taken_out_where_they_are(method: str, name: str) -> None:
    here, there = twins(method, name)
    here.run = there.run = "loop"
    x = NETWORKS[name].x(40)
    torch.manual_seed(0)
    raw = here.eval().predict(x)
    y = labels(raw.logits).flatten()
    flat = raw.logits.flatten(1, -2)
    for ensemble in (here, there):
        ensemble.temperature = fit_temperature(flat, y, kind="members")
        ensemble.conformal = fit_conformal(raw.probs.flatten(0, -2), y)
    torch.manual_seed(0)
    expected = here.predict(x)
    torch.manual_seed(0)
    found = there.eval().predict(moved(x))
    for part in ("probs", "entropy", "mutual_information", "label"):
        same(getattr(found, part), getattr(expected, part))
    assert found.sets.device == DEVICE
    assert torch.equal(found.sets.cpu(), there.conformal.sets(found.probs.cpu()))
    member = there.member(1)
    assert all_there(member)
    same(member.eval()(moved(x)), here.member(1).eval()(x))
    assert there.alike == here.alike
    assert str(there.coverage) == str(here.coverage)
    if here.method.collapses:
        same(there.collapse().eval()(moved(x)), here.collapse().eval()(x))


@pytest.mark.parametrize(("method", "name"), [case for case in CASES if case[1] == "vit"])
def test_conversion_on_the_device_leaves_both_random_states_alone(
    method: str, name: str, tmp_path: Path
) -> None:
    law = NETWORKS[name]
    options = (
        covey.MCDropout(members=M, p=0.3, after=(law.drop,)) if method == "mc-dropout" else METHODS[method]
    )
    net, x = network(name).to(DEVICE), moved(law.x(4))
    states = torch.get_rng_state(), MODULE.get_rng_state()
    ensemble = covey.convert(net, options, example=x, output=law.output)
    assert all_there(ensemble)
    assert torch.equal(states[0], torch.get_rng_state())
    assert torch.equal(states[1], MODULE.get_rng_state())
    again = covey.convert(net, options, example=x, output=law.output)
    for first, second in zip(ensemble.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(first, second)
    covey.save(ensemble, tmp_path)
    loaded = covey.load(tmp_path, network=network(name)).to(DEVICE)
    for key, value in ensemble.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[key])


def test_both_runs_are_timed_until_the_device_is_done() -> None:
    _, there = twins("batch-ensemble", "mlp")
    x = moved(NETWORKS["mlp"].x(4))
    states = torch.get_rng_state(), MODULE.get_rng_state()
    before = MODULE.waits
    there.train()(x)
    assert there.run in WAYS
    assert MODULE.waits >= before + 3
    assert torch.equal(states[0], torch.get_rng_state())
    assert torch.equal(states[1], MODULE.get_rng_state())


def test_the_device_refuses_what_an_accelerator_refuses() -> None:
    there = moved(torch.ones(3))
    with pytest.raises(WrongDeviceError, match=r"aten.add.Tensor: \(3,\) on elsewhere:0, \(3,\) on cpu"):
        there + torch.ones(3)
    with pytest.raises(WrongDeviceError):
        torch.ones(3)[there > 0]
    with pytest.raises(WrongDeviceError):
        torch.ones(()).add_(there.sum())
    with pytest.raises(WrongDeviceError):
        torch.stack([there.sum(), torch.ones(())])
    with pytest.raises(WrongDeviceError, match="generator"):
        torch.randn(3, device=DEVICE, generator=torch.Generator())
    with pytest.raises(TypeError, match="convert"):
        there.numpy()
    assert (there + torch.ones(())).tolist() == [2.0, 2.0, 2.0]
    assert there[torch.tensor([0, 2])].tolist() == [1.0, 1.0]
    torch.manual_seed(0)
    here = torch.randn(2)
    assert torch.equal(torch.randn(2, device=DEVICE).cpu(), here)  # a stream of its own, with the same seed
