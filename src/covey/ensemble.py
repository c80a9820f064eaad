"""The waist of covey: what an ensemble of networks can do.

An `Ensemble` is a hollow network (the skeleton), the parameterizations that generate its parameters for each member,
and its buffers. Nothing here knows any method or architecture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from covey import run as runs
from covey.calibration import Conformal, Temperature
from covey.combine import Prediction, Regression, answer
from covey.coverage import Coverage
from covey.errors import OptionError
from covey.method import About, Method
from covey.networks.anatomy import Anatomy, pick
from covey.networks.layers import fill, hollow, slots
from covey.networks.modes import modes_kept
from covey.parameterization import Group, Parameterization
from covey.tensors import Buffers

if TYPE_CHECKING:
    from covey.scores.anytime import Anytime


__all__ = ["About", "Ensemble", "Group", "Method", "Parameterization"]


class Ensemble(nn.Module):
    """M networks that share what their method lets them share.

    Args:
        method: the options it was built with.
        bodies: the network, or M networks where members differ in shape.
        parts: parameterizations by name, which together generate every parameter.
    """

    parts: Mapping[str, Parameterization]  # module containers at run time
    state: Sequence[Buffers]

    def __init__(
        self, method: Method, bodies: Sequence[Anatomy], parts: Mapping[str, Parameterization]
    ) -> None:
        super().__init__()
        self.method = method
        self.members = method.members
        self.parts = cast(Mapping[str, Parameterization], nn.ModuleDict(parts))
        self._skeletons = tuple(hollow(body.network) for body in bodies)  # a tuple hides them from nn.Module
        self._slots = tuple(slots(skeleton) for skeleton in self._skeletons)
        varying = [name for part in parts.values() if part.varies for name in part.names]
        counts = [self.members] if len(bodies) == 1 else [1] * len(bodies)
        stores = [Buffers(b, b.shared_buffers(varying), n) for b, n in zip(bodies, counts, strict=True)]
        self.state = cast(Sequence[Buffers], nn.ModuleList(stores))
        self.records = [body.record() for body in bodies]
        extra = {key: value for body in bodies for key, value in body.extra.items()}
        self.about = About(output=bodies[0].output, extra=extra)
        self.temperature: Temperature | None = None
        self.conformal: Conformal | None = None
        self.runs = {"train": "auto", "eval": "auto"}
        self.memory_format = torch.contiguous_format
        self.train(bodies[0].network.training)

    # --- running -----------------------------------------------------------------------------------------

    def forward(
        self, *args: Any, members: Sequence[int] | None = None, per_member: bool = False, **kwargs: Any
    ) -> Tensor:
        """Members' outputs, (M, B, ...).

        Args:
            *args: what one network takes; with `per_member`, every tensor has a leading axis M.
            members: run only these, in this order; all by default.
            per_member: whether each member has an input of its own.
            **kwargs: likewise.
        """
        chosen = range(self.members) if members is None else [self._checked(k) for k in members]
        inputs = runs.Inputs(args, kwargs, len(chosen) if per_member else None, self.memory_format)
        return runs.run(self, chosen, inputs)

    def predict(self, *args: Any, **kwargs: Any) -> Prediction | Regression:
        """The combined answer and its uncertainty, in eval mode and without gradients.

        Takes what one network takes. Returns a `Prediction`, or a `Regression` where the task is one. If they are set,
        `temperature` calibrates the probabilities and `conformal` gives sets of classes.
        """
        with self.evaluating(), torch.no_grad():
            return self.answer(self(*args, **kwargs))

    def answer(self, outputs: Tensor) -> Prediction | Regression:
        """Members' outputs, (M, B, ...), as the combined answer and its uncertainty."""
        about = self.about
        return answer(outputs, about.task, about.class_dim, self.temperature, self.conformal)

    @property
    def run(self) -> str:
        """How members are run in the present mode: "loop", "batched", or "auto" until that was measured."""
        return self.runs["train" if self.training else "eval"]

    @run.setter
    def run(self, choice: str) -> None:
        if choice not in ("auto", *runs.RUNS):
            raise OptionError(f"run is one of 'auto', 'loop', 'batched'; got {choice!r}.")
        self.runs = {"train": choice, "eval": choice}

    # --- members -----------------------------------------------------------------------------------------

    def skeleton(self, k: int = 0) -> nn.Module:
        """Member k's network without its tensors."""
        return self._skeletons[k if len(self._skeletons) > 1 else 0]

    def call(self, k: int, tensors: dict[str, Tensor], args: tuple, kwargs: dict[str, Any]) -> Tensor:
        """Run member k's skeleton with these tensors; those that the network replaces are replaced in `tensors`."""
        index = k if len(self._skeletons) > 1 else 0
        given = {place: tensors[name] for place, name in self._slots[index].items()}
        # every place is given, and once: torch's own handling of ties would leave tensors behind in modules used twice
        result = functional_call(self._skeletons[index], given, args, kwargs, tie_weights=False)
        tensors.update({name: given[place] for place, name in self._slots[index].items()})
        return pick(result, self.about.output)

    def buffers_of(self, k: int) -> tuple[Buffers, int]:
        """Where member k's buffers are: the store and the row."""
        return (self.state[k], 0) if len(self.state) > 1 else (self.state[0], k)

    def tensors(self, k: int) -> dict[str, Tensor]:
        """Member k's parameters by name, as its parameterizations generate them."""
        return {name: tensor for part in self.parts.values() for name, tensor in part.member(k).items()}

    def member(self, k: int) -> nn.Module:
        """Member k as a plain network of its own: plain layers, copies of its tensors, no need of covey."""
        buffers, row = self.buffers_of(self._checked(k))
        with torch.no_grad():
            return fill(self.skeleton(k), {**self.tensors(k), **buffers.member(row)})

    def anytime(self, inputs: Any, targets: Tensor, *, score: str = "accuracy", batch: int = 64) -> Anytime:
        """What every subset of members costs and scores on held-out data, and answers within a budget of time."""
        from covey.scores.anytime import anytime

        return anytime(self, inputs, targets, score=score, batch=batch)

    @property
    def alike(self) -> bool:
        """Whether all members have equal tensors now, as copies without noise do before training."""
        if len(self._skeletons) > 1:
            return False
        with torch.no_grad():
            first, *others = (self.tensors(k) for k in range(self.members))
            return all(torch.equal(first[name], other[name]) for other in others for name in first)

    def collapse(self) -> nn.Module:
        """One plain network by averaging the members' weights, where the method allows it."""
        from covey.collapse import collapse

        return collapse(self)

    # --- the usual duties of a module ----------------------------------------------------------------------

    def param_groups(self, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Parameter groups for any torch optimiser; frozen parameters are left out.

        Members' groups have `members=True`.
        """
        found: list[dict[str, Any]] = []
        for label, part in self.parts.items():
            for group in part.groups():
                parameters = [p for p in group.parameters if p.requires_grad]
                if parameters:
                    found.append(
                        dict(
                            params=parameters,
                            lr=lr * group.lr,
                            weight_decay=weight_decay * group.decay,
                            name=label,
                            members=group.kind == "member",
                        )
                    )
        return found

    @property
    def coverage(self) -> Coverage:
        """What became of every tensor of the network, as a table."""
        return Coverage.of(self)

    def train(self, mode: bool = True) -> Ensemble:
        """Set train or eval mode, as on any module."""
        super().train(mode)
        for skeleton in self._skeletons:
            skeleton.train(mode)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Ensemble:
        """As on any module. A `memory_format` is kept as a flag that converts inputs; weights stay as they are."""
        self.memory_format = kwargs.pop("memory_format", self.memory_format)
        return super().to(*args, **kwargs) if args or kwargs else self

    def save(self, folder: str | Path) -> None:
        """Write the ensemble to a folder, atomically: tensors as safetensors, the rest as JSON, no pickle."""
        from covey.store import save

        save(self, folder)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Eval mode for a while; afterwards every module is in the mode it was in."""
        with modes_kept(self, *self._skeletons):
            self.eval()
            yield

    def _checked(self, k: int) -> int:
        if not 0 <= k < self.members:
            raise OptionError(f"member {k} was asked for; this ensemble has members 0 to {self.members - 1}.")
        return k
