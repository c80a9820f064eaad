"""What a method is, and what a way of training is: everything that the rest of covey asks of them, with its default.

A `Method` says what members are made of. A `Training` says how a run gets to its members. Both are frozen dataclasses
of options in files of their own, and both stand in the registry under a name (`covey.register`). Nothing outside a
method's own file asks which one it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from covey.errors import ConversionError, OptionError
from covey.layout import Layout
from covey.networks.anatomy import Anatomy
from covey.options import check_types

if TYPE_CHECKING:
    from typing_extensions import Self

    from covey.ensemble import Ensemble


@dataclass(frozen=True)
class Share:
    """What some members see of a minibatch.

    Args:
        members: which members run.
        rows: which samples: the same for all of these members, (B,), or each member's own, (len(members), B). None
            stands for the whole minibatch as it is.
    """

    members: tuple[int, ...]
    rows: Tensor | None = None

    @property
    def per_member(self) -> bool:
        """Whether each member sees samples of its own."""
        return self.rows is not None and self.rows.ndim == 2


@dataclass(frozen=True)
class Turn:
    """A moment in training at which a method changes its ensemble.

    Args:
        epoch: how many epochs are done then.
        change: changes the ensemble in place; it is given the inputs and targets of one epoch, in batches. Parameters
            that it replaces start with an empty optimiser state.
        restart: whether the schedule of the learning rate begins again, because all weights are new.
    """

    epoch: int
    change: Callable[[Ensemble, Iterable[tuple[Any, Tensor]]], Any]
    restart: bool = False


@dataclass(frozen=True, kw_only=True)
class Method:
    """Options of a way to make an ensemble out of a network.

    A subclass must say what it decides (`design`) and how it builds (`build`). The rest has defaults that fit a method
    whose members are run one after another on the same minibatch.
    """

    members: int = 4

    several_networks: ClassVar[Literal["no", "may", "must"]] = "no"
    """Whether it takes several networks of different shapes, one per member."""

    own_batches: ClassVar[bool] = False
    """Whether it makes its members' batches itself (`share_out`), so that no other batch plan goes with it."""

    def __post_init__(self) -> None:
        check_types(self)
        if self.members < 1:
            raise OptionError(
                f"members is the number of networks, at least 1; got {self.members!r}.", setting="members"
            )

    # --- making the ensemble --------------------------------------------------------------------------------

    def design(self, bodies: Sequence[Anatomy]) -> Layout:
        """Decide: which tensors members own, of which sizes. Measures the networks, changes nothing."""
        raise NotImplementedError

    def build(self, bodies: Sequence[Anatomy], layout: Layout) -> Ensemble:
        """Make the ensemble that the layout describes.

        Decides nothing: given the same layout it makes the same tensors, but for the values drawn from the global
        random state. The networks may be hollow (on the meta device); then so is the ensemble.
        """
        raise NotImplementedError

    def count(self, bodies: Sequence[Anatomy], layout: Layout) -> int:
        """The closed form of the ensemble's number of parameters, from the networks and the layout alone."""
        raise NotImplementedError

    def for_networks(self, count: int) -> Self:
        """The method for so many networks: where several are given, each is one member."""
        name = type(self).__name__
        if count == 1:
            if self.several_networks == "must":
                raise ConversionError(f"{name} takes several networks of different widths; got one.")
            return self
        if self.several_networks == "no":
            raise ConversionError(
                f"{name} takes one network, and {count} were given. SuperWeights takes several that differ."
            )
        default = type(self).members
        if self.members not in (default, count):
            raise OptionError(
                f"members={self.members}, but {count} networks were given, which are one member each."
            )
        return replace(self, members=count)

    def recall(
        self, bodies: Sequence[Anatomy], extra: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]
    ) -> Layout:
        """The layout of an ensemble that was stored before layouts were.

        Args:
            bodies: its networks, as far as they were remembered.
            extra: what the method had kept with it.
            tensors: name and shape of every stored tensor.
        """
        return self.design(bodies)

    @classmethod
    def renamed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Stored options under the names that they have now."""
        return dict(options)

    # --- what others want to know ---------------------------------------------------------------------------

    @property
    def keeps_weights(self) -> bool:
        """Whether every member begins with the answers of the network that was converted."""
        return False

    @property
    def collapses(self) -> bool:
        """Whether the average of the members' weights is a network that means something."""
        return False

    @property
    def allows_equal_members(self) -> bool:
        """Whether it is fine that nothing tells members apart, because that was asked for as a control."""
        return False

    @property
    def forward_passes(self) -> float:
        """Forward passes of the network that one prediction costs."""
        return float(self.members)

    @property
    def training_passes(self) -> float:
        """Forward passes of the network that one minibatch costs in training, where all members see it."""
        return self.forward_passes

    @property
    def idle(self) -> Mapping[str, str]:
        """Options that change nothing beside the others, each with the setting that it is for, as a flag."""
        return {}

    # --- training -------------------------------------------------------------------------------------------

    def share_out(self, layout: Layout, samples: int, generator: torch.Generator | None = None) -> Share:
        """Which members train on which of a minibatch's samples, by default all on all of them.

        Args:
            layout: of the ensemble.
            samples: how many the minibatch has.
            generator: of whatever is drawn; the global random state if None.
        """
        return Share(tuple(range(self.members)))

    def turns(self) -> Sequence[Turn]:
        """The moments at which the ensemble is changed during training, in order."""
        return ()

    @property
    def refreshes_statistics(self) -> bool:
        """Whether running statistics must be estimated again at the end of training."""
        return False

    # --- starting late --------------------------------------------------------------------------------------

    @property
    def late_start(self) -> Literal["widen", "convert"]:
        """How it is started when a network is nearly trained.

        "widen": one member is trained from the start, and then copied. "convert": the plain network is trained, and
        then converted. An OptionError says why where nothing would be left of the training before.
        """
        return "widen"

    def widened(self, bodies: Sequence[Anatomy], layout: Layout) -> Layout:
        """The layout for more members, where `layout` is that of `before_late_start` on the same networks."""
        return replace(self.design(bodies), shared_buffers=layout.shared_buffers)

    def before_late_start(self) -> Method:
        """What is trained until a late start that widens: this method with one member."""
        return replace(self.full_gradient(), members=1)

    def full_gradient(self) -> Self:
        """The method for steps in which one member trains at a time: shared tensors get the whole gradient of it."""
        return self


@dataclass(frozen=True, kw_only=True)
class Training:
    """Options of a way of training that ends in an ensemble, for `covey.fit`."""

    def __post_init__(self) -> None:
        check_types(self)

    def phases(self, recipe: Any) -> list[Any]:
        """The phases that a run goes through, each a `covey.train.Phase`; `recipe` is a `covey.Recipe`."""
        raise NotImplementedError

    def result(self, recipe: Any) -> Method:
        """The method of the ensemble that the run ends with, which it is stored under."""
        raise NotImplementedError

    @property
    def training_passes(self) -> float:
        """Forward passes of the network that one minibatch costs in training."""
        return 1.0

    @property
    def idle(self) -> Mapping[str, str]:
        """Options that change nothing beside the others, each with the setting that it is for, as a flag."""
        return {}
