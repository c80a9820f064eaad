"""One method on one network: everything that should hold of the ensemble is tried, and what came of it is told.

judge(every()["unet"], "packed").verdict        # "ok", "refused", "wrong", "raises", ...
"""

from __future__ import annotations

import functools
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from catalogue import Network
from checks import CHECKS, Case, PackRefusedError, converted
from comparing import WrongError, equal_states, random_states, seed
from torch import nn

import covey
from covey import registry
from covey import run as runs
from covey.errors import ConversionError, CoveyError, OptionError
from covey.networks.anatomy import Anatomy, examine
from covey.networks.calls import arguments, pick

VERDICTS = {
    "ok": "everything that was tried holds",
    "refused": "convert() says why it cannot be done",
    "no pack": "the ensemble works; pack() says why it cannot be done",
    "wrong": "something does not hold",
    "raises": "an error that covey did not mean to raise",
    "slow": "not done within the time limit",
}


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
        commit: of covey, when the case was run.
        day: on which it was run.
    """

    network: str
    method: str
    verdict: str
    reason: str = ""
    meaningless: str = ""
    convert_seconds: float = 0.0
    seconds: float = 0.0
    commit: str = ""
    day: str = ""


def methods() -> list[str]:
    """The methods of the sweep: all of covey's own that take one network."""
    known = {name: kind for name, kind in covey.METHODS.items() if name in registry.OWN_METHODS}
    return [name for name, kind in known.items() if kind.several_networks != "must"]


def judge(network: Network, method: str) -> Verdict:
    """Convert the network with the method's default options and try everything."""
    start = time.perf_counter()
    told = functools.partial(Verdict, network.name, method)
    meaningless = ""
    with _quiet(), _quick_choice():
        try:
            meaningless = why_meaningless(network).get(method, "")
            case, seconds = converted(network, method)
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


_RANK = 8
_BEFORE_THE_HEAD = ("low-rank", "shared-low-rank", "hypernetwork", "mixture", "superweights", "shapeshifter")


@functools.cache
def why_meaningless(network: Network) -> dict[str, str]:
    """Methods that can mean nothing for this network, each with the reason, read off the network itself."""
    net = network.make().train()
    found = {}
    if not any(_is_norm(module) for module in net.modules()):
        found["norm-ensemble"] = "there is no norm with parameters"
    if not _is_random(network):
        found["mc-dropout"] = "nothing is random in train mode"
    try:
        body = examine(network.make(), example=network.example(), output=network.output)
    except CoveyError:
        return found
    return found | _without_a_place(body)


def _without_a_place(body: Anatomy) -> dict[str, str]:
    """Methods that act on layers which this network does not have, or does not train."""
    found = {}
    stem, head = set(body.stem), set(body.head)
    if stem & head:
        found |= dict.fromkeys(("mimo", "tabm"), "the first layer is the head as well")
    elif not all(parameter.requires_grad for parameter in body.values(stem).values()):
        found |= dict.fromkeys(("mimo", "tabm"), "the first layer is frozen")
    matrices = {name: how for name, how in body.matrices("all").items() if how.inputs}
    if not matrices.keys() - head:
        found |= dict.fromkeys(_BEFORE_THE_HEAD, "there is no layer to train before the head")
    elif not any(_has_rank(body, name) for name in matrices.keys() - head):
        found |= dict.fromkeys(("low-rank", "shared-low-rank"), f"no layer has a rank of {_RANK}")
    if not matrices.keys() - stem:
        found["masksembles"] = "there is no layer to train behind the first"
    return found


def _has_rank(body: Anatomy, name: str) -> bool:
    """Whether a layer's own rank can be that of the updates which methods make by default."""
    weight = body.network.get_parameter(name)
    rows = len(weight)
    return min(rows, weight.numel() // rows) >= _RANK


def _is_norm(module: nn.Module) -> bool:
    named = "norm" in type(module).__name__.lower()
    return named and any(True for _ in module.parameters(recurse=False))


def _is_random(network: Network) -> bool:
    """Whether random numbers go into the answer in train mode, as far as a few tries tell."""
    answers = []
    for number in range(8):
        net = network.make().train()
        args, kwargs = arguments(network.example())
        seed(number)
        before = random_states()
        answers.append(pick(net(*args, **kwargs), network.output))
        if equal_states(before, random_states()):
            return False
    return any(not torch.equal(answers[0], other) for other in answers[1:])


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
