"""Template methods that make a layer's weights when it runs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import covey

METHODS = {
    "hypernetwork": covey.Hypernetwork(members=3, linear=True, budget=6.0),
    "mixture": covey.Mixture(members=3, linear=True, singles="bank", budget=6.0),
    "superweights": covey.SuperWeights(members=3, linear=True, budget=6.0),
    "shapeshifter": covey.ShapeShifter(members=3, linear=True, budget=6.0),
}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=2),
        nn.Flatten(), nn.Linear(8 * 9, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5),
    ).double()  # fmt: skip


def images(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, 8, 8, generator=generator).double(), torch.arange(count) % 5


def both(name: str) -> tuple[covey.Ensemble, covey.Ensemble]:
    x, _ = images()
    usual = covey.convert(network(), METHODS[name], example=x)
    saving = covey.convert(network(), replace(METHODS[name], recompute=True), example=x)
    saving.load_state_dict(usual.state_dict())
    return usual, saving


@pytest.mark.parametrize("name", METHODS)
def test_the_same_numbers(name: str) -> None:
    x, y = images()
    found = []
    for ens in both(name):
        ens.run = "loop"
        ens.train()
        loss = ens.loss(x, y)
        loss.backward()
        found.append((loss.detach(), [p.grad for p in ens.parameters()], ens.eval()(x).detach()))
    (one, grads, answer), (other, others, again) = found
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(answer, again, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(grads, others, strict=True):
        assert ours is not None
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_second_derivatives() -> None:
    x, y = images()
    found = []
    for ens in both("mixture"):
        ens.run = "loop"
        parameters = [p for p in ens.eval().parameters() if p.requires_grad]
        grads = torch.autograd.grad(ens.loss(x, y), parameters, create_graph=True)
        sum(g.square().sum() for g in grads).backward()
        found.append([p.grad.clone() for p in parameters])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


def kept(ens: covey.Ensemble, x: Tensor) -> int:
    """Bytes that a step keeps for the backward pass besides parameters."""
    own = {p.untyped_storage().data_ptr() for p in ens.parameters()}
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = ens(x)
    assert outputs.requires_grad
    return sum(seen.values())


def test_weights_are_not_kept() -> None:
    net = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
    x = torch.randn(2, 128)
    weights = 4 * sum(p.numel() for p in net.parameters())
    sizes = []
    for recompute in (False, True):
        method = covey.Mixture(members=4, linear=True, singles="bank", budget=3.0, recompute=recompute)
        ens = covey.convert(net, method, example=x).train()
        ens.run = "loop"
        sizes.append(kept(ens, x))
    assert sizes[0] > 2.5 * weights
    assert sizes[1] < 0.3 * weights


def test_auto_runs_members_in_a_loop_and_a_batched_run_works() -> None:
    x, y = images()
    _, saving = both("hypernetwork")
    saving.train()
    saving.loss(x, y)
    assert saving.run.startswith("loop")
    assert "made" not in saving.run
    saving.run = "batched"
    batched = saving.loss(x, y)
    saving.run = "loop"
    torch.testing.assert_close(batched, saving.loss(x, y), rtol=1e-9, atol=1e-9)


def test_attention_and_bfloat16() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    net = nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(48, 5)
    )
    x, y = torch.randn(4, 3, 16), torch.arange(4)
    ens = covey.convert(net, covey.Mixture(members=2, budget=4.0, recompute=True), example=x).train()
    ens.run = "loop"
    plain = ens.loss(x, y).detach()
    with torch.autocast("cpu", torch.bfloat16):
        low = ens.loss(x, y)
        low.backward()
    assert abs(float(plain - low.detach())) < 0.05 * abs(float(plain))
    assert all(p.grad is not None and p.grad.isfinite().all() for p in ens.parameters() if p.requires_grad)


def gradients(ens: covey.Ensemble) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in ens.parameters()]


@pytest.mark.parametrize("name", ["mixture", "shapeshifter"])
def test_the_sum_of_gradients_belongs_to_one_backward_pass(name: str) -> None:
    x, y = images()
    _, ens = both(name)
    ens.run = "loop"
    ens.train()
    ens.loss(x, y).backward()
    expected = gradients(ens)

    ens.zero_grad()
    loss = ens.loss(x, y)
    coefficients = [p for n, p in ens.named_parameters() if n.endswith("alpha")]
    torch.autograd.grad(loss, coefficients, retain_graph=True)  # which asks nothing of the templates
    loss.backward(retain_graph=True)
    torch.testing.assert_close(gradients(ens), expected)
    loss.backward()
    torch.testing.assert_close(gradients(ens), [2 * g for g in expected])

    ens.zero_grad()
    for k in range(3):
        ens.losses(x, y, members=[k]).sum().backward()
    torch.testing.assert_close(gradients(ens), expected)

    ens.zero_grad()
    failing = ens(x).sum()
    first = next(p for n, p in ens.named_parameters() if n.endswith("theta"))
    handle = first.register_hook(_fail)
    with pytest.raises(ZeroDivisionError):
        failing.backward()
    handle.remove()
    ens.zero_grad()
    ens.loss(x, y).backward()
    torch.testing.assert_close(gradients(ens), expected)


def _fail(_: Tensor) -> Tensor:
    raise ZeroDivisionError


def test_a_copy_and_another_precision_have_sums_of_their_own() -> None:
    x, y = images()
    _, ens = both("mixture")
    ens.run = "loop"
    ens.train()
    ens.loss(x, y).backward()
    twin = copy.deepcopy(ens)
    twin.zero_grad()
    twin.loss(x, y).backward()
    torch.testing.assert_close(gradients(twin), gradients(ens))
    single = ens.float()
    single.zero_grad()
    single.loss(x.float(), y).backward()
    for ours, theirs in zip(gradients(single), gradients(twin), strict=True):
        assert ours is not None
        assert theirs is not None
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-2, atol=1e-4)


def parameters_of(ens: covey.Ensemble) -> dict[str, Tensor]:
    return {name: p.detach().clone().requires_grad_() for name, p in ens.named_parameters()}


@pytest.mark.parametrize("name", ["mixture", "shapeshifter"])
def test_weights_are_made_again_of_the_tensors_of_the_forward_pass(name: str) -> None:
    """functional_call puts other tensors in the ensemble for the forward pass alone, as MAML does."""
    x, _ = images()
    found = []
    for ens in both(name):
        ens.run = "loop"
        ens.eval()
        given = parameters_of(ens)
        scaled = {key: 1.5 * tensor for key, tensor in given.items()}
        outputs = torch.func.functional_call(ens, scaled, (x,))
        found.append(torch.autograd.grad(outputs.square().mean(), list(given.values())))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


def test_templates_that_change_before_the_backward_pass_are_refused() -> None:
    x, y = images()
    _, ens = both("shapeshifter")
    ens.run = "loop"
    templates = [p for n, p in ens.train().named_parameters() if n.endswith("theta")]
    for theta in templates:
        theta.requires_grad_(False)
    loss = ens.loss(x, y)
    with torch.no_grad():
        templates[-1].mul_(1.1)
    with pytest.raises(covey.errors.TrainingError, match=r"changed since the forward pass.*recompute=False"):
        loss.backward()


def of_torch_func(ens: covey.Ensemble, x: Tensor) -> list[Tensor]:
    def objective(given: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(ens, given, (x,)).square().mean()

    return list(torch.func.grad(objective)(dict(ens.named_parameters())).values())


def of_several_gradients_at_once(ens: covey.Ensemble, x: Tensor) -> list[Tensor]:
    outputs = ens(x).mean(1).flatten()
    each = torch.eye(len(outputs), dtype=outputs.dtype)
    return list(torch.autograd.grad(outputs, list(ens.parameters()), each, is_grads_batched=True))


def of_forward_mode(ens: covey.Ensemble, x: Tensor) -> list[Tensor]:
    with torch.autograd.forward_ad.dual_level():
        inputs = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        return [torch.autograd.forward_ad.unpack_dual(ens(inputs)).tangent]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, in forward mode
@pytest.mark.parametrize("derive", [of_torch_func, of_several_gradients_at_once, of_forward_mode])
@pytest.mark.parametrize("name", ["mixture", "shapeshifter"])
def test_other_ways_to_derivatives(
    name: str, derive: Callable[[covey.Ensemble, Tensor], list[Tensor]]
) -> None:
    x, _ = images()
    found = []
    for ens in both(name):
        ens.run = "loop"
        found.append(derive(ens.eval(), x))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


def test_another_threads_forward_pass_leaves_a_backward_pass_alone() -> None:
    x, y = images()
    _, ens = both("mixture")
    ens.run = "loop"
    ens.train()
    ens.loss(x, y).backward()
    expected = gradients(ens)
    ens.zero_grad()

    def run_elsewhere(gradient: Tensor) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ens, x).result()

    coefficients = [p for n, p in ens.named_parameters() if n.endswith("alpha")]
    for alpha in coefficients:
        alpha.register_hook(run_elsewhere)
    ens.loss(x, y).backward()
    torch.testing.assert_close(gradients(ens), expected)


@pytest.mark.parametrize("name", METHODS)
def test_data_replaced_before_the_backward_pass_changes_nothing(name: str) -> None:
    x, y = images()
    found = []
    for ens in both(name):
        ens.run = "loop"
        loss = ens.train().loss(x, y)
        for parameter in ens.parameters():
            parameter.data = 1.5 * parameter.data
        loss.backward()
        found.append([parameter.grad for parameter in ens.parameters()])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_data_replaced_before_a_backward_pass_with_a_gradient_is_refused() -> None:
    x, y = images()
    _, saving = both("mixture")
    saving.run = "loop"
    loss = saving.train().loss(x, y)
    parameters = list(saving.parameters())
    for parameter in parameters:
        parameter.data = 1.5 * parameter.data
    with pytest.raises(covey.errors.TrainingError, match=r"was replaced.*before the parameters change"):
        torch.autograd.grad(loss, parameters, create_graph=True)
