"""Weights that are made when their layer runs, dropped after it, and made again for its backward pass.

A member of generated weights otherwise holds all of them until its backward pass is done: as much as the network again,
for each member. Here what autograd would keep of a weight is replaced by a note of how to make it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from covey.errors import TrainingError
from covey.parts.acting import ActingWeight, Layer

Make = Callable[[Sequence[Tensor]], Tensor]
"""Makes a weight of the tensors it is given."""

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class RecomputedWeight(ActingWeight):
    """A weight that a function makes, the same each time.

    Args:
        shape: of the weight.
        sources: the tensors that it is made of, which have its dtype and device.
        make: makes it of them.
    """

    @staticmethod
    def __new__(cls, shape: Sequence[int], sources: Sequence[Tensor], make: Make) -> Any:
        """A tensor of this shape, without memory."""
        like, learns = sources[0], any(source.requires_grad for source in sources)
        return Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=like.dtype, device=like.device, requires_grad=learns
        )

    def __init__(self, shape: Sequence[int], sources: Sequence[Tensor], make: Make) -> None:
        super().__init__()
        self.sources, self.make = sources, make

    def dense(self) -> Tensor:
        """Made now; whoever asks keeps it."""
        return self.make(self.sources)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """As `F.linear`, without keeping the weight."""
        with _not_kept(self._as_used(), self.sources) as weight:
            return F.linear(x, weight, bias)

    def convolution(self, layer: Layer, x: Tensor, bias: Tensor | None = None) -> Any:
        """As the convolution of torch's, without keeping the weight."""
        run = _CONVOLUTIONS[len(layer.stride)]
        with _not_kept(self._as_used(), self.sources) as weight:
            return run(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups)

    def _as_used(self) -> Make:
        """The function that makes it, in autocast's dtype: torch's own cast would be kept."""
        kind, make = self.device.type, self.make
        if not torch.is_autocast_enabled(kind):
            return make
        dtype = torch.get_autocast_dtype(kind)
        return lambda sources: make(sources).to(dtype)


@contextmanager
def _not_kept(make: Make, sources: Sequence[Tensor]) -> Iterator[Tensor]:
    """The weight, for use inside the block; where autograd would keep it, or a view of it, it is made again."""
    weight = make(sources)
    # What they are now: by the time of the backward pass, a module's parameters may be other tensors.
    then = [source.detach() for source in sources]
    versions = _versions(then)
    address, start = weight.untyped_storage().data_ptr(), weight.storage_offset()
    dtype = weight.dtype

    def pack(tensor: Tensor) -> Any:
        if tensor.untyped_storage().data_ptr() != address or tensor.dtype != dtype:
            return tensor
        return tuple(tensor.shape), tensor.stride(), tensor.storage_offset() - start

    def unpack(kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        shape, stride, offset = kept
        if _versions(then) != versions:
            raise TrainingError(
                "recompute=True makes weights again in the backward pass, and what they are made of has changed since "
                "the forward pass. Call backward() before the parameters change, or convert with recompute=False."
            )
        with torch.no_grad():
            again = make(then)
        return again.as_strided(shape, stride, again.storage_offset() + offset)

    with saved_tensors_hooks(pack, unpack):
        yield weight


def _versions(tensors: Sequence[Tensor]) -> list[int | None]:
    """How often each was changed; None for a tensor that does not count."""
    return [None if tensor.is_inference() else tensor._version for tensor in tensors]
