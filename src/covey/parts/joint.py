"""Tensors that stand for M tensors, so that one pass of a network can see M inputs and give M answers.

    y_k = head_k(body(sum_j stem_j(x_j)))

A network is called with `Several` in the place of its input, of its first layer's weights and of its head's tensors.
Before the first layer, what is done to the input is done to each of the M inputs. The first layer's weights meet them
and sum: from there on there is one plain tensor, of as many samples as one input has. The head's tensors make M out of
it again, and what follows is done to each member's answer. The network sees one batch size throughout, and its modules,
with their hooks, are called once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from covey.errors import ConversionError

INPUT = "input"
STEM = "first layer"
OWN = "own"

# Functions that are linear in data and in weights, and where they have their bias.
_BIAS_AT = {
    "linear": 2,
    "conv1d": 2,
    "conv2d": 2,
    "conv3d": 2,
    "conv_transpose1d": 2,
    "conv_transpose2d": 2,
    "conv_transpose3d": 2,
    "embedding": None,
    "embedding_bag": None,
    "matmul": None,
    "__matmul__": None,
    "__rmatmul__": None,
    "mm": None,
    "bmm": None,
    "einsum": None,
}
# Parts of the names of functions that multiply data by weights.
_LAYERS = ("mm", "linear", "matmul", "conv", "embedding", "rnn", "lstm", "gru", "einsum", "attention")
# Functions that ask a tensor for its shape, type and device only.
_LIKE = (
    "zeros_like",
    "ones_like",
    "full_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "new_tensor",
)
# Functions that ask their second tensor for its shape, type and device only.
_LIKE_OTHER = ("to", "type_as", "expand_as", "view_as", "reshape_as")


class Several(Tensor):
    """M tensors of one shape, which a network takes for one: what is done to it is done to each of them.

    Args:
        each: the M tensors.
        kind: INPUT for members' inputs, STEM for the weights that act on them, OWN for heads and answers.
        alike: whether all M are one tensor, because only the inputs' shape or type went into it.
    """

    each: list[Tensor]
    kind: str
    alike: bool

    @staticmethod
    def __new__(cls, each: Sequence[Tensor], kind: str, alike: bool = False) -> Several:  # noqa: D102
        first = each[0]
        made = Tensor._make_wrapper_subclass(
            cls, first.shape, strides=first.stride(), dtype=first.dtype, device=first.device
        )
        made.each, made.kind, made.alike = list(each), kind, alike
        return made

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        call = _Call(function, args, kwargs or {})
        if call.of_kind(STEM):
            return _with_first_weights(call)
        return _for_each(call)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # there is no memory behind it: what gets here has passed by the functions that know of M tensors
        raise ConversionError(f"{function} cannot be applied to the inputs of several members at once.")


class _Call:
    """A function that the network calls, and what it is called with."""

    def __init__(self, function: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> None:
        self.function = function
        self.name = str(getattr(function, "__name__", function))
        self.leaves, self.structure = tree_flatten((args, kwargs))
        self.several = [leaf for leaf in self.leaves if isinstance(leaf, Several)]
        self.count = len(self.several[0].each)

    def of_kind(self, *kinds: str) -> list[Several]:
        """Those tensors of M that are of these kinds and not alike."""
        return [leaf for leaf in self.several if leaf.kind in kinds and not leaf.alike]

    @property
    def is_layer(self) -> bool:
        """Whether it multiplies data by weights."""
        return any(part in self.name for part in _LAYERS)

    @property
    def target(self) -> Tensor | None:
        """The tensor that is changed in place, if one is."""
        args, kwargs = tree_unflatten(self.leaves, self.structure)
        if isinstance(kwargs.get("out"), Tensor):
            return kwargs["out"]
        in_place = self.name.endswith("_") and not self.name.endswith("__")
        assigns = self.name == "__setitem__" or (self.name.startswith("__i") and self.name in _ASSIGNING)
        found = args[0] if args and (in_place or assigns) else None
        return found if isinstance(found, Tensor) else None

    def run(self, replace: Callable[[Several], Any]) -> Any:
        """Call the function with something else in the place of each tensor of M."""
        own = [replace(leaf) if isinstance(leaf, Several) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(own, self.structure)
        return self.function(*args, **kwargs)


_ASSIGNING = {
    f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
}


# --- inputs, heads and answers -----------------------------------------------------------------------------------


def _for_each(call: _Call) -> Any:
    """The function applied to each member's tensors."""
    if call.name in _LIKE or (call.name in _LIKE_OTHER and not isinstance(call.leaves[0], Several)):
        made = call.run(lambda leaf: leaf.each[0])
        return Several([made] * call.count, INPUT, alike=True)
    if not call.of_kind(INPUT, OWN):  # nothing in it differs between members
        return call.run(lambda leaf: leaf.each[0])
    _check_target(call)
    if call.is_layer and call.of_kind(INPUT) and call.of_kind(OWN):
        raise ConversionError(
            "the network does something else with its input than to put it through the first layer: it reaches the "
            "head by another way too."
        )
    results = []
    for k in range(call.count):
        results.append(call.run(lambda leaf, k=k: leaf.each[k]))  # type: ignore[misc]
    return _gathered(call, results)


def _check_target(call: _Call) -> None:
    """Members' values cannot be written into one tensor; one that was made like them becomes M."""
    target = call.target
    if target is None:
        return
    if not isinstance(target, Several):
        raise ConversionError(
            f"the network writes what belongs to single members into a tensor of all ({call.name})."
        )
    if target.alike:
        target.each = [tensor.clone() for tensor in target.each]
        target.alike = False


def _gathered(call: _Call, results: list[Any]) -> Any:
    """The members' results as one: tensors as `Several`, and everything else must be the same for all."""
    kind = OWN if call.of_kind(OWN) else INPUT
    flat = [tree_flatten(result) for result in results]
    structure = flat[0][1]
    if any(other != structure for _, other in flat):
        raise _depends_on_values(call)
    found = []
    for each in zip(*(leaves for leaves, _ in flat), strict=True):
        if isinstance(each[0], Tensor):
            found.append(Several(each, kind))
        elif all(value == each[0] for value in each):
            found.append(each[0])
        else:
            raise _depends_on_values(call)
    return tree_unflatten(found, structure)


def _depends_on_values(call: _Call) -> ConversionError:
    return ConversionError(
        f"the network asks for values of its input ({call.name}), which differ between members, to decide what to do."
    )


# --- the first layer's weights -----------------------------------------------------------------------------------


def _with_first_weights(call: _Call) -> Any:
    """The first layer where inputs meet weights; before, what the layer makes of its weights."""
    if call.of_kind(INPUT, OWN):
        return _summed(call)
    if (
        call.name in _BIAS_AT
    ):  # on data that all members share: the layer is used again, or on something made like the input
        return call.run(_whole)
    return _derived(call)


def _summed(call: _Call) -> Tensor:
    """sum_j f(x_j, W_j), and the bias once."""
    if call.name not in _BIAS_AT:
        raise ConversionError(
            f"the first layer is no linear function of its input and its weights: it uses them in {call.name}."
        )
    if call.of_kind(OWN):
        raise ConversionError("the first layer is used again behind the head.")
    _, options = tree_unflatten(call.leaves, call.structure)
    if options.get("max_norm") is not None:
        raise ConversionError("the first layer changes its weights while it runs (max_norm).")
    total = call.run(lambda leaf: leaf.each[0])
    unbiased = _without_bias(call)
    for j in range(1, call.count):
        total = total + unbiased.run(lambda leaf, j=j: leaf.each[j])  # type: ignore[misc]
    return total


def _without_bias(call: _Call) -> _Call:
    args, kwargs = tree_unflatten(call.leaves, call.structure)
    place = _BIAS_AT[call.name]
    if place is not None and len(args) > place:
        args = (*args[:place], None, *args[place + 1 :])
    elif place is not None:
        kwargs = {**kwargs, "bias": None}
    return _Call(call.function, args, kwargs)


def _whole(leaf: Several) -> Tensor:
    """What acts where all inputs are the same: of weights the sum, of what is alike any."""
    if leaf.kind != STEM:
        return leaf.each[0]
    return torch.stack(leaf.each).sum(0)


def _derived(call: _Call) -> Any:
    """Weights V_j that the layer makes of its weights W_j, such as standardised ones.

    The layer's own function g is applied to the sum W, which is what a member uses, and slots differ by its derivative:
    V_j = g(W) / M + Dg(W)(W_j - W / M). So the V_j sum to g(W) whatever g is, and where g is linear V_j is g(W_j).
    """
    if call.target is not None:
        raise ConversionError(f"the first layer changes its weights while it runs ({call.name}).")
    stems = call.of_kind(STEM)
    wholes = [_whole(leaf) for leaf in stems]

    plain = _Call(_DIFFERENTIABLE.get(call.name, call.function), *tree_unflatten(call.leaves, call.structure))

    def of(*weights: Tensor) -> Any:
        given = dict(zip(map(id, stems), weights, strict=True))
        return plain.run(lambda leaf: given[id(leaf)] if id(leaf) in given else leaf.each[0])

    result = of(*wholes)
    leaves, _ = tree_flatten(result)
    if not all(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in leaves):
        return result
    slots = []
    for j in range(call.count):
        deviations = [leaf.each[j] - whole / call.count for leaf, whole in zip(stems, wholes, strict=True)]
        change = _derivative(of, wholes, deviations)
        slots.append(tree_map(lambda value, by: value / call.count + by, result, change))
    flat = [tree_flatten(slot)[0] for slot in slots]
    found = [Several(each, STEM) for each in zip(*flat, strict=True)]
    return tree_unflatten(found, tree_flatten(result)[1])


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    return v * (g / torch.norm_except_dim(v, 2, dim))


# Fused functions that have no derivative of the kind that `_derivative` takes, written out.
_DIFFERENTIABLE: dict[str, Callable[..., Any]] = {"_weight_norm": _weight_norm}


def _derivative(function: Callable[..., Any], at: list[Tensor], along: list[Tensor]) -> Any:
    with warnings.catch_warnings():
        # what torch loads for its first derivative of this kind warns that it is written in an old way
        warnings.simplefilter("ignore", DeprecationWarning)
        return jvp(function, tuple(at), tuple(along))[1]
