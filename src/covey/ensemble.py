"""The waist of covey: what an ensemble of networks can do.

An `Ensemble` is a hollow network (the skeleton), the parameterizations that generate its parameters for each member,
and its buffers. Nothing here knows any method or architecture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_map

from covey import run as runs
from covey.buffers import Buffers
from covey.calibration import Conformal, Intervals, Margin, Temperature
from covey.collapsing import collapse
from covey.combine import Answer, answer, check_finite
from covey.coverage import Coverage
from covey.errors import OptionError
from covey.layout import Layout
from covey.losses import LossName, OwnLoss, loss_of, member_losses, own_losses
from covey.method import Method
from covey.networks.anatomy import Anatomy, recalled
from covey.networks.calls import arguments, pick
from covey.networks.checkpointing import tensors_carried
from covey.networks.copies import filled, hollow
from covey.networks.language import check_not_copied
from covey.networks.layers import slots, with_sparse_gradients
from covey.networks.leftovers import nothing_left_behind
from covey.networks.modes import modes_kept
from covey.networks.statistics import refresh_statistics
from covey.parameterization import Parameterization, places
from covey.tensors import dense_gradient, with_gradient
from covey.ways import WAYS, Inputs


class Ensemble(nn.Module):
    """M networks that share what their method lets them share.

    Args:
        method: the options it was built with.
        bodies: the network, or M networks where members differ in shape.
        layout: what the method decided about them.
        parts: parameterizations by name, which together generate every parameter.

    Attributes:
        task: "classification" (logits), "multilabel" (logits of labels of which several may be true), "regression"
            (points), "gaussian" (means and raw variances), or quantiles such as "quantiles(0.05, 0.5, 0.95)".
        class_dim: the class axis of one member's output; None for the usual one.
        output: which part of what the network returns is the answer.
        seed: of the random choices that conversion made.
        checked: what conversion found out about the members; see `covey.convert(check=...)`.
        runs: how members run in train and in eval mode: a name of `covey.ways.WAYS`, or "auto".
        measured: the sizes of images that "auto" chose on, in train and in eval mode.
        acting: whether weights that can act on activations do; otherwise every member's weights are made.
        temperature: calibrates the probabilities, if it is set.
        conformal: gives sets of classes, or intervals of a regression or around quantiles, if it is set.
    """

    parts: Mapping[str, Parameterization]  # module containers at run time
    state: Sequence[Buffers]

    def __init__(
        self,
        method: Method,
        bodies: Sequence[Anatomy],
        layout: Layout,
        parts: Mapping[str, Parameterization],
    ) -> None:
        super().__init__()
        self.method, self.layout = method, layout
        self.members = method.members
        self.parts = cast(Mapping[str, Parameterization], nn.ModuleDict(parts))
        self._skeletons = tuple(hollow(body.network) for body in bodies)  # a tuple hides them from nn.Module
        self._slots = tuple(slots(skeleton) for skeleton in self._skeletons)
        self._sparse = tuple(with_sparse_gradients(skeleton) for skeleton in self._skeletons)
        self._places = places(self.members, len(bodies))
        self.records = tuple(body.record() for body in bodies)
        stores = []
        for i, body in enumerate(bodies):
            rows = sum(network == i for network, _ in self._places)
            stores.append(Buffers(body, layout.shared_buffers[i], rows))
        self.state = cast(Sequence[Buffers], nn.ModuleList(stores))
        self.task, self.seed = "classification", 0
        self.class_dim: int | None = None
        self.output = bodies[0].output
        self.checked = ""
        self.temperature: Temperature | None = None
        self.conformal: Conformal | Intervals | Margin | None = None
        self.runs = {"train": "auto", "eval": "auto"}
        self.measured: dict[str, list[list[int]]] = {}
        self.acting = True
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
        inputs = self.inputs(args, kwargs, len(chosen) if per_member else None)
        return runs.run(self, chosen, inputs)

    def inputs(self, args: tuple, kwargs: dict[str, Any], count: int | None = None) -> Inputs:
        """Inputs as members get them: in the memory format, and copied where a member could change another's."""
        copied = any(record["writes_inputs"] is not False for record in self.records)
        return Inputs(args, kwargs, count, self.memory_format, copied)

    @property
    def moves(self) -> bool:
        """Whether buffers may change in the present mode: in train mode, and in some networks always."""
        return self.training or any(record.get("moves_in_eval") for record in self.records)

    def nothing_left_behind(self) -> Any:
        """A context after which the skeletons hold no tensor that a call left in them; see `networks.leftovers`."""
        # a network that rescales its weights keeps in Python whether it has, and its weights are put back
        rescales = any(record.get("rewrites") for record in self.records)
        return nothing_left_behind(self._skeletons, keep_plain=not rescales)

    def predict(self, *args: Any, check: bool = True, **kwargs: Any) -> Answer:
        """The combined answer and its uncertainty, in eval mode and without gradients.

        Takes what one network takes. Returns a `Prediction`, or by the task a `Regression`, `MultiLabel` or
        `QuantileAnswer`.
        If they are set, `temperature` calibrates the probabilities, and `conformal` gives sets of classes or intervals.

        Args:
            *args: what one network takes.
            check: whether an answer that is NaN or infinite is an error, which names the samples. Never checked in a
                compiled or exported program, which cannot depend on values.
            **kwargs: likewise.
        """
        with self.evaluating(), torch.no_grad():
            found = self.answer(self(*args, **kwargs))
            if check and not torch.compiler.is_compiling():
                check_finite(found, (args, kwargs))
        return found

    def answer(self, outputs: Tensor) -> Answer:
        """Members' outputs, (M, B, ...), as the combined answer and its uncertainty."""
        return answer(outputs, self.task, self.class_dim, self.temperature, self.conformal)

    @property
    def run(self) -> str:
        """How members are run in the present mode; "auto" until that was measured.

        "loop" or "batched", with "+channels_last" where images are laid out so, and "+made" where weights are made that
        could act on activations.
        """
        return self.runs["train" if self.training else "eval"]

    @run.setter
    def run(self, choice: str) -> None:
        if choice not in ("auto", *WAYS):
            raise OptionError(f"run is one of {', '.join(map(repr, ('auto', *WAYS)))}; got {choice!r}.")
        self.runs = {"train": choice, "eval": choice}
        self.measured = {}

    # --- training ----------------------------------------------------------------------------------------

    def loss(
        self,
        inputs: Any,
        targets: Tensor,
        *,
        loss: LossName | OwnLoss | None = None,
        smoothing: float = 0.0,
        ignore_index: int | None = None,
        generator: torch.Generator | None = None,
        weights: Tensor | None = None,
        class_weights: Tensor | None = None,
    ) -> Tensor:
        """The training loss of a minibatch, a scalar to call `backward` on; right for every method.

        The method says which members see which samples; the loss is the sum over members of each one's own mean loss.

        Args:
            inputs: a minibatch as one network takes it: a tensor, a tuple of positional or a dict of keyword arguments.
            targets: class numbers or numbers to regress on, (B, ...), or probabilities of the outputs' shape.
            loss: "cross-entropy", "binary", "gaussian" or "mse"; by default the one of the ensemble's task. Or a
                function of one member's outputs and targets that returns its mean loss, (), or the loss of each
                sample, (B,).
            smoothing: label smoothing of a cross-entropy.
            ignore_index: class number of the samples that do not count; None if all do.
            generator: of the samples that members draw, where they do; the global random state if None.
            weights: factors of the samples' losses, (B,); the mean is over the samples, not over their weights.
            class_weights: factors of the losses of each class's samples, (C,), likewise.
        """
        share = self.method.share_out(self.layout, len(targets), generator)
        rows = share.rows
        if rows is not None:
            inputs, targets, weights = tree_map(lambda leaf: _rows(leaf, rows), (inputs, targets, weights))
        each = self.losses(
            inputs,
            targets,
            members=share.members,
            per_member=share.per_member,
            loss=loss,
            smoothing=smoothing,
            ignore_index=ignore_index,
            weights=weights,
            class_weights=class_weights,
        )
        return each.sum()

    def losses(
        self,
        inputs: Any,
        targets: Tensor,
        *,
        members: Sequence[int] | None = None,
        per_member: bool = False,
        loss: LossName | OwnLoss | None = None,
        smoothing: float = 0.0,
        ignore_index: int | None = None,
        weights: Tensor | None = None,
        class_weights: Tensor | None = None,
    ) -> Tensor:
        """Each member's mean loss, (len(members),), on inputs that were dealt out to members already.

        Args:
            inputs: as in `loss`; with `per_member`, every tensor has a leading axis of members.
            targets: the same for all members, or with a leading axis of members.
            members: which run; all by default.
            per_member: whether each member has an input of its own.
            loss: as in `loss`.
            smoothing: as in `loss`.
            ignore_index: as in `loss`.
            weights: as in `loss`, or with a leading axis of members.
            class_weights: as in `loss`.
        """
        args, kwargs = arguments(inputs)
        check_not_copied(self.skeleton(), kwargs, targets, ignore_index)
        everyone = members is None or tuple(members) == tuple(range(self.members))
        outputs = self(*args, members=None if everyone else members, per_member=per_member, **kwargs)
        if outputs.dtype in (torch.float16, torch.bfloat16):
            outputs = outputs.float()
        kind = loss or loss_of(self.task)
        if callable(kind):
            numbers = range(self.members) if members is None else members
            return own_losses(outputs, targets, kind, members=numbers, per_member=per_member, weights=weights)
        options = {"weights": weights, "class_weights": class_weights}
        return member_losses(outputs, targets, kind, smoothing, ignore_index, self.class_dim, **options)

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
                            members=group.owner == "member",
                        )
                    )
        return found

    # --- members -----------------------------------------------------------------------------------------

    @property
    def stackable(self) -> bool:
        """Whether all members have one architecture, so that their tensors can be stacked and averaged."""
        return len(self._skeletons) == 1

    def network_of(self, k: int) -> int:
        """The number of member k's network among `records` and `state`."""
        return self._places[k][0]

    def skeleton(self, k: int = 0) -> nn.Module:
        """Member k's network without its tensors."""
        return self._skeletons[self.network_of(k)]

    def call(self, k: int, tensors: dict[str, Tensor], args: tuple, kwargs: dict[str, Any]) -> Tensor:
        """Run member k's skeleton with these tensors; those that the network replaces are replaced in `tensors`."""
        network = self.network_of(k)
        for name in self.records[network].get("rewrites", ()):
            # what the network changes in place is its own for this call
            tensors[name] = tensors[name].clone()
        for name in self.records[network].get("differentiated", ()):
            tensors[name] = with_gradient(tensors[name])
        for name in self.sparse(k):
            tensors[name] = dense_gradient(tensors[name])
        given = {place: tensors[name] for place, name in self._slots[network].items()}
        # every place is given, and once: torch's own handling of ties would leave tensors behind in modules used twice
        skeleton = self._skeletons[network]
        with tensors_carried(skeleton, given):
            result = functional_call(skeleton, given, args, kwargs, tie_weights=False)
        for place, name in self._slots[network].items():
            tensors[name] = given[place]
        return pick(result, self.output)

    def sparse(self, k: int = 0) -> tuple[str, ...]:
        """Names of member k's tensors whose gradients are sparse, as those of tables of words may be."""
        return self._sparse[self.network_of(k)]

    def buffers_of(self, k: int) -> tuple[Buffers, int]:
        """Where member k's buffers are: the store and the row."""
        network, row = self._places[k]
        return self.state[network], row

    def tensors(self, k: int) -> dict[str, Tensor]:
        """Member k's parameters by name, as its parameterizations generate them."""
        return {name: tensor for part in self.parts.values() for name, tensor in part.member(k).items()}

    def acts(self, part: Parameterization) -> bool:
        """Whether a part's weights act on activations now; a program that is compiled or exported has them made."""
        return self.acting and part.acts and not torch.compiler.is_compiling()

    def working_tensors(self, k: int) -> dict[str, Tensor]:
        """Member k's parameters by name, to run it with."""
        found: dict[str, Tensor] = {}
        for part in self.parts.values():
            if self.acts(part):
                found |= part.acting({name: tensor[0] for name, tensor in part.own([k]).items()})
            else:
                found |= part.member(k)
        return found

    def member(self, k: int) -> nn.Module:
        """Member k as a plain network of its own: plain layers, copies of its tensors, no need of covey."""
        buffers, row = self.buffers_of(self._checked(k))
        with torch.no_grad():
            return filled(self.skeleton(k), {**self.tensors(k), **buffers.member(row)})

    @property
    def differ(self) -> bool:
        """Whether members have tensors of their own; else only random numbers tell them apart."""
        return any(part.varies for part in self.parts.values())

    @property
    def alike(self) -> bool:
        """Whether all members have equal tensors now, as copies without noise do before training."""
        if not self.stackable:
            return False
        with torch.no_grad():
            first, *others = (self.tensors(k) for k in range(self.members))
            return all(torch.equal(first[name], other[name]) for other in others for name in first)

    def collapse(self) -> nn.Module:
        """One plain network by averaging the members' weights, where the method allows it; see `covey.collapse`."""
        return collapse(self)

    def refresh_statistics(self, inputs: Iterable[Any]) -> None:
        """Estimate every member's running statistics anew from batches of training inputs."""
        refresh_statistics(self, inputs, roots=self._skeletons)

    def bodies(self, networks: Sequence[nn.Module]) -> list[Anatomy]:
        """What is known of the ensemble's networks, for other networks of the same architectures."""
        return [
            recalled(network, record, self.output)
            for network, record in zip(networks, self.records, strict=True)
        ]

    def networks(self) -> list[nn.Module]:
        """A plain network of each architecture, in the order of `records`: the first member that has it."""
        first: dict[int, int] = {}
        for k in range(self.members):
            first.setdefault(self.network_of(k), k)
        return [self.member(k) for k in first.values()]

    def rebuild(self, layout: Layout, networks: Sequence[nn.Module]) -> None:
        """Take the parts and buffers that another layout gives, in place.

        Args:
            layout: of the same method.
            networks: where tensors that are no templates come from, one for each architecture.
        """
        made = self.method.build(self.bodies(networks), layout)
        self.parts, self.state, self.layout = made.parts, made.state, layout
        self.train(self.training)

    def describe_like(self, other: Ensemble) -> None:
        """Take over how another ensemble's output is read and how its inputs are laid out."""
        self.task, self.class_dim, self.seed = other.task, other.class_dim, other.seed
        self.output, self.memory_format = other.output, other.memory_format

    # --- the usual duties of a module ----------------------------------------------------------------------

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

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Eval mode for a while; afterwards every module is in the mode it was in."""
        with self.modes_kept():
            self.eval()
            yield

    def modes_kept(self) -> Any:
        """A context after which every module, those of the skeletons too, is in the mode it was in."""
        return modes_kept(self, *self._skeletons)

    def __repr__(self) -> str:
        return Coverage.of(self).summary()

    def _repr_html_(self) -> str:
        return Coverage.of(self).to_html()

    def _checked(self, k: int) -> int:
        if not 0 <= k < self.members:
            raise OptionError(f"member {k} was asked for; this ensemble has members 0 to {self.members - 1}.")
        return k


def _rows(leaf: Any, rows: Tensor) -> Any:
    """Some samples of a minibatch; what is no tensor of samples stays as it is."""
    return leaf[rows.to(leaf.device)] if isinstance(leaf, Tensor) and leaf.ndim else leaf
