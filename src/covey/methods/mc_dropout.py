"""MC-dropout: members are the same network with dropout on, each with random numbers of its own.

    y_k = f(x; theta, z_k)        z_k the dropout masks, drawn anew in every forward pass

Gal and Ghahramani (2016). Stores P parameters, as the network does. At test, whatever is random in train mode stays
random (dropout as a module or a function, inside attention and LSTMs, stochastic depth), while layers with running
statistics answer as in eval mode.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError, suggest
from covey.layout import Layout
from covey.method import Method, Share
from covey.networks.anatomy import Anatomy, examine
from covey.networks.calls import pick
from covey.networks.layers import owner_of
from covey.parts.plain import assemble
from covey.seeds import random_state_kept

_Dropout = nn.modules.dropout._DropoutNd


_TRIES = 8  # of a network whose random numbers decide what is run


@dataclass(frozen=True, kw_only=True)
class MCDropout(Method):
    """Members are one network with its dropout left on at test; nothing to train differently, M passes to predict.

    Args:
        members: how many draws a prediction averages over.
        p: dropout probability; None keeps the network's own.
        after: paths of modules to put a dropout layer behind, for a network that has none.
    """

    own_batches = True  # other minibatches for other draws would only be more minibatches

    members: int = 10
    p: float | None = None
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p is not None and not 0 < self.p < 1:
            raise OptionError(f"p is a probability between 0 and 1; got {self.p}.")
        if self.after and self.p is None:
            raise OptionError("after= puts dropout into the network and needs p=, its probability.")

    def design(self, bodies: Sequence[Anatomy]) -> Layout:
        """Nothing is the members' own, so all buffers are shared; but the network must be random."""
        (body,) = bodies
        network = self._with_dropout(body.network)
        if not self._is_random(body, network):
            raise ConversionError(
                "MC-dropout needs a network that draws random numbers in train mode, and this one does not. Name the "
                "modules to put dropout behind, such as MCDropout(p=0.2, after=('layer1.0.conv1',)), or set the "
                "probability of the dropout layers it has with p=."
            )
        if network is body.network and _draws_for_nothing(body):
            raise ConversionError(
                "the network draws random numbers in train mode, but its answer is the same whatever they are, as "
                "where layers are dropped with probability 0. Set a probability above 0 in the network, or name the "
                "modules to put dropout behind, such as MCDropout(p=0.2, after=('layer1.0.conv1',))."
            )
        return Layout(shared_buffers=(tuple(name for name, _ in network.named_buffers()),))

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """One network whose dropout stays on."""
        (body,) = bodies
        network = self._with_dropout(body.network)
        # behind a module that dropout was put, its tensors have longer names
        state = frozenset(_renamed(name, self.after) for name in body.state)
        rewrites = tuple(_renamed(name, self.after) for name in body.rewrites)
        edited = replace(body, network=network, state=state, rewrites=rewrites)
        return assemble(self, [edited], layout, {}, kind=DropoutEnsemble)

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """P."""
        return sum(tensor.numel() for tensor in bodies[0].network.parameters())

    @property
    def collapses(self) -> bool:
        """To the network itself."""
        return True

    @property
    def allows_equal_members(self) -> bool:
        """Random numbers tell members apart."""
        return True

    @property
    def training_passes(self) -> float:
        """Training runs one draw for each minibatch."""
        return 1.0

    def share_out(self, layout: Layout, samples: int, generator: torch.Generator | None = None) -> Share:
        """One draw trains on the minibatch; further ones would be the same network with other random numbers."""
        return Share((0,))

    @property
    def late_start(self) -> Literal["widen", "convert"]:
        """A trained network is asked with its dropout on."""
        return "convert"

    def _with_dropout(self, network: nn.Module) -> nn.Module:
        """A copy with the dropout that the options ask for; the network itself if they ask for none."""
        if self.p is None:
            return network
        network = copy.deepcopy(network)
        for layer in network.modules():
            if isinstance(layer, _Dropout):
                layer.p = self.p
        paths = dict(network.named_modules())
        for path in self.after:
            if path not in paths or not path:
                raise ConversionError(f"after={path!r} is no module of the network{suggest(path, paths)}.")
            above, _, leaf = path.rpartition(".")
            setattr(network.get_submodule(above), leaf, nn.Sequential(paths[path], nn.Dropout(self.p)))
        return network

    def _is_random(self, body: Anatomy, network: nn.Module) -> bool:
        """Whether a training pass draws random numbers: tried where there is an example, else told by its layers."""
        if network is body.network and body.random is not None:
            return body.random
        if body.example is not None:
            args, kwargs = body.example
            return bool(examine(network, example=kwargs or args, output=body.output).random)
        return any(isinstance(layer, _Dropout) and layer.p > 0 for layer in network.modules())


def _draws_for_nothing(body: Anatomy) -> bool:
    """Whether no random number goes into the answer, and none decides on the way to it, as far as a few tries tell."""
    if body.trace is None or body.example is None or body.trace.answers_by_chance:
        return False
    answers = []
    for seed in range(_TRIES):
        twin = copy.deepcopy(body.network).train()
        args, kwargs = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, body.example)
        try:
            with torch.no_grad(), random_state_kept(twin, seed=seed):
                answers.append(pick(twin(*args, **kwargs), body.output))
        except Exception:  # such as BatchNorm on one sample
            return False
    return all(torch.equal(answers[0], other) for other in answers[1:])


class DropoutEnsemble(Ensemble):
    """An ensemble whose skeleton stays in train mode, but for layers that keep running statistics."""

    def train(self, mode: bool = True) -> DropoutEnsemble:
        """Set train or eval mode; what is random stays random in both."""
        super().train(mode)
        skeleton = self.skeleton()
        skeleton.train()
        if not mode:
            for name in self.state[0].changing:
                skeleton.get_submodule(owner_of(name)).eval()
        return self

    def collapse(self) -> nn.Module:
        """The network itself, which answers without dropout in eval mode."""
        return self.member(0)


def _renamed(name: str, after: Sequence[str]) -> str:
    for path in after:
        if name.startswith(f"{path}."):
            return f"{path}.0.{name.removeprefix(f'{path}.')}"
    return name
