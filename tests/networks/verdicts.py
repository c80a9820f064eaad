"""One method on one network: everything that should hold of the ensemble is tried, and what came of it is told.

judge(every()["unet"], "packed").verdict        # "ok", "refused", "wrong", "raises", ...
"""

from __future__ import annotations

import copy
import functools
import random
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from catalogue import BATCH, Network
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import covey
from covey import run as runs
from covey.errors import ConversionError, CoveyError, OptionError
from covey.networks.anatomy import examine
from covey.networks.calls import arguments, pick
from covey.tensors import key

VERDICTS = {
    "ok": "everything that was tried holds",
    "refused": "convert() says why it cannot be done",
    "no pack": "the ensemble works; pack() says why it cannot be done",
    "wrong": "something does not hold",
    "raises": "an error that covey did not mean to raise",
    "slow": "not done within the time limit",
}
RANDOM = {"mc-dropout"}
"""Methods whose members are random draws: two calls differ by design."""

TOLERANCE = 1e-6  # of the outputs' scale, in float64
LOW_TOLERANCE = 2e-4  # where the network computes in float32
PACKED_TOLERANCE = 0.1  # of the parameters at widths that are not rounded


@dataclass(frozen=True)
class Verdict:
    """What came of one method on one network.

    Args:
        network: its name.
        method: its name.
        verdict: one of VERDICTS.
        reason: what was said, or what does not hold.
        meaningless: why the method can mean nothing for this network, if it cannot.
        convert_seconds: how long convert() took.
        seconds: how long everything took.
    """

    network: str
    method: str
    verdict: str
    reason: str = ""
    meaningless: str = ""
    convert_seconds: float = 0.0
    seconds: float = 0.0


class WrongError(Exception):
    """Something does not hold."""


def methods() -> list[str]:
    """The methods of the sweep: all that take one network."""
    return [name for name, kind in covey.METHODS.items() if kind.several_networks != "must"]


def judge(network: Network, method: str) -> Verdict:
    """Convert the network with the method's default options and try everything."""
    start = time.perf_counter()
    told = functools.partial(Verdict, network.name, method)
    meaningless = ""
    with _quiet(), _quick_choice():
        try:
            meaningless = why_meaningless(network).get(method, "")
            case, seconds = _converted(network, method)
        except (ConversionError, OptionError) as error:
            return told("refused", _one_line(error), meaningless, seconds=time.perf_counter() - start)
        except Exception as error:
            reason = f"convert(): {_described(error)}"
            return told("raises", reason, meaningless, seconds=time.perf_counter() - start)
        verdict, reason = _tried(case)
    return told(verdict, reason, "", round(seconds, 3), round(time.perf_counter() - start, 3))


def _tried(case: Case) -> tuple[str, str]:
    """The worst that any check says, and what all of them say."""
    found: list[tuple[str, str]] = []
    for check in CHECKS:
        label = check.__name__.replace("_", " ")
        try:
            check(case)
        except WrongError as problem:
            found.append(("wrong", f"{label}: {problem}"))
        except PackRefusedError as problem:
            found.append(("no pack", _one_line(problem)))
        except Exception as error:
            found.append(("raises", f"{label}: {_described(error)}"))
    if not found:
        return "ok", ""
    worst = max(found, key=lambda each: list(VERDICTS).index(each[0]))[0]
    return worst, "; ".join(reason for _, reason in found)


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
        args, kwargs = arguments(_copied(inputs))
        return pick(net(*args, **kwargs), self.network.output)

    def outputs(self, inputs: Any, ensemble: Any = None, **options: Any) -> Tensor:
        """What the ensemble answers, (M, B, ...)."""
        args, kwargs = arguments(_copied(inputs))
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


def _converted(network: Network, method: str) -> tuple[Case, float]:
    given, example = network.make(), network.example()
    options = covey.METHODS[method]()
    _seed(5)
    before = _random_states()
    start = time.perf_counter()
    ensemble = covey.convert(given, options, example=example, output=network.output)
    seconds = time.perf_counter() - start
    states = before, _random_states()
    twin = network.make()
    return Case(network, method, given, twin, example, _another(example), ensemble, states), seconds


# --- what is tried ----------------------------------------------------------------------------------------


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
    if not _equal_states(*case.states):
        raise WrongError("the global random state moved")
    for name, tensor in _tensors(case.twin).items():
        if not _same_tensor(tensor, _tensors(case.given).get(name)):
            raise WrongError(f"{name!r} of the network is another")
    modes = [module.training for module in case.given.modules()]
    if modes != [module.training for module in case.twin.modules()]:
        raise WrongError("modules of the network are in another mode")
    expected = tree_leaves(case.network.example())
    for leaf, was in zip(tree_leaves(case.example), expected, strict=True):
        if isinstance(leaf, Tensor) and not _same_tensor(leaf, was):
            raise WrongError("the example was changed")
    expected = _seeded(case.answer, case.network.make().eval(), case.example)
    _same(_seeded(case.answer, case.given.eval(), case.example), expected)


def members_in_eval_mode(case: Case) -> None:
    """Each member answers as its plain network does, however members are run."""
    case.ensemble.eval()
    if case.random:
        _draws(case)
        return
    plain = {k: case.ensemble.member(k).eval() for k in (0, case.ensemble.members - 1)}
    tried = set()
    for run, inputs in (("loop", case.example), ("auto", case.again), ("batched", case.again)):
        if run in tried:
            continue
        case.ensemble.run = run
        try:
            outputs = case.outputs(inputs)
        except Exception:
            if run != "batched":
                raise
            continue  # some networks cannot be vectorised; "auto" must notice
        tried |= {run, case.ensemble.run}
        tolerance = TOLERANCE if case.ensemble.run == "loop" else _tolerance(case.network)
        for k, member in plain.items():
            _same(outputs[k], case.answer(member, inputs), tolerance, f"member {k}, run {run!r}")
        if run == "loop" and case.ensemble.method.keeps_weights:
            expected = case.answer(case.twin.eval(), inputs)
            _same(outputs[0], expected, _tolerance(case.network), "the weights are not kept, outputs")


def _draws(case: Case) -> None:
    outputs = case.outputs(case.example)
    if torch.equal(outputs[0], outputs[1]):
        raise WrongError("two draws are equal")
    plain = case.answer(case.ensemble.member(0).eval(), case.example)
    _same(plain, case.answer(case.twin.eval(), case.example), TOLERANCE, "the plain network")


def members_in_train_mode(case: Case) -> None:
    """One member alone trains as its plain network does, and leaves the others alone."""
    ensemble = copy.deepcopy(case.ensemble)
    ensemble.run = "loop"
    other_before = None
    if not case.random:
        other_before = case.outputs(case.example, ensemble.eval(), members=[1])
    shared = {name: t.clone() for store in ensemble.state for name, t in store.shared.items()}
    own = [{name: t.clone() for name, t in store.own.items()} for store in ensemble.state]
    plain = ensemble.member(0).train()
    ensemble.train()
    outputs = _seeded(case.outputs, case.example, ensemble, members=[0])
    expected = _seeded(case.answer, plain, case.example)
    _same(outputs[0], expected, TOLERANCE, "member 0")
    after = dict(ensemble.member(0).named_buffers())
    for name, tensor in plain.named_buffers():
        if not _same_tensor(tensor, after.get(name), TOLERANCE):
            raise WrongError(f"the buffer {name!r} of member 0 is another than its plain network's")
    for store, rows in zip(ensemble.state, own, strict=True):
        for name, tensor in store.own.items():
            if not _same_tensor(tensor[1], rows[name][1]):
                raise WrongError(f"member 0 changed the buffer {name!r} of member 1")
    moved = any(not torch.equal(t, shared[n]) for store in ensemble.state for n, t in store.shared.items())
    if other_before is not None and not moved:
        other = case.outputs(case.example, ensemble.eval(), members=[1])
        _same(other, other_before, TOLERANCE, "member 1 after member 0 ran")


def training_step(case: Case) -> None:
    """A step trains all that the plain network trains."""
    targets = case.targets()
    used = _parameters_with_gradient(case, targets)
    ensemble = case.ensemble.train()
    ensemble.run = "auto"
    _seed(7)
    loss = ensemble.loss(_copied(case.example), targets)
    loss.backward()
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


def _parameters_with_gradient(case: Case, targets: Tensor) -> set[str]:
    plain = case.network.make().train()
    answer = _seeded(case.answer, plain, case.example)
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
    outputs = _seeded(case.outputs, case.again)
    if not torch.isfinite(outputs).all():
        raise WrongError("outputs are not finite after one step")
    if not case.random:
        for k in (0, ensemble.members - 1):
            _same(outputs[k], case.answer(ensemble.member(k).eval(), case.again), TOLERANCE, f"member {k}")
        if not ensemble.alike and torch.equal(outputs[0], outputs[1]):
            raise WrongError("members that have other tensors answer the same")
    twin = copy.deepcopy(ensemble)
    with torch.no_grad():
        for own, parameter in zip(ensemble.parameters(), twin.parameters(), strict=True):
            before = own.clone()
            parameter.add_(1)
            if not torch.equal(own, before):
                raise WrongError("a deep copy shares memory with the ensemble")
    twin.load_state_dict(ensemble.state_dict())
    _same(_seeded(case.outputs, case.again, twin), outputs, TOLERANCE, "a deep copy with the state loaded")


def joint_pass(case: Case) -> None:
    """MIMO with the same input M times answers as its members do."""
    if case.method != "mimo":
        return
    ensemble = case.ensemble.eval()
    ensemble.run = "loop"
    expected = case.outputs(case.example)
    repeated = tree_map(lambda leaf: _repeated(leaf, ensemble.members), case.example)
    _same(case.outputs(repeated, per_member=True), expected, _tolerance(case.network))


def packed_size(case: Case) -> None:
    """A packed member has alpha / M of every hidden width."""
    if case.method != "packed":
        return
    method = case.ensemble.method
    member = case.ensemble.member(0)
    count = sum(parameter.numel() for parameter in member.parameters())
    expected = _expected_size(case, member, method.alpha / method.members)
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
    args, kwargs = arguments(_copied(case.example))
    try:
        one = ensemble.pack(*args, **kwargs)
    except CoveyError as error:
        raise PackRefusedError(f"pack(): {error}") from error
    for inputs in (case.example, case.again):
        args, kwargs = arguments(_copied(inputs))
        _same(one.eval()(*args, **kwargs), case.outputs(inputs), _tolerance(case.network))
    args, kwargs = arguments(_copied(case.example))
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


# --- what a packed member should have ---------------------------------------------------------------------

_LAYERS = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.LSTM,
    nn.GRU,
    nn.RNN,
    nn.LSTMCell,
    nn.GRUCell,
    nn.RNNCell,
    nn.MultiheadAttention,
)


def _expected_size(case: Case, member: nn.Module, ratio: float) -> float:
    """Parameters of the network at `ratio` of its hidden widths, none rounded.

    Of layers that torch has, both axes of a weight are widths, but for the stem's inputs, the head's outputs, and
    sizes that the catalogue says are none. Of other parameters the axes that were narrowed count as widths.
    """
    body = examine(case.twin, example=case.example, output=case.network.output)
    narrow = dict(member.named_parameters())
    total = 0.0
    for name, tensor in case.twin.named_parameters():
        owner = case.twin.get_submodule(name.rpartition(".")[0])
        scales = [
            ratio if new < old else 1.0 for old, new in zip(tensor.shape, narrow[name].shape, strict=True)
        ]
        if isinstance(owner, _LAYERS) and tensor.ndim > 1 and getattr(owner, "groups", 1) == 1:
            outputs, inputs = _width_axes(owner)
            scales[outputs] = (
                1.0 if name in body.head or tensor.shape[outputs] in case.network.unscaled else ratio
            )
            scales[inputs] = (
                1.0 if name in body.stem or tensor.shape[inputs] in case.network.unscaled else ratio
            )
        size = 1.0
        for length, scale in zip(tensor.shape, scales, strict=True):
            size *= length * scale
        total += size
    return total


def _width_axes(layer: nn.Module) -> tuple[int, int]:
    """Which axes of the layer's weight are its outputs and its inputs."""
    return (1, 0) if isinstance(layer, nn.ConvTranspose1d | nn.ConvTranspose2d) else (0, 1)


# --- what a method can mean for a network -----------------------------------------------------------------


@functools.cache
def why_meaningless(network: Network) -> dict[str, str]:
    """Methods that can mean nothing for this network, each with the reason, read off the network itself."""
    net = network.make().train()
    found = {}
    if not any(_is_norm(module) for module in net.modules()):
        found["norm-ensemble"] = "there is no norm with parameters"
    if not _is_random(net, network):
        found["mc-dropout"] = "nothing is random in train mode"
    stem, head = _ends(network)
    if stem & head:
        found["mimo"] = "the first layer is the head as well"
    return found


def _is_norm(module: nn.Module) -> bool:
    named = "norm" in type(module).__name__.lower()
    return named and any(True for _ in module.parameters(recurse=False))


def _is_random(net: nn.Module, network: Network) -> bool:
    _seed(11)
    before = _random_states()
    args, kwargs = arguments(network.example())
    _seed(11)
    net(*args, **kwargs)
    return not _equal_states(before, _random_states())


def _ends(network: Network) -> tuple[set[str], set[str]]:
    try:
        body = examine(network.make(), example=network.example(), output=network.output)
    except CoveyError:
        return set(), set()
    return set(body.stem), set(body.head)


class _Precision(TorchDispatchMode):
    """Notices results in less than float64."""

    low = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype != torch.float64:
                self.low = True
        return result


@functools.cache
def _tolerance(network: Network) -> float:
    """Of outputs that another order of operations gives."""
    net = network.make().eval()
    args, kwargs = arguments(network.example())
    with _Precision() as precision, torch.no_grad():
        net(*args, **kwargs)
    return LOW_TOLERANCE if precision.low else TOLERANCE


# --- small things -----------------------------------------------------------------------------------------


def _seed(number: int) -> None:
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def _seeded(function: Callable, *args: Any, **kwargs: Any) -> Any:
    _seed(13)
    return function(*args, **kwargs)


def _random_states() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _equal_states(a: tuple[Any, Any, Any], b: tuple[Any, Any, Any]) -> bool:
    same_numpy = all(np.array_equal(left, right) for left, right in zip(a[1], b[1], strict=True))
    return torch.equal(a[0], b[0]) and same_numpy and a[2] == b[2]


def _copied(inputs: Any) -> Any:
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, inputs)


def _another(inputs: Any) -> Any:
    """Another batch: the samples in another order, numbers with some noise."""
    torch.manual_seed(2)
    return tree_map(_other_leaf, inputs)


def _other_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or len(leaf) != BATCH:
        return leaf
    turned = leaf.roll(1, 0)
    return turned + 0.1 * torch.rand_like(turned) if leaf.is_floating_point() else turned


def _repeated(leaf: Any, members: int) -> Any:
    return torch.stack([leaf] * members) if isinstance(leaf, Tensor) else leaf


def _tensors(net: nn.Module) -> dict[str, Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def _same_tensor(a: Tensor, b: Tensor | None, tolerance: float = 0.0) -> bool:
    if b is None or a.shape != b.shape:
        return False
    if tolerance == 0 or not a.is_floating_point():
        return torch.equal(a, b) or bool((a.isnan() & b.isnan() | (a == b)).all())
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def _same(found: Tensor, expected: Tensor, tolerance: float = TOLERANCE, what: str = "outputs") -> None:
    if found.shape != expected.shape:
        raise WrongError(f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    scale = expected.detach().abs().max().clamp_min(1e-12)
    difference = ((found - expected).abs().max() / scale).item()
    if not difference <= tolerance:
        raise WrongError(f"{what} differ by {difference:.1e} of their scale")


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _quick_choice() -> Iterator[None]:
    """Let "auto" measure each run once: which is faster does not matter here, only that either is right."""
    tune = runs.tune
    runs.tune = functools.partial(tune, repeats=0)
    try:
        yield
    finally:
        runs.tune = tune


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:400]


def _described(error: Exception) -> str:
    """The error, and the last line of covey that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/covey/" in frame.filename]
    place = ""
    if ours:
        path = ours[-1].filename.rpartition("/covey/")[2]
        place = f" (covey/{path}, {ours[-1].name})"
    return f"{type(error).__name__}: {_one_line(error)}{place}"
