"""convert(): any network becomes an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from covey import checking
from covey.coverage import Coverage
from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError
from covey.garbage import rarely_collected
from covey.losses import loss_of
from covey.method import Method, Training
from covey.networks.anatomy import Anatomy, examine
from covey.networks.calls import Output
from covey.networks.copies import hollow
from covey.networks.layers import Where
from covey.networks.refusals import check_network
from covey.quantiles import Quantiles
from covey.seeds import random_state_kept


@rarely_collected()
def convert(
    network: nn.Module | Sequence[nn.Module],
    method: Method,
    *,
    example: Any = None,
    output: Output = None,
    head: Where | None = None,
    stem: Where | None = None,
    task: str | Quantiles = "classification",
    class_dim: int | None = None,
    seed: int = 0,
    check: bool | None = None,
) -> Ensemble:
    """Turn a network into an ensemble. The network stays as it was, and so does the global random state.

    Args:
        network: any module, or several where the method takes members that differ.
        method: what kind of ensemble, with its options.
        example: an input the network takes: a tensor, a tuple of positional or a dict of keyword arguments.
            It is used to find the head, the first layer and the layers that come before any member's own.
        output: which part of the network's output is the answer: a key, an attribute or a position.
        head: the answering layer by name, if it should not be found from `example`.
        stem: the first layer by name, likewise.
        task: "classification" (logits), "multilabel" (logits of labels of which several may be true), "regression"
            (points), "gaussian" (means and raw variances), or `covey.Quantiles((0.05, 0.5, 0.95))`.
        class_dim: the class axis of the network's output; by default where the head puts it, or if the head is not
            known 1 for (B, C, H, W) and more, else the last.
        seed: of all random choices that conversion makes.
        check: whether to try, on `example` and on a second batch made of it, that every member answers as the plain
            network `ensemble.member(k)` does, in eval and train mode, that members do not touch each other, and that a
            backward pass reaches what it reaches in the plain network. By default the first and the last member are
            tried where that is cheap: where there is an example, a forward pass takes less than a quarter of a second
            and the ensemble has less than 50 million parameters. True tries all members however long it takes, False
            none. The coverage table says what was checked. Like finding the head, it calls copies of the network, and
            so its hooks.

    >>> import torch
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> from covey.methods import BatchEnsemble
    >>> ensemble = convert(network, BatchEnsemble(members=4), example=torch.zeros(2, 4))
    >>> ensemble(torch.zeros(2, 4)).shape
    torch.Size([4, 2, 3])
    """
    task = _checked_task(task)
    if check is not None and not isinstance(check, bool):
        raise OptionError(f"check is True, False or None; got {check!r}.")
    method, bodies = _examined(network, method, example=example, output=output, head=head, stem=stem)
    with random_state_kept(*(body.network for body in bodies), seed=int(seed)):
        layout = method.design(bodies)
        ensemble = method.build(bodies, layout)
    _check_distinct(method, ensemble, bodies)
    ensemble.task, ensemble.seed = task, int(seed)
    ensemble.class_dim = _class_dim(bodies[0]) if class_dim is None else int(class_dim)
    trace = bodies[0].trace
    precision = trace.precision if trace else None
    ensemble.checked = checking.check(ensemble, bodies[0].example, check, precision, bodies[0].network)
    ensemble.checked += _note_on_rewrites(bodies[0])
    return ensemble


@rarely_collected()
def dry_run(
    network: nn.Module | Sequence[nn.Module],
    method: Method,
    *,
    example: Any = None,
    output: Output = None,
    head: Where | None = None,
    stem: Where | None = None,
) -> Coverage:
    """What `convert` would make of every tensor, as a table, without the memory that the ensemble would take.

    Takes what `convert` takes.
    """
    method, bodies = _examined(network, method, example=example, output=output, head=head, stem=stem)
    with random_state_kept(*(body.network for body in bodies), seed=0):
        layout = method.design(bodies)
        ensemble = method.build([replace(body, network=hollow(body.network)) for body in bodies], layout)
    return ensemble.coverage


def _examined(
    network: nn.Module | Sequence[nn.Module], method: Method, **options: Any
) -> tuple[Method, list[Anatomy]]:
    """The method for the networks given, and what is found out about them."""
    networks: list[nn.Module] = list(network) if isinstance(network, Sequence) else [network]
    _check(networks, method)
    return method.for_networks(len(networks)), [examine(net, **options) for net in networks]


def _note_on_rewrites(body: Anatomy) -> str:
    """What differs in training where a network clips or rescales its weights in place."""
    if not body.rewrites:
        return ""
    return (
        f"; the network changes {', '.join(map(repr, body.rewrites))} in place: members compute with what it becomes, "
        "and an optimiser goes on from what it was"
    )


def _class_dim(body: Anatomy) -> int | None:
    """A convolution's outputs are on axis 1, a linear layer's on the last."""
    if not body.head:
        return None
    is_map = any(body.network.get_parameter(name).ndim > 2 for name in body.head)
    return 1 if is_map else -1


def _check_distinct(method: Method, ensemble: Ensemble, bodies: Sequence[Anatomy]) -> None:
    """Members that nothing tells apart are one network at the price of several."""
    if method.members == 1 or method.allows_equal_members:
        return
    if ensemble.differ or bodies[0].random:
        return
    raise ConversionError(
        f"{type(method).__name__} gives this network no tensor of the members' own and nothing in it is random, so "
        "all members would be one. See the coverage table (covey.dry_run) and the method's `where`."
    )


def _checked_task(task: str | Quantiles) -> str:
    """A task as an ensemble carries it."""
    if not isinstance(task, str | Quantiles):
        raise OptionError(f"task is a task's name, or covey.Quantiles; got {task!r}.")
    loss_of(str(task))
    return str(task)


def _check(networks: Sequence[nn.Module], method: Method) -> None:
    if isinstance(method, type):
        raise OptionError(
            f"method is an object with options, such as {method.__name__}(); got the class itself."
        )
    if isinstance(method, Training):
        name = type(method).__name__
        raise OptionError(
            f"{name} is a way of training, so there is nothing to convert before training: call "
            f"covey.fit(network, data, method={name}(...)), which returns the trained ensemble."
        )
    if not isinstance(method, Method):
        raise OptionError(
            f"method is one of covey.METHODS' classes with options; got {type(method).__name__}."
        )
    if not networks:
        raise OptionError("no network was given.")
    for network in networks:
        _check_network(network)


def _check_network(network: nn.Module) -> None:
    if not isinstance(network, nn.Module):
        raise OptionError(f"network is a torch.nn.Module; got {type(network).__name__}.")
    if isinstance(network, Ensemble):
        raise OptionError(
            "network is an ensemble already; convert one plain network, such as ensemble.member(0)."
        )
    check_network(network)
