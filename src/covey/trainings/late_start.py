"""Starting late: train one member, then turn it into an ensemble when it is nearly trained.

    phi_k = phi_0 + sigma ||phi_0|| / sqrt(D) eps_k        at time T0, for each tensor of D numbers apart

Papers 1 and 2 of von Oswald, Kobayashi et al. Until T0 an ensemble of one member is trained, which for copies of
tensors is the network itself, and for rank-one factors and embeddings learns phi_0 along with theta. Then it is
widened: theta and its optimiser state stay, each member gets a copy of phi_0 with noise and an empty optimiser state.
Any method works whose members can be copied. After T0 every member sees minibatches of its own, so training costs
what it did before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from covey import registry
from covey.conversion import convert
from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError
from covey.method import Method, Training
from covey.methods.replicate import Replicate
from covey.networks.initial import fresh
from covey.networks.layers import Where
from covey.options import check_least
from covey.parameterization import Group
from covey.parts.plain import Replicated
from covey.seeds import random_state_kept, seed_of
from covey.train.phases import build, single
from covey.train.recipe import Recipe
from covey.train.schedules import epoch_of
from covey.train.state import Job, Phase, State


@dataclass(frozen=True, kw_only=True)
class Late(Training):
    """Train one network until it is nearly done, then an ensemble around it, at the price of one network.

    With one member there is no late phase: no noise, nothing initialised anew, nothing frozen.

    Args:
        method: the ensemble to start: a method with options, or as one writes it on the command line, such as
            "batch-ensemble:members=4,init=ones".
        start: when: a share of training, or an epoch if 1 or more; 0 for a network that is trained already.
        noise: Gaussian noise on the members' tensors, in units of each tensor's root mean square.
        restart: tensors of the members that are initialised anew instead of copied, such as "head".
        nested: every member takes a minibatch of its own, then the shared tensors move once, with the method's
            gamma; otherwise a member drawn for each minibatch steps along with the shared tensors.
        freeze: let only the members' tensors learn after the start.
        collapse: end with one network, the average of the members' weights.
    """

    method: Method | str = "norm-ensemble"
    start: float = 0.6
    noise: float = 0.0
    restart: Where = ()
    nested: bool = True
    freeze: bool = False
    collapse: bool = False
    _made: Method = field(init=False, repr=False, compare=False, metadata={"stored": False})

    def __post_init__(self) -> None:
        made = registry.parsed(self.method) if isinstance(self.method, str) else self.method
        if not isinstance(made, Method):
            raise OptionError(
                f"a late start takes a method with options, such as NormEnsemble(members=10); got {self.method!r}."
            )
        super().__post_init__()
        object.__setattr__(self, "_made", made)
        _ = made.late_start  # says why where it cannot be started late
        check_least("noise", self.noise, 0)
        check_least("start", self.start, 0)
        if self.collapse and not made.collapses:
            raise OptionError(
                f"collapse=True averages the members' weights, which means nothing for {type(made).__name__}; leave "
                "it out, and predictions are averaged."
            )

    def phases(self, recipe: Recipe) -> list[Phase]:
        """One member until `start`, all members from then on; a single member all along."""
        begin = epoch_of(self.start, recipe.epochs)
        if begin >= recipe.epochs:
            raise OptionError(
                f"the ensemble would start at epoch {begin}, and training ends at {recipe.epochs}; start it "
                "earlier (start=)."
            )
        result = _collapsed if self.collapse else None
        if self._stays_single(
            recipe
        ):  # the network that is trained anyway: nothing is redrawn, nothing changes
            return [Phase(build=self._alone, end=recipe.epochs, plan="same", answer=result, finish=result)]
        together = Phase(
            build=self._at_once if begin == 0 else self._started,
            end=recipe.epochs,
            plan="same" if self._made.own_batches or not self.nested else "independent",
            step="plain" if self.nested else "drawn",
            chunk=None if self._made.own_batches else 1,  # one after the other, in the memory of one
            answer=result,
            finish=result,
        )
        return [together] if begin == 0 else [Phase(build=self._alone, end=begin, plan="same"), together]

    def result(self, recipe: Recipe) -> Method:
        """One network if it is collapsed, else the method's members."""
        if self.collapse:
            return Replicate(members=1)
        return self._made.before_late_start() if self._stays_single(recipe) else self._after()

    def _stays_single(self, recipe: Recipe) -> bool:
        """Whether the one member is trained from the start anyway, so that there is no late phase."""
        return self._made.members == 1 and self._made.late_start == "widen"

    def _alone(self, network: nn.Module, job: Job) -> Ensemble:
        if self._made.late_start == "convert":
            ensemble = single(network, job)
        else:
            ensemble = build(network, self._made.before_late_start(), job)
        if not self._stays_single(job.recipe):
            self._started(ensemble, job)  # thrown away: what cannot be started should say so before any work
        return ensemble

    def _started(self, network: nn.Module, job: Job) -> Ensemble:
        assert isinstance(network, Ensemble)
        seed = job.recipe.seed
        if self._made.late_start == "convert":
            ensemble = build(network.member(0), self._after(), job)
            _vary_(ensemble, self.noise, self.restart, seed)
        else:
            ensemble = widen(network, self._after(), noise=self.noise, restart=self.restart, seed=seed)
        return self._ready(ensemble)

    def _at_once(self, network: nn.Module, job: Job) -> Ensemble:
        ensemble = build(network, self._after(), job)
        if ensemble is not network:  # an ensemble of the user's own has its noise already
            _vary_(ensemble, self.noise, self.restart, job.recipe.seed)
        return self._ready(ensemble)

    def _after(self) -> Method:
        """The method; where one member steps at a time, with the gradient that it has alone."""
        return self._made if self.nested else self._made.full_gradient()

    def _ready(self, ensemble: Ensemble) -> Ensemble:
        if self.freeze:
            freeze_shared_(ensemble)
        return ensemble


def late(
    method: Method,
    start: float = 0.6,
    noise: float = 0.0,
    *,
    restart: Where = (),
    nested: bool = True,
    freeze: bool = False,
    collapse: bool = False,
) -> Late:
    """A method that starts when the network is nearly trained; give it to `covey.fit` as `method`.

    Args:
        method: the ensemble to start, any whose members can be copied.
        start: when: a share of training, or an epoch if 1 or more; 0 for a network that is trained already.
        noise: Gaussian noise on the members' tensors, in units of each tensor's root mean square.
        restart: tensors of the members that are initialised anew instead of copied, such as "head".
        nested: every member takes a minibatch of its own, then the shared tensors move once, with the method's
            gamma; otherwise a member drawn for each minibatch steps along with the shared tensors.
        freeze: let only the members' tensors learn after the start.
        collapse: end with one network, the average of the members' weights.
    """
    return Late(
        method=method,
        start=start,
        noise=noise,
        restart=restart,
        nested=nested,
        freeze=freeze,
        collapse=collapse,
    )


@torch.no_grad()
def widen(
    ensemble: Ensemble, method: Method, *, noise: float = 0.0, restart: Where = (), seed: int = 0
) -> Ensemble:
    """An ensemble of several members around an ensemble of one.

    Args:
        ensemble: of one member; it stays as it is.
        method: what the new one is built with: the same kind of method, with more members.
        noise: Gaussian noise on the members' tensors, in units of each tensor's root mean square. Running
            statistics are copied as they are.
        restart: tensors of the members that are initialised anew instead, such as "head".
        seed: of the noise and of the new initialisation.
    """
    if ensemble.members != 1:
        raise ConversionError(
            f"an ensemble is widened from one member; this {type(ensemble.method).__name__} has {ensemble.members}."
        )
    bodies = ensemble.bodies(ensemble.networks())
    with random_state_kept(ensemble):
        wide = method.build(bodies, method.widened(bodies, ensemble.layout))
    _copy_state(ensemble, wide)
    wide.describe_like(ensemble)
    _vary_(wide, noise, restart, seed)
    return wide.to(next(ensemble.parameters()).device).train(ensemble.training)


@torch.no_grad()
def perturb_(ensemble: Ensemble, noise: float) -> None:
    """Add Gaussian noise to every member tensor, in units of its root mean square. Uses the global random state.

    Embeddings of several layers are a tensor each, though they are kept in one.
    """
    for group in _member_groups(ensemble):
        for phi in group.parameters:
            axes = tuple(range(2 if group.by_row else 1, phi.ndim))
            size = phi.square().mean(axes, keepdim=True).sqrt() if axes else phi.abs()
            phi.add_(noise * size * torch.randn_like(phi))


def _vary_(ensemble: Ensemble, noise: float, restart: Where, seed: int) -> None:
    with random_state_kept(ensemble, seed=seed_of(seed, "late")):  # not the network's own stream
        if noise:
            perturb_(ensemble, noise)
        if restart:
            _restart(ensemble, restart)


def freeze_shared_(ensemble: Ensemble) -> None:
    """Let only the members' own tensors learn."""
    if not any(parameter.requires_grad for parameter in _member_parameters(ensemble)):
        raise ConversionError(
            f"freeze=True lets only the members' own tensors learn, and {type(ensemble.method).__name__} has none that "
            "do; leave it out."
        )
    for part in ensemble.parts.values():
        for group in part.groups():
            if group.owner == "shared":
                for parameter in group.parameters:
                    parameter.requires_grad_(False)


def _member_parameters(ensemble: Ensemble) -> list[nn.Parameter]:
    return [parameter for group in _member_groups(ensemble) for parameter in group.parameters]


def _member_groups(ensemble: Ensemble) -> list[Group]:
    """The groups of parameters with a leading axis of members."""
    return [group for part in ensemble.parts.values() for group in part.groups() if group.owner == "member"]


def _copy_state(one: Ensemble, wide: Ensemble) -> None:
    known: dict[str, Tensor] = one.state_dict()
    members = {id(p) for p in _member_parameters(wide)}
    own = {id(t) for _, t in wide.buffers_of(0)[0].own.items()}
    for name, tensor in [*wide.named_parameters(), *wide.named_buffers()]:
        source = known.get(name)
        is_member = id(tensor) in members or id(tensor) in own
        expected = (1, *tensor.shape[1:]) if is_member else tuple(tensor.shape)
        if source is None or tuple(source.shape) != expected:
            found = "missing" if source is None else tuple(source.shape)
            raise ConversionError(
                f"{type(one.method).__name__} cannot be started late: its tensor {name!r} depends on the number of "
                f"members ({found} for one, {tuple(tensor.shape)} for {wide.members}). "
                "If it has a budget, which all members share, set budget=None."
            )
        tensor.copy_(source)


@torch.no_grad()
def _restart(wide: Ensemble, where: Where) -> None:
    (body,) = wide.bodies(wide.networks())
    names = body.select(where)
    parts = [part for part in wide.parts.values() if isinstance(part, Replicated)]
    stored = {name: phi for part in parts for name, phi in part.phi.items()}
    shared = [name for name in names if name not in stored]
    if shared:
        raise ConversionError(
            f"restart={where!r} names {shared[0]!r}, which all members share, so it cannot be initialised anew for "
            "each. Replicate it, or leave it out."
        )
    for k in range(wide.members):
        made = fresh(body.network)
        for name in names:
            stored[name][k].copy_(made.get_parameter(name))


def _collapsed(job: Job, state: State) -> Ensemble:
    """The average of the members as an ensemble of one."""
    ensemble = state.ensemble
    made = convert(ensemble.collapse(), Replicate(members=1), output=ensemble.output)
    made.describe_like(ensemble)
    return made
