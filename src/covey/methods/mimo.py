"""MIMO: one network takes M inputs at once and gives M answers.

    y_k = head_k(body(sum_j stem_j(x_j)))

Havasi et al. (2021): inputs concatenated on channels, one body, M heads. A convolution over concatenated channels is
the sum of M convolutions, so the members' tensors are the first layer's weights W_j and the heads. Trained on M
different inputs, asked with the same input M times: then member k is a plain network whose first layer has the weights
sum_j W_j. Stores P + (M - 1) (first layer's weights + head) parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.utils._pytree import tree_leaves, tree_map

from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError
from covey.layout import Layout
from covey.method import Method, Share
from covey.networks.anatomy import Anatomy
from covey.networks.initial import fresh
from covey.networks.layers import owner_of
from covey.options import check_between, check_choice, check_whole
from covey.parameterization import Group, Parameterization
from covey.parts.joint import INPUT, OWN, STEM, Several
from covey.parts.plain import Replicated, assemble, stack
from covey.tensors import Tensors, dense_gradient
from covey.ways import Inputs

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, kw_only=True)
class MIMO(Method):
    """One network takes M inputs and gives M answers in a single pass; members share the body's capacity.

    Args:
        members: how many inputs and answers the network has.
        init: "fresh" draws first layers and heads anew; "copy" keeps a pretrained network's answers.
        repeats: batch repetition in training: how often each sample is repeated in a minibatch (4 on CIFAR).
        rho: share of a minibatch that is the same for all members (0 on CIFAR, 0.6 on ImageNet).
        gamma: factor of the body's gradient.
    """

    own_batches = True

    members: int = 3
    init: Literal["copy", "fresh"] = "fresh"
    repeats: int = 4
    rho: float = 0.0
    gamma: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("init", self.init, ("copy", "fresh"))
        check_whole("repeats", self.repeats)
        check_between("rho", self.rho, 0, 1)

    def design(self, bodies: Sequence[Anatomy]) -> Layout:
        """First layers that are summed, heads that are replicated, a shared body."""
        (body,) = bodies
        stem = _stem_weights(body)
        for part, names in (("stem", stem), ("head", body.head)):
            _check_found(body, part, names)
            _check_trainable(body, part, names)
        _check_first_layer(body.network, stem)
        both = sorted({*stem} & {*body.head})
        if both:
            raise ConversionError(
                f"the first layer and the head share {both[0]!r}: MIMO needs two layers, one that sums the members' "
                "inputs and one that gives each its answer. Name others with stem= and head=, or take another method."
            )
        layout = Layout.of(
            bodies,
            own=body.head,
            tensors={"stem": stem, "replicated": body.head},
            facts={"after_head": _buffers_after(body, body.head)},
        )
        self._try(body, layout)
        return layout

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """Draw or copy first layers and heads."""
        (body,) = bodies
        stem, head = (body.values(layout.tensors[label]) for label in ("stem", "replicated"))
        if self.init == "copy":
            stems = {name: stack(tensor / self.members, self.members) for name, tensor in stem.items()}
            heads = {name: stack(tensor, self.members) for name, tensor in head.items()}
        else:
            made = [fresh(body.network) for _ in range(self.members)]
            drawn = {n: torch.stack([net.get_parameter(n) for net in made]) for n in (*stem, *head)}
            # M summed layers of this size have the variance of one
            stems = {name: drawn[name] / self.members**0.5 for name in stem}
            heads = {name: drawn[name] for name in head}
        parts = {"stem": Summed(stems), "replicated": Replicated(heads)}
        return assemble(self, bodies, layout, parts, gamma=self.gamma, kind=JointEnsemble)

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """P + (M - 1) (first layer's weights + head)."""
        (body,) = bodies
        total = sum(tensor.numel() for tensor in body.network.parameters())
        for label in ("stem", "replicated"):
            for tensor in body.values(layout.tensors[label]).values():
                total += (self.members - 1) * tensor.numel()
        return total

    @property
    def keeps_weights(self) -> bool:
        """Copies do."""
        return self.init == "copy"

    @property
    def collapses(self) -> bool:
        """Heads that began as copies can be averaged."""
        return True

    @property
    def forward_passes(self) -> float:
        """All members share one pass."""
        return 1.0

    @property
    def training_passes(self) -> float:
        """A sample stands in a batch so many times."""
        return float(self.repeats)

    def share_out(self, layout: Layout, samples: int, generator: torch.Generator | None = None) -> Share:
        """Each member sees the samples in an order of its own, (M, batch * repeats).

        Indices are repeated and shuffled; each member then shuffles the first 1 - rho of them again.
        """
        order = torch.arange(samples).repeat(self.repeats)
        order = order[torch.randperm(len(order), generator=generator)]
        own = round((1 - self.rho) * len(order))
        rows = []
        for _ in range(self.members):
            shuffled = order[:own][torch.randperm(own, generator=generator)]
            rows.append(torch.cat([shuffled, order[own:]]))
        return Share(tuple(range(self.members)), torch.stack(rows))

    @property
    def late_start(self) -> Literal["widen", "convert"]:
        """A trained network gets further inputs and heads."""
        if self.init == "fresh":
            raise OptionError(
                "MIMO initialises first layers and heads anew (init='fresh'), so a network trained before would have "
                "to learn from the start. Start it late with init='copy'."
            )
        return "convert"

    def full_gradient(self) -> Self:
        """With gamma 1."""
        return replace(self, gamma=1.0)

    def _try(self, body: Anatomy, layout: Layout) -> None:
        """Compare the joint pass with the members one by one now, on the example, rather than in training."""
        if body.example is None:
            return
        args, kwargs = body.example
        _check_rows(body.example)
        many_args, many_kwargs = tree_map(lambda leaf: _repeated(leaf, self.members), body.example)
        ensemble = self.build([body], layout)
        ensemble.run = "loop"
        with torch.no_grad():
            try:
                expected = ensemble.eval()(*args, **kwargs)
                again = ensemble(*args, members=[0], **kwargs)
            except Exception as error:
                raise ConversionError(
                    "the network runs on the example by itself but not as an ensemble: "
                    f"{type(error).__name__}: {error}. Take another method, such as BatchEnsemble or MultiHead."
                ) from error
            _check_answers(ensemble, body.example, expected)
            with _refusing():
                found = ensemble(*many_args, per_member=True, **many_kwargs)
        is_random = bool(_difference(again, expected[:1]))
        precision = body.trace.precision if body.trace and body.trace.precision else expected.dtype
        difference = "" if is_random else _difference(found, expected, precision)
        if difference:
            raise _differs(difference)
        try:
            ensemble.train()(*args, members=[0], **kwargs)
        except Exception:  # such as BatchNorm on a single sample: the network's own affair
            return
        with _refusing():
            ensemble(*many_args, per_member=True, **many_kwargs)
        turned = tree_map(lambda leaf: _turned(leaf, self.members), body.example)
        with _refusing():  # as in training, where the network may decide by values in which inputs differ
            ensemble(*turned[0], per_member=True, **turned[1])
        self._try_repeated(ensemble, many_args, many_kwargs)

    def _try_repeated(self, ensemble: Ensemble, args: tuple, kwargs: dict[str, Any]) -> None:
        """A network may take so many samples and no more."""
        if self.repeats == 1:
            return
        longer = tree_map(lambda leaf: _longer(leaf, self.repeats), (args, kwargs))
        try:
            ensemble(*longer[0], per_member=True, **longer[1])
        except Exception as error:
            raise ConversionError(
                f"MIMO trains on batches in which every sample stands {self.repeats} times, and the network does not "
                f"take so many: {type(error).__name__}: {error}. Set repeats=1."
            ) from error


class Summed(Parameterization):
    """w_k = sum_j phi_j: what all members use is the sum of the slots' own weights.

    phi: W (M, *shape) by name.
    """

    role = "summed over inputs"
    varies = False

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.names = tuple(tensors)
        self.phi = Tensors({name: nn.Parameter(tensor.detach().clone()) for name, tensor in tensors.items()})

    def member(self, k: int) -> dict[str, Tensor]:
        """The sum over slots."""
        return {name: tensor.sum(0) for name, tensor in self.phi.items()}

    def slot(self, j: int) -> dict[str, Tensor]:
        """The weights that act on the j-th input."""
        return {name: tensor[j] for name, tensor in self.phi.items()}

    def groups(self) -> list[Group]:
        """One group of member tensors."""
        return [Group(list(self.phi.parameters()), "member")]

    def parameter_count(self, name: str) -> int:
        """M times the network's."""
        return self.phi[name].numel()

    def collapsed(self) -> dict[str, Tensor]:
        """The sum, which is the same for all members."""
        return self.member(0)


class JointEnsemble(Ensemble):
    """An ensemble whose members share a forward pass when each has an input of its own."""

    def forward(
        self, *args: Any, members: Sequence[int] | None = None, per_member: bool = False, **kwargs: Any
    ) -> Tensor:
        """Members' outputs, (M, B, ...); with `per_member`, of one pass that sees all M inputs at once."""
        if not per_member:
            return super().forward(*args, members=members, **kwargs)
        if members is not None:
            raise OptionError(
                "MIMO runs all its members in one pass; members= has no meaning with per_member=True."
            )
        inputs = self.inputs(args, kwargs, self.members)
        return self._joint(inputs)

    @_disable_dynamo  # as torch.compiler.disable, which would import the compiler with this module
    def _joint(self, inputs: Inputs) -> Tensor:
        """One pass in which the network takes M inputs for one and gives M answers for one; see `parts.joint`."""
        args, kwargs = tree_map(_as_one, *(inputs.of(j) for j in range(self.members)))
        tensors = {**self._joint_parameters(), **self._joint_buffers()}
        with self.nothing_left_behind():
            outputs = self.call(0, tensors, args, kwargs)
        if not isinstance(outputs, Several) or outputs.kind != OWN:
            raise ConversionError(
                "the answers do not come out of the head that MIMO gave each member. Name it with head='module.path'."
            )
        self._write_buffers(tensors)
        return torch.stack(outputs.each)

    def _joint_parameters(self) -> dict[str, Tensor]:
        found = dict(self.tensors(0))
        for label, kind in (("stem", STEM), ("replicated", OWN)):
            part = cast(Summed | Replicated, self.parts[label])
            for name, stacked in part.phi.items():
                each = stacked.unbind()
                if name in self.sparse():
                    each = tuple(map(dense_gradient, each))
                found[name] = Several(each, kind)
        return found

    def _joint_buffers(self) -> dict[str, Tensor]:
        """Copies, since writing the statistics back would spoil what the backward pass has kept."""
        buffers, _ = self.buffers_of(0)
        found = {name: tensor.clone() for name, tensor in buffers.member(0).items()}
        for name in self._after_head():
            found[name] = Several(buffers.own[name].clone().unbind(), OWN)
        return found

    @torch.no_grad()
    def _write_buffers(self, after: dict[str, Tensor]) -> None:
        """Keep what the pass made of the buffers: each member's own behind the head, elsewhere the same for all."""
        buffers, _ = self.buffers_of(0)
        for name, tensor in [*buffers.own.items(), *buffers.shared.items()]:
            value = after[name]
            tensor.copy_(torch.stack(value.each) if isinstance(value, Several) else value)

    def _after_head(self) -> Sequence[str]:
        return self.layout.facts.get("after_head", ())


def _as_one(*each: Any) -> Any:
    return Several(each, INPUT) if isinstance(each[0], Tensor) else each[0]


def _repeated(leaf: Any, members: int) -> Any:
    return torch.stack([leaf] * members) if isinstance(leaf, Tensor) else leaf


def _turned(leaf: Any, members: int) -> Any:
    """The samples in another order for each member."""
    return torch.stack([leaf.roll(k, 0) for k in range(members)]) if isinstance(leaf, Tensor) else leaf


def _longer(leaf: Any, repeats: int) -> Any:
    return torch.cat([leaf] * repeats, 1) if isinstance(leaf, Tensor) else leaf


# --- what the network must be like ----------------------------------------------------------------------------------

_WAY_OUT = (
    "Name other layers with stem= and head=, or take another method, such as BatchEnsemble or MultiHead."
)


def _stem_weights(body: Anatomy) -> list[str]:
    """The matrices among the first layer's tensors that the input meets; biases and gains stay one for all."""
    names = [name for name in body.stem if _is_matrix(body.network, name)]
    if body.trace is None:
        return names
    met = body.trace.stem()
    return [name for name in names if name in met] or names


def _is_matrix(network: nn.Module, name: str) -> bool:
    tensor = network.get_parameter(name)
    weight = getattr(network.get_submodule(owner_of(name)), "weight", None)
    is_computed = ".parametrizations." in name or name.endswith("weight_g")
    if is_computed and isinstance(weight, Tensor):  # of a weight norm the directions, and not the lengths
        return tensor.shape == weight.shape
    return tensor.ndim > 1


def _buffers_after(body: Anatomy, head: Sequence[str]) -> list[str]:
    """Running statistics of layers behind the head, which each member has for itself in a joint pass too."""
    if body.trace is None:
        return []
    met = body.trace.touched(head, random=False)
    owners = {owner_of(name) for name in body.state & met}
    return sorted(name for name in body.state if owner_of(name) in owners)


def _check_found(body: Anatomy, part: str, names: Sequence[str]) -> None:
    if names:
        return
    if body.example is None:
        raise ConversionError(
            f"MIMO must know the network's {part}: give convert() an example input, from which it is found, "
            f"or name it with {part}='module.path'."
        )
    raise ConversionError(
        f"MIMO found no {part} that is a linear, convolution or embedding layer on the example's way through the "
        f"network. Name it with {part}='module.path', or take another method."
    )


def _check_rows(example: Any) -> None:
    """Training deals samples out to members in other orders, so that every tensor must have a row for each."""
    shapes = [tuple(leaf.shape) for leaf in tree_leaves(example) if isinstance(leaf, Tensor)]
    if any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        raise ConversionError(
            "MIMO gives every member the samples of a batch in another order, so each input must have one row per "
            f"sample; the example's have the shapes {shapes}. Take another method, such as BatchEnsemble or MultiHead."
        )


def _check_answers(ensemble: Ensemble, example: Any, expected: Tensor) -> None:
    """Refuse answers whose samples are not on the first axis: targets are dealt out by theirs."""
    try:
        args, kwargs = tree_map(lambda leaf: leaf[1:] if isinstance(leaf, Tensor) else leaf, example)
        fewer = ensemble(*args, members=[0], **kwargs)
    except (
        Exception
    ):  # a network may take so many samples and no fewer, and a sparse table has no rows to leave out
        return
    if fewer.shape[1:2] == expected.shape[1:2] and fewer.shape[2:] != expected.shape[2:]:
        raise ConversionError(
            "MIMO gives every member the samples of a batch in another order, and their targets likewise, so answers "
            f"must have one row per sample; on the example they have the shape {tuple(expected.shape[1:])}, in which "
            "samples are on another axis. Let the network answer batch first (transpose(0, 1)), or take another method."
        )


def _check_trainable(body: Anatomy, part: str, names: Sequence[str]) -> None:
    for name, tensor in body.values(names).items():
        if not tensor.requires_grad:
            raise ConversionError(
                f"MIMO gives every member a {part} of its own to train, and {name!r} is frozen. Unfreeze it, or take "
                "another method."
            )


def _check_first_layer(network: nn.Module, names: Sequence[str]) -> None:
    for name in names:
        layer = network.get_submodule(owner_of(name))
        if isinstance(layer, nn.RNNBase | nn.RNNCellBase | nn.MultiheadAttention):
            raise ConversionError(
                f"MIMO sums the members' inputs in a first layer that is a linear, convolution or embedding layer; "
                f"{name!r} belongs to a {type(layer).__name__}. {_WAY_OUT}"
            )


@contextmanager
def _refusing() -> Iterator[None]:
    """Whatever goes wrong in a joint pass, after the members ran on the same input one by one, is MIMO's to explain."""
    try:
        yield
    except Exception as error:
        said = str(error) if isinstance(error, ConversionError) else f"{type(error).__name__}: {error}"
        raise ConversionError(
            "MIMO sums the members' inputs in the first layer and gives each its answer in the head, which cannot be "
            f"done with this network: {said} {_WAY_OUT}"
        ) from error


def _difference(found: Tensor, expected: Tensor, precision: torch.dtype | None = None) -> str:
    """Where the joint pass, given the same input M times, first answers otherwise than the members do; or nothing."""
    if found.shape != expected.shape:
        return f"its shape is {tuple(found.shape)} where the members give {tuple(expected.shape)}"
    finite = torch.isfinite(expected)
    scale = expected[finite].abs().amax() if finite.any() else torch.ones(())
    tolerance = max(_tolerance(expected.dtype), _tolerance(precision or expected.dtype))
    wrong = finite & ~((found - expected).abs() <= tolerance * scale + 1e-12)
    if not wrong.any():
        return ""
    place = tuple(wrong.nonzero()[0].tolist())
    return (
        f"member {place[0]} answers {found[place].item():.6g} where it gives {expected[place].item():.6g} alone, "
        f"at {place[1:]}"
    )


def _tolerance(dtype: torch.dtype) -> float:
    """Of the answers' scale: what other kernels and orders of summation may change."""
    if not dtype.is_floating_point:
        return 0.0
    return min(max(1e-9, torch.finfo(dtype).eps * 1e4), 0.05)


def _differs(how: str) -> ConversionError:
    return ConversionError(
        f"MIMO's joint pass, which training runs, does not answer as the members do on the same input: {how}. "
        f"{_WAY_OUT}"
    )
