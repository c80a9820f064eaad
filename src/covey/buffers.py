"""Where an ensemble keeps its networks' buffers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from covey.errors import ConversionError
from covey.networks.anatomy import Anatomy
from covey.tensors import Tensors


class Buffers(nn.Module):
    """A network's buffers: `shared` ones as they are, the members' `own` with a leading axis M.

    Args:
        body: the network.
        shared: names of the buffers that all members share.
        members: M.
    """

    def __init__(self, body: Anatomy, shared: Collection[str], members: int) -> None:
        super().__init__()
        common: dict[str, Tensor] = {}
        own: dict[str, Tensor] = {}
        for name, tensor in body.network.named_buffers():
            if name in shared:
                common[name] = tensor.detach().clone()
            else:
                own[name] = torch.stack([tensor.detach()] * members)
        self.changing = tuple(name for name in common if name in body.state)
        self.constant = tuple(name for name in common if name not in body.state)
        self.shared, self.own = Tensors(common), Tensors(own)

    def member(self, k: int) -> dict[str, Tensor]:
        """Member k's buffers by name; views, so that what changes in place changes here."""
        return {**dict(self.shared.items()), **{name: tensor[k] for name, tensor in self.own.items()}}

    def copies(self) -> dict[str, Tensor]:
        """Copies of the shared buffers that training changes, for one member to start a step from."""
        return {name: self.shared[name].clone() for name in self.changing}

    def watched(self, tensors: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, int]]:
        """What a call is given as constants, each with how often it was changed in place; for `check_constants`."""
        if torch.compiler.is_compiling():
            return {}
        found = {}
        for name in self.constant:
            tensor = tensors[name]
            found[name] = tensor, -1 if tensor.is_inference() else tensor._version
        return found

    def check_constants(self, before: Mapping[str, tuple[Tensor, int]], after: Mapping[str, Tensor]) -> None:
        """Refuse a call that changed what never changed when conversion looked: all members have it in common."""
        for name, (tensor, version) in before.items():
            changed = version >= 0 and tensor._version != version
            if changed or after[name] is not tensor:
                leaf = name.rpartition(".")[2]
                raise ConversionError(
                    f"this call changed the buffer {name!r}, which the calls that convert() tried did not, as one that "
                    "starts late or now and then. So it was taken for a constant that all members have in common, and "
                    f"they would meet in it. Let every call write it (`self.{leaf}.add_(0)` is enough where it stays "
                    "as it is), or convert the network when its next call changes it."
                )

    @torch.no_grad()
    def write(self, k: int, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
        """Take over member k's own buffers where the network put new tensors in their place."""
        for name, tensor in self.own.items():
            if after[name] is not before[name]:
                tensor[k].copy_(after[name])

    @torch.no_grad()
    def set_own(self, networks: Sequence[nn.Module]) -> None:
        """Set each member's own buffers to those of its network."""
        for k, network in enumerate(networks):
            new = dict(network.named_buffers())
            for name, tensor in self.own.items():
                tensor[k].copy_(new[name])

    @torch.no_grad()
    def merge(self, copies: Sequence[Mapping[str, Tensor]]) -> None:
        """Set shared buffers from the members' copies after a step: floats to their mean, others to the first."""
        for name in self.changing:
            values = torch.stack([copy[name] for copy in copies])
            self.shared[name].copy_(values.mean(0) if values.is_floating_point() else values[0])
