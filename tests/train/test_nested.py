"""Nested steps against Algorithm 1 written out with separate leaf tensors and separate optimisers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import covey
from covey.errors import OptionError, TrainingError
from covey.train.nested import Rows, drawn_step, nested_step

K = 3
OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, weight_decay=1e-2),
    "nesterov": lambda groups: torch.optim.SGD(groups, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda groups: torch.optim.Adam(groups, weight_decay=1e-2),
    "adamw": lambda groups: torch.optim.AdamW(groups, weight_decay=1e-2),
}
LR = {"sgd": 0.1, "nesterov": 0.1, "adam": 0.01, "adamw": 0.01}


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False),  # before BatchNorm its gradient is only rounding, which Adam blows up
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3, bias=False),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(5, 3),
    ).double()


def minibatches(step, sizes=(6, 6, 6)):
    draw = torch.Generator().manual_seed(step)
    return [
        (
            torch.randn(size, 2, 6, 6, generator=draw, dtype=torch.float64),
            torch.randint(3, (size,), generator=draw),
        )
        for size in sizes
    ]


def make(gamma=1.0, where=("norms", "head"), noise=0.1):
    method = covey.Replicate(members=K, where=where, gamma=gamma, noise=noise)
    return covey.convert(network(), method, example=torch.zeros(2, 2, 6, 6, dtype=torch.float64)).train()


def groups(ensemble, lr):
    found = ensemble.param_groups(lr=lr, weight_decay=1e-2)
    return [{"params": group["params"], "lr": group["lr"]} for group in found]


class AlgorithmOne:
    """Members as plain tensors: phi_k stepped at once by optimisers of their own, theta once in K minibatches."""

    def __init__(self, ensemble, kind, gamma):
        own = {name for part in ensemble.parts.values() if part.varies for name in part.names}
        members = [ensemble.member(k) for k in range(K)]
        self.nets, self.gamma = members, gamma
        first = dict(members[0].named_parameters())
        self.theta = {name: nn.Parameter(t.detach().clone()) for name, t in first.items() if name not in own}
        self.phi = [
            {name: nn.Parameter(t.detach().clone()) for name, t in net.named_parameters() if name in own}
            for net in members
        ]
        self.buffers = [{name: b.clone() for name, b in net.named_buffers()} for net in members]
        lr = LR[kind]
        self.u_theta = OPTIMIZERS[kind]([{"params": list(self.theta.values()), "lr": lr}])
        self.u_phi = [OPTIMIZERS[kind]([{"params": list(phi.values()), "lr": lr}]) for phi in self.phi]

    def step(self, batches, members=range(K)):
        total = {name: torch.zeros_like(t) for name, t in self.theta.items()}
        for k, (x, y) in zip(members, batches, strict=True):
            self.u_theta.zero_grad()
            self.u_phi[k].zero_grad()
            tensors = {**self.theta, **self.phi[k], **self.buffers[k]}
            F.cross_entropy(functional_call(self.nets[k].train(), tensors, (x,)), y).backward()
            self.buffers[k] = {name: tensors[name] for name in self.buffers[k]}
            for name, tensor in self.theta.items():
                total[name] += tensor.grad
            self.u_phi[k].step()
        for name, tensor in self.theta.items():
            tensor.grad = self.gamma * total[name]
        self.u_theta.step()

    def assert_same(self, ensemble, tolerance=1e-12):
        for k in range(K):
            plain = ensemble.member(k)
            for name, tensor in {**self.theta, **self.phi[k], **self.buffers[k]}.items():
                theirs = (
                    plain.get_parameter(name) if isinstance(tensor, nn.Parameter) else plain.get_buffer(name)
                )
                torch.testing.assert_close(
                    theirs, tensor, rtol=0, atol=tolerance, msg=f"{name} of member {k}"
                )


@pytest.mark.parametrize("chunk", [None, 1, 2])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("run", ["loop", "batched"])
def test_one_step_is_algorithm_one(kind, chunk, run):
    gamma = 1.0 if chunk is None else 1 / K
    ensemble = make(gamma)
    ensemble.run = run
    reference = AlgorithmOne(ensemble, kind, gamma)
    optimizer = OPTIMIZERS[kind](groups(ensemble, LR[kind]))
    for step in range(3):
        losses = nested_step(ensemble, optimizer, minibatches(step), chunk=chunk)
        reference.step(minibatches(step))
    assert losses.shape == (K,)
    assert not torch.equal(*(ensemble.member(k)[-1].weight for k in (0, 1)))
    reference.assert_same(ensemble)


def test_minibatches_of_different_sizes():
    ensemble = make()
    reference = AlgorithmOne(ensemble, "nesterov", 1.0)
    optimizer = OPTIMIZERS["nesterov"](groups(ensemble, 0.1))
    for step in range(2):
        nested_step(ensemble, optimizer, minibatches(step, (6, 2, 6)))
        reference.step(minibatches(step, (6, 2, 6)))
    reference.assert_same(ensemble)


def test_shared_statistics_do_not_depend_on_the_chunk():
    """Norms before the first member tensor are shared; their statistics are the members' mean in every form."""
    found = []
    for chunk in (None, 1, 2):
        ensemble = make(where="head")
        nested_step(ensemble, torch.optim.SGD(groups(ensemble, 0.1)), minibatches(0), chunk=chunk)
        found.append({name: t.clone() for name, t in ensemble.state.named_buffers()})
    assert any("running_mean" in name and t.abs().sum() > 0 for name, t in found[0].items())
    # what the mean should be: each member starts from the network's own statistics
    expected = []
    for x, _ in minibatches(0):
        net = network().train()
        net(x)
        expected.append(net[1].running_mean)
    for other in found:
        torch.testing.assert_close(other["0.shared.1/running_mean"], torch.stack(expected).mean(0))
        for name, tensor in other.items():
            torch.testing.assert_close(tensor, found[0][name], rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_drawn_member_leaves_the_others_alone(kind):
    ensemble = make()
    reference = AlgorithmOne(ensemble, kind, 1.0)
    rows = Rows(ensemble)
    optimizer = OPTIMIZERS[kind](
        [{"params": group["params"], "lr": group["lr"]} for group in rows.param_groups(LR[kind])]
    )
    for step, k in enumerate([1, 1, 0, 1, 2, 0]):
        others = [j for j in range(K) if j != k]
        before = [ensemble.member(j)[-1].weight.clone() for j in others]
        drawn_step(ensemble, optimizer, rows, k, minibatches(step)[0])
        for j, weight in zip(others, before, strict=True):
            assert torch.equal(ensemble.member(j)[-1].weight, weight)
        reference.step(minibatches(step)[:1], members=[k])
    reference.assert_same(ensemble)


def test_rows_are_the_ensembles_own_memory():
    ensemble = make()
    rows = Rows(ensemble)
    found = [row for group in rows.param_groups(0.1) if group["members"] for row in group["params"]]
    assert sum(row.numel() for row in found) == sum(
        p.numel() for group in ensemble.param_groups(0.1) if group["members"] for p in group["params"]
    )
    with torch.no_grad():
        for row in found:
            row.fill_(7.0)
    assert all((ensemble.member(k)[-1].weight == 7).all() for k in range(K))


def test_wrong_number_of_minibatches():
    ensemble = make()
    with pytest.raises(OptionError, match="one minibatch for each of 3 members; got 2"):
        nested_step(ensemble, torch.optim.SGD(groups(ensemble, 0.1)), minibatches(0)[:2])


def test_rows_of_replaced_tensors():
    ensemble = make()
    rows = Rows(ensemble)
    optimizer = torch.optim.SGD(rows.param_groups(0.1))
    ensemble.float()
    x, y = minibatches(0)[0]
    with pytest.raises(TrainingError, match="replaced"):
        drawn_step(ensemble, optimizer, rows, 0, (x.float(), y))


def test_deepcopy_keeps_training_alike():
    ensemble = make()
    ensemble.run = "loop"  # measured on its own, each might choose another
    twin = copy.deepcopy(ensemble)
    for each in (ensemble, twin):
        nested_step(each, torch.optim.SGD(groups(each, 0.1)), minibatches(0))
    torch.testing.assert_close(ensemble.state_dict(), twin.state_dict(), rtol=0, atol=0)
