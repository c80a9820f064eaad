"""What an answer costs: parameters, multiply-adds, memory and time, also as ratios to simpler choices."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import partial
from statistics import median, quantiles
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.weak import WeakIdKeyDictionary

from covey import accelerators
from covey.errors import EvaluationError
from covey.options import check_whole

from .model import evaluated_model

Clock = Literal["wall", "cpu"]
RATIOS = ("stored", "multiply_adds", "latency")
"""Costs of which a deep ensemble has M times a single network's."""


@dataclass(frozen=True)
class Cost:
    """The cost of one network or ensemble on one batch.

    Args:
        members: how many members answer.
        trainable: parameters that training changes.
        stored: values in all parameters and buffers.
        multiply_adds: of one sample's answer, all members together.
        weight_bytes: bytes of all parameters and buffers.
        peak_bytes: most memory in tensors alive at once during an answer, weights included, with members one after
            another. Other ways of running take more, and which one an ensemble takes is chosen by time.
        latency: median seconds for the batch.
        spread: seconds between the first and third quartile.
        batch: samples in the batch.
        threads: torch threads used.
        training_seconds: how long training took, if known.
        clock: what latency was measured by, "wall" or "cpu".
    """

    members: int
    trainable: int
    stored: int
    multiply_adds: int
    weight_bytes: int
    peak_bytes: int
    latency: float
    spread: float
    batch: int
    threads: int
    training_seconds: float | None = None
    clock: Clock = "wall"

    @property
    def throughput(self) -> float:
        """Samples answered in a second."""
        return self.batch / self.latency

    def ratios(self, single: Cost) -> dict[str, dict[str, float]]:
        """Each cost over the single network's, and over a deep ensemble's of as many members.

        The deep ensemble's members answer one after another, so its memory is M times the weights and one
        network's activations.
        """
        result = {}
        for name in RATIOS:
            one = getattr(single, name)
            if one:
                result[name] = _over(getattr(self, name), one, self.members * one)
        other_weights = (self.members - 1) * single.weight_bytes
        deep_peak = single.peak_bytes + other_weights
        result["peak_bytes"] = _over(self.peak_bytes, single.peak_bytes, deep_peak)
        if self.training_seconds is not None and single.training_seconds:
            one = single.training_seconds
            result["training_seconds"] = _over(self.training_seconds, one, self.members * one)
        return result

    def to_dict(self) -> dict:
        """Plain JSON, the arguments of `Cost`."""
        return asdict(self)

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Cost:
        """From what `to_dict` gave; other keys are left out."""
        return Cost(**{each.name: stored[each.name] for each in fields(Cost) if each.name in stored})


def _over(own: float, single: float, deep_ensemble: float) -> dict[str, float]:
    return {"single": own / single, "deep_ensemble": own / deep_ensemble}


def measure_cost(
    module: nn.Module,
    example: Tensor,
    *,
    repeats: int = 20,
    warmup: int = 3,
    threads: int | None = None,
    training_seconds: float | None = None,
    clock: Clock = "wall",
) -> Cost:
    """Measure a network or an ensemble on a batch `example` (B, ...), here and now, in eval mode.

    Args:
        module: what answers.
        example: the batch.
        repeats: measured calls.
        warmup: calls before those.
        threads: torch threads to use; as they are by default.
        training_seconds: kept with the result.
        clock: "wall" for the time that passes; "cpu" for the process's own, which other work on the machine does not
            lengthen. It needs `threads=1`, where both agree on an idle machine.
    """
    if not len(example):
        raise EvaluationError("example: expected a batch of one sample or more, got an empty one")
    if clock == "cpu" and threads != 1:
        raise EvaluationError(f"clock='cpu' adds up threads, so it needs threads=1, got threads={threads}")
    model = evaluated_model(module)
    with model.evaluating(), using_threads(threads) as used, torch.inference_mode():
        module(
            example
        )  # here an ensemble chooses how to run, on the batch and with the kernels that are timed
        adds = multiply_adds(module, example[:1])
        with model.one_by_one():
            peak = peak_bytes(module, example)
        seconds = timings(lambda: module(example), repeats=repeats, warmup=warmup, clock=clock)
    quarter, _, three_quarters = quantiles(seconds, n=4)
    tensors = _stored_tensors(module)
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return Cost(
        members=model.members,
        trainable=_total(Tensor.numel, trainable),
        stored=_total(Tensor.numel, tensors),
        multiply_adds=adds,
        weight_bytes=stored_bytes(module),
        peak_bytes=peak,
        latency=median(seconds),
        spread=three_quarters - quarter,
        batch=len(example),
        threads=used,
        training_seconds=training_seconds,
        clock=clock,
    )


def multiply_adds(module: nn.Module, example: Tensor, *, call: Callable[[], Any] | None = None) -> int:
    """Multiply-adds of `module(example)`, or of `call`, in matrix products, convolutions and attention.

    Fused kernels that the counter cannot see into (recurrent layers, attention) are replaced by plain ones.
    """
    run = partial(module, example) if call is None else call
    counter = FlopCounterMode(display=False)
    with evaluated_model(module).evaluating(), torch.no_grad(), _plain_kernels():
        run()  # an ensemble's first call may try several ways to run, which must not count
        with counter:
            run()
    return counter.get_total_flops() // 2


def peak_bytes(module: nn.Module, example: Tensor, *, call: Callable[[], Any] | None = None) -> int:
    """Most bytes in tensors alive at once while `module(example)` or `call` runs.

    Weights, input and activations count; scratch space inside kernels is not seen. On a GPU, the allocator's
    own count is the better number.
    """
    known = {}  # bytes by address, so that tensors which share a storage count once
    for tensor in [*_stored_tensors(module), example]:
        storage = tensor.untyped_storage()
        known[storage.data_ptr()] = storage.nbytes()
    with _AliveBytes(set(known)) as alive:
        result = module(example) if call is None else call()
    del result
    return sum(known.values()) + alive.peak


def timings(
    call: Callable[[], Any], *, repeats: int = 20, warmup: int = 3, clock: Clock = "wall"
) -> list[float]:
    """Seconds of each of `repeats` calls after `warmup` unmeasured ones."""
    if repeats < 2:
        raise EvaluationError(f"repeats: expected 2 or more for a median and a spread, got {repeats}")
    now = time.perf_counter if clock == "wall" else time.process_time
    for _ in range(warmup):
        call()
    _wait_for_accelerator()
    seconds = []
    for _ in range(repeats):
        start = now()
        call()
        _wait_for_accelerator()
        seconds.append(now() - start)
    return seconds


def _wait_for_accelerator() -> None:
    """Calls of an accelerator return before it is done."""
    if accelerators.is_available():
        accelerators.synchronize()


def _stored_tensors(module: nn.Module) -> list[Tensor]:
    """All parameters and buffers; shared ones once."""
    return [*module.parameters(), *module.buffers()]


def stored_bytes(module: nn.Module) -> int:
    """Bytes of all parameters and buffers; shared ones once."""
    return _total(_bytes, _stored_tensors(module))


def _total(size: Callable[[Tensor], int], tensors: Iterable[Tensor]) -> int:
    return sum(map(size, tensors))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _AliveBytes(TorchDispatchMode):
    """Counts the bytes of storages made while it is on, and forgets each when it dies."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.known = known
        self.now = 0
        self.peak = 0
        self.seen = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._count(tensor)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self.seen or storage.data_ptr() in self.known:
            return
        size = storage.nbytes()
        self.seen[storage] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, size)

    def _forget(self, size: int) -> None:
        self.now -= size


@contextlib.contextmanager
def _plain_kernels() -> Iterator[None]:
    fast_path = torch.backends.mha.get_fastpath_enabled()
    # Not `mkldnn.flags(enabled=False)`: it sets TF32 too, which warns on builds for the CPU.
    fused = bool(torch.backends.mkldnn.enabled)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            yield
    finally:
        torch.backends.mkldnn.enabled = fused  # type: ignore[assignment]
        torch.backends.mha.set_fastpath_enabled(fast_path)


@contextlib.contextmanager
def using_threads(count: int | None) -> Iterator[int]:
    """So many threads of torch for a while, or as many as there are; how many that is."""
    before = torch.get_num_threads()
    if count is not None:
        check_whole("threads", count)
        torch.set_num_threads(count)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
