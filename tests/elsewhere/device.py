"""A device that is not the CPU, for machines that have nothing else.

Tensors on it hold their numbers in the CPU's memory, so results are the CPU's to the last bit. But torch takes them for
tensors of an accelerator: `tensor.device` says so, and whatever CUDA refuses is refused here, with the operator's name.
The device draws random numbers of its own, as every accelerator does.

torch starts its autograd threads at a process's first backward pass and asks then which devices there are. So this
module must be imported before, which is why everything that needs it runs in processes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "elsewhere"
CPU = torch.device("cpu")
ATEN = torch.ops.aten

# Operators that move numbers between devices.
MOVES = {ATEN.copy_.default, ATEN._to_copy.default}
# Operators for which CUDA takes indices from the CPU.
INDEXES = {
    ATEN.index.Tensor,
    ATEN.index_put.default,
    ATEN.index_put_.default,
    ATEN._index_put_impl_.default,
    ATEN._unsafe_index.Tensor,
}
# Operators that refuse even a single number from the CPU.
STRICT = {ATEN.cat.default, ATEN.stack.default}


class WrongDeviceError(RuntimeError):
    """Tensors of two devices met."""


class Module:
    """What torch asks of `torch.elsewhere`."""

    def __init__(self) -> None:
        self.generator = torch.Generator()
        self.waits = 0  # how often somebody waited until the device had done its work

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        self.generator.set_state(state)

    def synchronize(self, device: Any = None) -> None:
        self.waits += 1

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


MODULE = Module()
_setup_privateuseone_for_python_backend(NAME, backend_module=MODULE)
torch.accelerator.synchronize = MODULE.synchronize  # a device made in Python cannot be asked by torch itself
DEVICE = torch.device(NAME, 0)


class There(Tensor):
    """A tensor on the device; `numbers` is its twin in the CPU's memory."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> There:
        made = Tensor._make_wrapper_subclass(
            cls,
            numbers.size(),
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
        )
        made.numbers = numbers
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    # with these two, `module.to(device)` keeps parameters the same objects, as it does on CUDA
    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], meta: None, size: Any, stride: Any) -> There:
        return There(inner["numbers"])

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.numbers.numpy(force=True)
        raise TypeError("can't convert a tensor of elsewhere to numpy; use Tensor.cpu() first")

    # what torch does not do for subclasses, and does for tensors of CUDA
    def tolist(self) -> Any:
        return self.numbers.tolist()

    def untyped_storage(self) -> Any:
        return self.numbers.untyped_storage()

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    def __format__(self, spec: str) -> str:
        return format(self.numbers, spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"There({self.numbers!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        made = self.detach().clone()
        if type(self) is not There or getattr(self, "_is_param", False):
            made = torch.nn.Parameter(made, self.requires_grad)
        memo[id(self)] = made
        return made


class Elsewhere(TorchDispatchMode):
    """While it is on, tensors can be made on the device and moved to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    leaves = tree_flatten((args, kwargs))[0]
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    there = [tensor for tensor in tensors if isinstance(tensor, There)]
    asked = kwargs.get("device")
    asked = None if asked is None else torch.device(asked)
    goes_there = bool(there) if asked is None else asked.type == NAME
    if not there and not goes_there:
        return func(*args, **kwargs)
    if func in MOVES:
        goes_there = isinstance(args[0], There) if func is ATEN.copy_.default else goes_there
    else:
        _check(func, args, kwargs, tensors)
        _check_generators(func, leaves)
    inner = {**kwargs, "device": CPU} if asked is not None and asked.type == NAME else kwargs
    own_args, own_kwargs = tree_map(_numbers, (args, inner))
    with _own_random_numbers(func):
        found = func(*own_args, **own_kwargs)
    if goes_there:
        found = tree_map(_there, found)
    return return_and_correct_aliasing(func, args, kwargs, found) if there else found


def _check(func: Any, args: tuple, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
    """Refuse what CUDA refuses: tensors of the CPU among its own, but for single numbers and indices."""
    if all(isinstance(tensor, There) for tensor in tensors):
        return
    if func in INDEXES and isinstance(args[0], There):
        values = args[2] if len(args) > 2 else None
        if values is None or isinstance(values, There) or not values.ndim:
            return
    foreign = [tensor for tensor in tensors if not isinstance(tensor, There)]
    written = _written(func, args, kwargs)
    single = all(tensor.ndim == 0 for tensor in foreign) and func not in STRICT
    if single and all(isinstance(tensor, There) for tensor in written):
        return
    met = ", ".join(f"{tuple(tensor.shape)} on {tensor.device}" for tensor in tensors)
    raise WrongDeviceError(f"{func}: {met}")


def _written(func: Any, args: tuple, kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that an operator writes to."""
    found = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]
    return found


def _check_generators(func: Any, leaves: list[Any]) -> None:
    for leaf in leaves:
        if isinstance(leaf, torch.Generator) and leaf.device.type != NAME:
            raise WrongDeviceError(f"{func}: a generator of {leaf.device}")


@contextmanager
def _own_random_numbers(func: Callable) -> Iterator[None]:
    """Draw from the device's stream of random numbers instead of the CPU's."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        yield
        return
    kept = torch.get_rng_state()
    torch.set_rng_state(MODULE.generator.get_state())
    try:
        yield
        MODULE.generator.set_state(torch.get_rng_state())
    finally:
        torch.set_rng_state(kept)


def _numbers(leaf: Any) -> Any:
    return leaf.numbers if isinstance(leaf, There) else leaf


def _there(leaf: Any) -> Any:
    return There(leaf) if isinstance(leaf, Tensor) and not isinstance(leaf, There) else leaf


# torch itself makes indices out of lists, and lists of tensors to numbers, where no mode is asked
_library = torch.library.Library("aten", "IMPL")


def _empty_strided(
    size: Any, stride: Any, *, dtype: Any = None, layout: Any = None, device: Any = None, **_: Any
) -> Tensor:
    return There(torch.empty_strided(size, stride, dtype=dtype))


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    _numbers(target).copy_(_numbers(source))
    return target


_library.impl("empty_strided", _empty_strided, "PrivateUse1")
_library.impl("copy_", _copy, "PrivateUse1")
_library.impl("_local_scalar_dense", lambda tensor: _numbers(tensor).item(), "PrivateUse1")
