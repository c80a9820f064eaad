"""Every private part of PyTorch that surgery leans on, each behind one function.

PyTorch promises to keep its public names. Symbolic sizes, fake tensors and the classes behind its layers are not among
them, so they may move with any release. Nothing else in this package names them: when PyTorch changes, this file is
what has to follow, and until it does, users get a `TorchChangedError` that says which part is missing.

Imports stand inside the functions. That keeps sympy out of `import covey`, and a missing part hurts only those
who need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from covey.surgery.errors import TorchChangedError

if TYPE_CHECKING:
    from torch.nn.modules.batchnorm import _NormBase
    from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
    from torch.nn.modules.dropout import _DropoutNd
    from torch.nn.modules.instancenorm import _InstanceNorm

Run = Callable[..., Any]
Observe = Callable[[str, tuple, dict[str, Any], Run], Any]


@contextmanager
def _hook(name: str, purpose: str) -> Iterator[None]:
    """Report what goes wrong inside as a change of PyTorch: a part that is gone, or is called in another way."""
    try:
        yield
    except (ImportError, AttributeError, TypeError) as problem:
        raise TorchChangedError(name, purpose) from problem


# --- nested inputs and outputs -----------------------------------------------------------------------------------


def leaves(tree: Any) -> list[Any]:
    """What nested tuples, lists, dicts and model outputs hold, in order."""
    with _hook("torch.utils._pytree.tree_leaves", "look into nested inputs and outputs"):
        from torch.utils._pytree import tree_leaves
    return tree_leaves(tree)


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The same nesting with `function` applied to each leaf (and to the leaves of `others` in the same place)."""
    with _hook("torch.utils._pytree.tree_map", "change nested inputs and outputs"):
        from torch.utils._pytree import tree_map
    return tree_map(function, tree, *others)


# --- running a network without numbers ----------------------------------------------------------------------------


def fake_tensors() -> AbstractContextManager[Any]:
    """A context in which tensors have sizes but no content."""
    with _hook("torch._subclasses.fake_tensor.FakeTensorMode", "run a network on sizes alone"):
        from torch._subclasses.fake_tensor import FakeTensorMode

        return FakeTensorMode(allow_non_fake_inputs=True)


def needs_values(problem: BaseException) -> bool:
    """Whether a network failed because it decides by what its tensors hold, and they hold nothing."""
    with _hook(
        "torch._subclasses.fake_tensor.DataDependentOutputException", "say why a network cannot be followed"
    ):
        from torch._subclasses import fake_tensor

        kinds = (fake_tensor.DataDependentOutputException, fake_tensor.DynamicOutputShapeException)
    return isinstance(problem, kinds)


def grouped_products() -> list[Callable]:
    """Functions that multiply each group of rows by a matrix of its own, under the names that this PyTorch has."""
    names = [(torch.nn.functional, "grouped_mm"), (torch, "_grouped_mm")]
    found = [getattr(place, name, None) for place, name in names]
    return [function for function in found if function is not None]


@contextmanager
def plain_attention() -> Iterator[None]:
    """A context in which nn.MultiheadAttention and encoder layers run their Python code, not one fused kernel."""
    with _hook("torch.backends.mha.set_fastpath_enabled", "see what happens inside attention layers"):
        was_enabled = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


@contextmanager
def unchecked_distributions() -> Iterator[None]:
    """A context in which distributions take their parameters as they are: there are no values to check."""
    with _hook("torch.distributions.Distribution._validate_args", "run distributions on sizes alone"):
        kind = torch.distributions.Distribution
        was_checked = kind._validate_args
    kind.set_default_validate_args(False)
    try:
        yield
    finally:
        kind.set_default_validate_args(was_checked)


def watch_operators(observe: Observe) -> AbstractContextManager[Any]:
    """A context in which every operator that PyTorch runs goes through `observe`.

    Args:
        observe: called with the operator's name ("aten.mm"), its arguments by position and by keyword, and a
            function that runs it, on other arguments if it is given some; what it returns is the operator's result.
    """
    with _hook("torch.utils._python_dispatch.TorchDispatchMode", "see every operation that is run"):
        from torch.utils._python_dispatch import TorchDispatchMode

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            func: Any,
            types: Sequence[type],
            args: tuple = (),
            kwargs: dict | None = None,
        ) -> Any:
            named = kwargs or {}

            def run(*others: Any) -> Any:
                return func(*(others or args), **named)

            return observe(str(func.overloadpacket), args, named, run)

    return Watching()


def require_operators(names: Iterable[str]) -> None:
    """Check that PyTorch still has these operators ("aten.mm"): a rule for one that is gone would never be used."""
    for name in names:
        with _hook(f"torch.ops.{name}", "know what an operation does to sizes"):
            getattr(torch.ops.aten, name.removeprefix("aten."))


# --- layers ------------------------------------------------------------------------------------------------------


def convolution_class() -> type[_ConvNd]:
    """What all convolutions are, the transposed ones too."""
    with _hook("torch.nn.modules.conv._ConvNd", "tell convolutions from other layers"):
        return nn.modules.conv._ConvNd


def transposed_convolution_class() -> type[_ConvTransposeNd]:
    """What all transposed convolutions are."""
    with _hook("torch.nn.modules.conv._ConvTransposeNd", "tell transposed convolutions from other layers"):
        return nn.modules.conv._ConvTransposeNd


def batch_norm_class() -> type[_NormBase]:
    """What all batch and instance norms are."""
    with _hook("torch.nn.modules.batchnorm._NormBase", "tell batch norms from other layers"):
        return nn.modules.batchnorm._NormBase


def instance_norm_class() -> type[_InstanceNorm]:
    """What all instance norms are."""
    with _hook("torch.nn.modules.instancenorm._InstanceNorm", "tell instance norms from other layers"):
        return nn.modules.instancenorm._InstanceNorm


def dropout_class() -> type[_DropoutNd]:
    """What all dropout layers are."""
    with _hook("torch.nn.modules.dropout._DropoutNd", "tell dropout from other layers"):
        return nn.modules.dropout._DropoutNd


def pooling_classes() -> tuple[type[nn.Module], ...]:
    """What all pooling layers are, fixed and adaptive, maximum and average."""
    with _hook("torch.nn.modules.pooling", "tell pooling from other layers"):
        pooling = nn.modules.pooling
        return (
            pooling._MaxPoolNd,
            pooling._AvgPoolNd,
            pooling._AdaptiveAvgPoolNd,
            pooling._AdaptiveMaxPoolNd,
        )


def has_joint_projection(layer: nn.MultiheadAttention) -> bool:
    """Whether queries, keys and values are projected by one tensor (in_proj_weight) and not by three."""
    with _hook("torch.nn.MultiheadAttention._qkv_same_embed_dim", "read the weights of attention layers"):
        return layer._qkv_same_embed_dim


def names_kept_by_torch(module: nn.Module) -> set[str]:
    """Attributes that PyTorch's own base classes of a module declare, by `__constants__` or annotation."""
    names: set[str] = set()
    for kind in type(module).__mro__:
        if kind.__module__.startswith("torch.nn"):
            names.update(getattr(kind, "__constants__", ()))
            names.update(vars(kind).get("__annotations__", ()))
    return names


# --- tracing -----------------------------------------------------------------------------------------------------


def shapes_of_nodes(traced: fx.GraphModule, inputs: tuple) -> dict[str, Any]:
    """Run a traced network and return what each node's tensor looked like: with a `shape`, or None for other values."""
    with _hook("torch.fx.passes.shape_prop.ShapeProp", "know the shapes inside a network"):
        from torch.fx.passes.shape_prop import ShapeProp

        propagation = ShapeProp(traced)
    propagation.propagate(*inputs)
    shapes: dict[str, Any] = {}
    for node in traced.graph.nodes:
        shapes[node.name] = node.meta.get("tensor_meta")
    return shapes
