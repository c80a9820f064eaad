"""Everything that should hold of an ensemble of one network, one function each."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from catalogue import Network
from comparing import (
    TOLERANCE,
    WrongError,
    another,
    copied,
    equal_states,
    loop_tolerance,
    random_states,
    repeated,
    same,
    same_tensor,
    seed,
    seeded,
    tensors,
    tolerance,
)
from packed_size import expected_size
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import covey
from covey.errors import CoveyError
from covey.networks.calls import arguments, pick
from covey.tensors import key

RANDOM = {"mc-dropout"}
"""Methods whose members are random draws: two calls differ by design."""

PACKED_TOLERANCE = 0.1  # of the parameters at widths that are not rounded


class PackRefusedError(Exception):
    """pack() says why it cannot be done."""


@dataclass
class Case:
    """An ensemble and what it is compared with."""

    network: Network
    method: str
    given: nn.Module  # the network that was converted
    twin: nn.Module  # an equal one that nobody touched
    example: Any
    again: Any  # another batch
    ensemble: Any
    states: tuple[Any, Any]  # of the random generators, before and after the conversion

    @property
    def random(self) -> bool:
        """Whether members are random draws."""
        return self.method in RANDOM

    def answer(self, net: nn.Module, inputs: Any) -> Tensor:
        """What a plain network answers."""
        args, kwargs = arguments(copied(inputs))
        return pick(net(*args, **kwargs), self.network.output)

    def outputs(self, inputs: Any, ensemble: Any = None, **options: Any) -> Tensor:
        """What the ensemble answers, (M, B, ...)."""
        args, kwargs = arguments(copied(inputs))
        return (ensemble or self.ensemble)(*args, **kwargs, **options)

    def targets(self) -> Tensor:
        """A class for every answer of the network."""
        axis = self.class_axis()
        shape = list(self.answer(self.twin.eval(), self.example).shape)
        classes = shape.pop(axis)
        return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(3))

    def class_axis(self) -> int:
        """The axis of the network's answer on which classes are."""
        dimensions = self.answer(self.twin.eval(), self.example).ndim
        known = self.ensemble.class_dim
        if known is None:
            return 1 if dimensions > 3 else dimensions - 1
        return known % dimensions


def converted(network: Network, method: str) -> tuple[Case, float]:
    given, example = network.make(), network.example()
    options = covey.METHODS[method]()
    seed(5)
    before = random_states()
    start = time.perf_counter()
    ensemble = covey.convert(given, options, example=example, output=network.output)
    seconds = time.perf_counter() - start
    states = before, random_states()
    twin = network.make()
    return Case(network, method, given, twin, example, another(example), ensemble, states), seconds


def coverage(case: Case) -> None:
    """The table names every tensor and adds up."""
    table = case.ensemble.coverage
    count = sum(parameter.numel() for parameter in case.ensemble.parameters())
    if table.total != count:
        raise WrongError(f"the table counts {table.total} parameters, the ensemble has {count}")
    missing = dict(case.twin.named_parameters()).keys() - {row.name for row in table.rows}
    if missing:
        raise WrongError(f"the table lacks {sorted(missing)[0]!r}")


def nothing_else_changed(case: Case) -> None:
    """convert() left the network, the example and the random state alone."""
    if not equal_states(*case.states):
        raise WrongError("the global random state moved")
    for name, tensor in tensors(case.twin).items():
        if not same_tensor(tensor, tensors(case.given).get(name)):
            raise WrongError(f"{name!r} of the network is another")
    modes = [module.training for module in case.given.modules()]
    if modes != [module.training for module in case.twin.modules()]:
        raise WrongError("modules of the network are in another mode")
    expected = tree_leaves(case.network.example())
    for leaf, was in zip(tree_leaves(case.example), expected, strict=True):
        if isinstance(leaf, Tensor) and not same_tensor(leaf, was):
            raise WrongError("the example was changed")
    expected = seeded(case.answer, case.network.make().eval(), case.example)
    same(seeded(case.answer, case.given.eval(), case.example), expected)


def members_in_eval_mode(case: Case) -> None:
    """Each member answers as its plain network does, however members are run."""
    case.ensemble.eval()
    if case.random:
        _draws(case)
        return
    plain = {k: case.ensemble.member(k).eval() for k in (0, case.ensemble.members - 1)}
    case.ensemble.run = "loop"
    outputs = case.outputs(case.example)
    for k, member in plain.items():
        same(
            outputs[k],
            case.answer(member, case.example),
            loop_tolerance(case.network),
            f"member {k} in a loop",
        )
    if case.ensemble.method.keeps_weights:
        expected = case.answer(case.twin.eval(), case.example)
        same(outputs[0], expected, tolerance(case.network), "the weights are not kept, outputs")
    run, outputs = _batched(case, case.again)
    for k, member in plain.items():
        same(outputs[k], case.answer(member, case.again), tolerance(case.network), f"member {k}, {run}")


def _batched(case: Case, inputs: Any) -> tuple[str, Tensor]:
    """The batched run, or what "auto" does about a network that cannot be vectorised."""
    case.ensemble.run = "batched"
    try:
        return "batched", case.outputs(inputs)
    except Exception:
        case.ensemble.run = "auto"
        return "auto", case.outputs(inputs)


def _draws(case: Case) -> None:
    outputs = case.outputs(case.example)
    if all(torch.equal(outputs[0], other) for other in outputs[1:]):
        raise WrongError("all draws are equal")
    plain = case.answer(case.ensemble.member(0).eval(), case.example)
    same(plain, case.answer(case.twin.eval(), case.example), TOLERANCE, "the plain network")


def members_in_train_mode(case: Case) -> None:
    """One member alone trains as its plain network does, and leaves the others alone."""
    ensemble = copy.deepcopy(case.ensemble)
    ensemble.run = "loop"
    other_before = None
    if not case.random:
        # of a copy, since some networks move buffers in eval mode too
        other_before = case.outputs(case.example, copy.deepcopy(ensemble).eval(), members=[1])
    shared = {name: t.clone() for store in ensemble.state for name, t in store.shared.items()}
    own = [{name: t.clone() for name, t in store.own.items()} for store in ensemble.state]
    plain = ensemble.member(0).train()
    ensemble.train()
    outputs = seeded(case.outputs, case.example, ensemble, members=[0])
    expected = seeded(case.answer, plain, case.example)
    same(outputs[0], expected, loop_tolerance(case.network), "member 0")
    after = dict(ensemble.member(0).named_buffers())
    for name, tensor in plain.named_buffers():
        if not same_tensor(tensor, after.get(name), TOLERANCE):
            raise WrongError(f"the buffer {name!r} of member 0 is another than its plain network's")
    for store, rows in zip(ensemble.state, own, strict=True):
        for name, tensor in store.own.items():
            if not same_tensor(tensor[1], rows[name][1]):
                raise WrongError(f"member 0 changed the buffer {name!r} of member 1")
    moved = any(not torch.equal(t, shared[n]) for store in ensemble.state for n, t in store.shared.items())
    if other_before is not None and not moved:
        other = case.outputs(case.example, ensemble.eval(), members=[1])
        same(other, other_before, TOLERANCE, "member 1 after member 0 ran")


def training_step(case: Case) -> None:
    """A step trains all that the plain network trains."""
    targets = case.targets()
    used = _parameters_with_gradient(case, targets)
    ensemble = case.ensemble.train()
    loss = _trained(case, targets)
    if not torch.isfinite(loss):
        raise WrongError(f"the loss is {loss.item()}")
    unused = {key(name) for name, _ in case.twin.named_parameters() if name not in used}
    for name, parameter in ensemble.named_parameters():
        exempt = any(label in name for label in unused)
        if parameter.requires_grad and parameter.grad is None and not exempt:
            raise WrongError(f"{name!r} gets no gradient")
    _check_rows(case)
    optimizer = torch.optim.SGD(ensemble.param_groups(1e-3))
    optimizer.step()
    ensemble.zero_grad()


def _trained(case: Case, targets: Tensor) -> Tensor:
    """The loss after its backward pass, in a batched run where the network can be vectorised, else as "auto" does."""
    for run in ("batched", "auto"):
        case.ensemble.run = run
        case.ensemble.zero_grad()
        seed(7)
        try:
            loss = case.ensemble.loss(copied(case.example), targets)
            loss.backward()
        except Exception:
            if run == "auto":
                raise
        else:
            break
    return loss


def _parameters_with_gradient(case: Case, targets: Tensor) -> set[str]:
    plain = case.network.make().train()
    answer = seeded(case.answer, plain, case.example)
    F.cross_entropy(answer.movedim(case.class_axis(), 1), targets).backward()
    return {name for name, parameter in plain.named_parameters() if parameter.grad is not None}


def _check_rows(case: Case) -> None:
    """Every member's own tensors move."""
    moved = [False] * case.ensemble.members
    own = [p for group in case.ensemble.param_groups(1.0) if group["members"] for p in group["params"]]
    stacked = [p for p in own if p.grad is not None and p.ndim and len(p) == case.ensemble.members]
    for parameter in stacked:
        for k in range(case.ensemble.members):
            moved[k] |= bool(parameter.grad[k].any())
    if stacked and not all(moved):
        raise WrongError(f"member {moved.index(False)} gets no gradient")


def after_the_step(case: Case) -> None:
    """Members are still plain networks, and copies and stored states answer the same."""
    ensemble = case.ensemble.eval()
    ensemble.run = "loop"
    # before the call, which in some networks moves buffers in eval mode too
    plain = {k: ensemble.member(k).eval() for k in (0, ensemble.members - 1)}
    twin, state = copy.deepcopy(ensemble), copy.deepcopy(ensemble.state_dict())
    outputs = seeded(case.outputs, case.again)
    if not torch.isfinite(outputs).all():
        raise WrongError("outputs are not finite after one step")
    if not case.random:
        for k, network in plain.items():
            same(outputs[k], case.answer(network, case.again), loop_tolerance(case.network), f"member {k}")
        if _differ(ensemble.tensors(0), ensemble.tensors(1)) and torch.equal(outputs[0], outputs[1]):
            raise WrongError("members that have other tensors answer the same")
    with torch.no_grad():
        for own, parameter in zip(ensemble.parameters(), twin.parameters(), strict=True):
            before = own.clone()
            parameter.add_(1)
            if not torch.equal(own, before):
                raise WrongError("a deep copy shares memory with the ensemble")
    twin.load_state_dict(state)
    same(seeded(case.outputs, case.again, twin), outputs, TOLERANCE, "a deep copy with the state loaded")


def _differ(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether tensors differ by more than another order of operations explains."""
    return any(not same_tensor(tensor, b[name], TOLERANCE) for name, tensor in a.items())


def joint_pass(case: Case) -> None:
    """MIMO with the same input M times answers as its members do."""
    if case.method != "mimo":
        return
    ensemble = case.ensemble.eval()
    ensemble.run = "loop"
    expected = case.outputs(case.example)
    inputs = tree_map(lambda leaf: repeated(leaf, ensemble.members), case.example)
    same(case.outputs(inputs, per_member=True), expected, tolerance(case.network))


def packed_size(case: Case) -> None:
    """A packed member has alpha / M of every hidden width."""
    if case.method != "packed":
        return
    method = case.ensemble.method
    member = case.ensemble.member(0)
    count = sum(parameter.numel() for parameter in member.parameters())
    expected = expected_size(case.network, member, method.alpha / method.members)
    if abs(count / expected - 1) > PACKED_TOLERANCE:
        raise WrongError(
            f"a member has {count} parameters, {count / expected:.2f} of the {expected:.0f} expected"
        )


def packed_as_one(case: Case) -> None:
    """pack() answers as the ensemble does, and runs in train mode."""
    if case.method != "packed":
        return
    ensemble = case.ensemble.eval()
    ensemble.run = "loop"
    args, kwargs = arguments(copied(case.example))
    try:
        one = ensemble.pack(*args, **kwargs)
    except CoveyError as error:
        raise PackRefusedError(f"pack(): {error}") from error
    for inputs in (case.example, case.again):
        args, kwargs = arguments(copied(inputs))
        same(one.eval()(*args, **kwargs), case.outputs(inputs), tolerance(case.network))
    args, kwargs = arguments(copied(case.example))
    one.train()(*args, **kwargs).sum().backward()


CHECKS: tuple[Callable[[Case], None], ...] = (
    coverage,
    nothing_else_changed,
    members_in_eval_mode,
    members_in_train_mode,
    joint_pass,
    packed_size,
    packed_as_one,
    training_step,
    after_the_step,
)
