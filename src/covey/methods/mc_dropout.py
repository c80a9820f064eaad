"""MC-dropout: members are the same network with dropout on, each with random numbers of its own.

    y_k = f(x; theta, z_k)        z_k the dropout masks, drawn anew in every forward pass

Gal and Ghahramani (2016). Stores P numbers, as the network does. At test, whatever is random in train mode stays
random (dropout as a module or a function, inside attention and LSTMs, stochastic depth), while layers with running
statistics answer as in eval mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from covey.ensemble import Ensemble, Method
from covey.errors import ConversionError, OptionError, suggest
from covey.networks.anatomy import Anatomy, examine
from covey.networks.layers import owner_of
from covey.parts.plain import assemble


@dataclass(frozen=True, kw_only=True)
class MCDropout(Method):
    """Random members.

    Args:
        members: how many draws a prediction averages over.
        p: dropout probability; None keeps the network's own.
        after: paths of modules to put a dropout layer behind, for a network that has none.
    """

    members: int = 10
    p: float | None = None
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p is not None and not 0 < self.p < 1:
            raise OptionError(f"p is a probability between 0 and 1; got {self.p}.")
        if self.after and self.p is None:
            raise OptionError("after= puts dropout into the network and needs p=, its probability.")

    def build(self, bodies: Sequence[Anatomy]) -> Ensemble:
        """One network whose dropout stays on."""
        body = self._with_dropout(bodies[0])
        layers = [m for m in body.network.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
        if not body.random and not (body.random is None and any(layer.p > 0 for layer in layers)):
            raise ConversionError(
                "MC-dropout needs a network that draws random numbers in train mode, and this one does not. Name the "
                "modules to put dropout behind, such as MCDropout(p=0.2, after=('layer1.0.conv1',)), or set the "
                "probability of the dropout layers it has with p=."
            )
        bodies[0].random = True  # also where the dropout was put in just now
        body.shared = frozenset(name for name, _ in body.network.named_buffers())
        return assemble(self, body, {}, kind=DropoutEnsemble)

    def _with_dropout(self, body: Anatomy) -> Anatomy:
        if self.p is None:
            return body
        for layer in body.network.modules():
            if isinstance(layer, nn.modules.dropout._DropoutNd):
                layer.p = self.p
        paths = dict(body.network.named_modules())
        for path in self.after:
            if path not in paths or not path:
                raise ConversionError(f"after={path!r} is no module of the network{suggest(path, paths)}.")
            parent = body.network.get_submodule(path.rpartition(".")[0])
            setattr(parent, path.rpartition(".")[2], nn.Sequential(paths[path], nn.Dropout(self.p)))
        if body.example is None:
            body.random = True if self.after else body.random
            return body
        args, kwargs = body.example
        edited = examine(body.network, example=kwargs if kwargs else args, output=body.output)
        edited.given = body.given
        return edited


class DropoutEnsemble(Ensemble):
    """An ensemble whose skeleton stays in train mode, but for layers that keep running statistics."""

    def train(self, mode: bool = True) -> DropoutEnsemble:
        """Set train or eval mode; what is random stays random in both."""
        super().train(mode)
        for skeleton in self._skeletons:
            skeleton.train()
            if not mode:
                for name in self.state[0].changing:
                    skeleton.get_submodule(owner_of(name)).eval()
        return self

    def collapse(self) -> nn.Module:
        """The network itself, which answers without dropout in eval mode."""
        return self.member(0)
