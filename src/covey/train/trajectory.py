"""Members out of one training run: SWAG, snapshots, fast geometric ensembles.

All end as ordinary ensembles of whole networks. SWAG's random draws are made once and kept as members, so that a
stored ensemble gives the same answer every time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.convert import convert
from covey.ensemble import Ensemble
from covey.errors import ConversionError, OptionError, TrainingError
from covey.methods.replicate import DeepEnsemble, Replicate
from covey.networks.anatomy import Output
from covey.train.averaging import refresh_statistics, training_inputs
from covey.train.prepare import single
from covey.train.recipe import Recipe
from covey.train.schedules import Schedule, epoch_of
from covey.train.state import Job, Phase, State


@torch.no_grad()
def gather(
    networks: Sequence[nn.Module],
    method: Replicate | None = None,
    *,
    output: Output = None,
    task: str = "classification",
    class_dim: int | None = None,
) -> Ensemble:
    """An ensemble of networks that were trained already, such as snapshots or collapsed late-phase networks.

    Args:
        networks: of one architecture; they are copied.
        method: what the ensemble is stored as; a deep ensemble by default.
        output: as in `covey.convert`.
        task: likewise.
        class_dim: likewise.

    >>> gather([nn.Linear(3, 2), nn.Linear(3, 2)]).members
    2
    """
    networks = list(networks)
    if not networks:
        raise OptionError("gather needs at least one network.")
    _check_alike(networks)
    first = copy.deepcopy(networks[0]).requires_grad_(True)
    method = method or DeepEnsemble(members=len(networks))
    ensemble = convert(first, method, output=output, task=task, class_dim=class_dim)
    buffers, _ = ensemble.buffers_of(0)
    (part,) = ensemble.parts.values()
    for k, network in enumerate(networks):
        for name, parameter in network.named_parameters():
            part.phi[name][k].copy_(parameter)  # type: ignore[index]
        for name, buffer in network.named_buffers():
            if name in buffers.own:
                buffers.own[name][k].copy_(buffer)
            elif not torch.equal(buffers.shared[name], buffer):
                raise ConversionError(
                    f"the networks differ in {name!r}, a constant that members share; make it the same first."
                )
    return ensemble


def _check_alike(networks: Sequence[nn.Module]) -> None:
    shapes = [{n: tuple(t.shape) for n, t in network.state_dict().items()} for network in networks]
    for k, shape in enumerate(shapes):
        if shape != shapes[0]:
            odd = next(n for n in [*shapes[0], *shape] if shapes[0].get(n) != shape.get(n))
            raise ConversionError(
                f"gather takes networks of one architecture: {odd!r} is {shapes[0].get(odd, 'missing')} in the first "
                f"and {shape.get(odd, 'missing')} in number {k}."
            )


class Gaussian:
    """SWAG's picture of the weights along training: mean, diagonal, and the last deviations from the mean.

        w = mean + sqrt(scale) (sigma z1 + D z2 / sqrt(n - 1))        n deviations collected, at most `rank`

    Maddox et al. (2019).

    Args:
        rank: how many deviations are kept.
        count: snapshots so far, and the tensors that `tensors()` gave then, to go on from a checkpoint.
        tensors: likewise.
    """

    def __init__(self, rank: int = 20, count: int = 0, tensors: Mapping[str, Tensor] | None = None) -> None:
        if rank < 2:
            raise OptionError(f"rank is the number of deviations kept, at least 2; got {rank}.")
        self.rank, self.count = rank, count
        self.mean = _with("mean", tensors or {})
        self.square = _with("square", tensors or {})
        self.deviations = _with("deviations", tensors or {})  # (n, *shape)

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take the network's weights as they are now into account."""
        self.count += 1
        for name, weight in network.named_parameters():
            if self.count == 1:
                self.mean[name] = weight.detach().clone()
                self.square[name] = weight.detach().square()
                self.deviations[name] = weight.new_zeros(1, *weight.shape)
                continue
            self.mean[name] += (weight - self.mean[name]) / self.count
            self.square[name] += (weight.square() - self.square[name]) / self.count
            latest = (weight - self.mean[name]).unsqueeze(0)
            self.deviations[name] = torch.cat([self.deviations[name], latest])[-self.rank :]

    def draw(self, scale: float = 0.5) -> dict[str, Tensor]:
        """One draw of all weights by name. Uses the global random state."""
        if self.count < 2:
            raise TrainingError(
                f"SWAG needs at least two snapshots to know a spread; it has {self.count}. Start it earlier."
            )
        kept = len(next(iter(self.deviations.values())))
        shared = torch.randn(kept)
        drawn = {}
        for name, mean in self.mean.items():
            spread = (self.square[name] - mean.square()).clamp_min(0).sqrt() * torch.randn_like(mean)
            along = torch.tensordot(shared.to(mean), self.deviations[name], 1) / (kept - 1) ** 0.5
            drawn[name] = mean + scale**0.5 * (spread + along)
        return drawn

    @torch.no_grad()
    def networks(
        self, like: nn.Module, count: int = 30, *, scale: float = 0.5, seed: int = 0
    ) -> list[nn.Module]:
        """`count` draws as networks. Their running statistics are those of `like` until refreshed.

        Args:
            like: a network of the architecture.
            count: how many.
            scale: factor of the covariance.
            seed: of the draws.
        """
        made = [copy.deepcopy(like) for _ in range(count)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for network in made:
                drawn = self.draw(scale)
                for name, parameter in network.named_parameters():
                    parameter.copy_(drawn[name])
        return made

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the count, by name, for a checkpoint."""
        stores = {"mean": self.mean, "square": self.square, "deviations": self.deviations}
        return {f"{kind}/{name}": t for kind, store in stores.items() for name, t in store.items()}


def _with(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.partition("/")[2]: t.clone() for name, t in tensors.items() if name.startswith(f"{kind}/")}


@dataclass(frozen=True, kw_only=True)
class SWAG:
    """Draws from a Gaussian fitted to the weights along training (Maddox et al., 2019). Stores M P numbers.

    Args:
        members: how many draws.
        start: when to begin collecting, one snapshot an epoch: a share of training, or an epoch if 1 or more.
        rank: how many deviations from the mean are kept.
        scale: factor of the covariance.
    """

    members: int = 30
    start: float = 0.8
    rank: int = 20
    scale: float = 0.5

    def phases(self, recipe: Recipe) -> list[Phase]:
        """One, which collects and draws at its end."""
        _check(recipe, self.members)
        start = epoch_of(self.start, recipe.epochs)
        if recipe.epochs - start < 2:
            raise OptionError(
                f"SWAG starts at epoch {start} of {recipe.epochs} and so gets {recipe.epochs - start} snapshots; it "
                "needs at least two. Start it earlier."
            )

        def collect(job: Job, state: State) -> None:
            if state.consumed > start * job.stream.per_epoch:
                gaussian = Gaussian(self.rank, state.notes.get("swag", 0), state.recall("swag"))
                gaussian.update(state.ensemble.member(0))
                state.notes["swag"] = gaussian.count
                state.keep("swag", gaussian.tensors())

        def draw(job: Job, state: State) -> Ensemble:
            gaussian = Gaussian(self.rank, state.notes.get("swag", 0), state.recall("swag"))
            like = state.ensemble.member(0)
            networks = gaussian.networks(like, self.members, scale=self.scale, seed=recipe.seed)
            ensemble = _gathered(networks, Replicate(members=self.members), state.ensemble)
            refresh_statistics(ensemble, training_inputs(job))
            return ensemble

        return [Phase(build=single, end=recipe.epochs, after_epoch=collect, finish=draw)]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Weights at equally spaced moments of one training run (Huang et al., 2017). Stores M P numbers.

    Args:
        members: how many snapshots; the last is the end of training.
        start: after when they are taken: a share of training, or an epoch if 1 or more.
        cycles: whether the learning rate restarts after each snapshot and falls as a cosine until the next;
            otherwise it follows the recipe.
    """

    members: int = 5
    start: float = 0.0
    cycles: bool = True

    def phases(self, recipe: Recipe) -> list[Phase]:
        """One, which keeps weights on its way."""
        _check(recipe, self.members)
        start = epoch_of(self.start, recipe.epochs)
        length = (recipe.epochs - start) / self.members
        if length < 1:
            raise OptionError(
                f"{self.members} snapshots after epoch {start} of {recipe.epochs} are more than one an epoch; take "
                "fewer, or train longer."
            )
        wanted = [round(start + length * (i + 1)) for i in range(self.members)]
        cosine = Schedule(kind="cyclic", start=start, cycle=length)

        def rate(epoch: float) -> float:
            schedule = cosine if self.cycles and epoch >= start else recipe.schedule
            return schedule.at(epoch, lr=recipe.lr, epochs=recipe.epochs)

        return [_collecting(wanted, recipe, rate)]


@dataclass(frozen=True, kw_only=True)
class FGE:
    """Fast geometric ensembling: weights at the minima of a quick triangular schedule (Garipov et al., 2018).

    Stores M P numbers, M the number of cycles that fit between `start` and the end.

    Args:
        start: when the cycles begin: a share of training, or an epoch if 1 or more. 0 on a trained network.
        cycle: epochs of a cycle, even: the learning rate falls for half of it, and rises again.
        high: the learning rate at the ends of a cycle.
        low: the learning rate in the middle of a cycle, where the weights are kept.
    """

    start: float = 0.8
    cycle: int = 2
    high: float = 5e-2
    low: float = 1e-2

    def phases(self, recipe: Recipe) -> list[Phase]:
        """One, which keeps weights on its way."""
        _check(recipe)
        start = epoch_of(self.start, recipe.epochs)
        if self.cycle < 2 or self.cycle % 2:
            raise OptionError(f"cycle is an even number of epochs, at least 2; got {self.cycle}.")
        if not 0 < self.low <= self.high:
            raise OptionError(f"low is above 0 and not above high; got {self.low} and {self.high}.")
        wanted = list(range(start + self.cycle // 2, recipe.epochs + 1, self.cycle))
        if not wanted:
            raise OptionError(
                f"no cycle of {self.cycle} epochs fits between epoch {start} and the end, {recipe.epochs}."
            )
        triangle = Schedule(kind="triangular", start=start, cycle=self.cycle, final=self.low)

        def rate(epoch: float) -> float:
            if epoch < start:
                return recipe.schedule.at(epoch, lr=recipe.lr, epochs=recipe.epochs)
            return triangle.at(epoch, lr=self.high, epochs=recipe.epochs)

        return [_collecting(wanted, recipe, rate)]


def _collecting(wanted: Sequence[int], recipe: Recipe, rate: Callable[[float], float]) -> Phase:
    """A phase that keeps the network after these epochs, and ends with a deep ensemble of what it kept."""

    def collect(job: Job, state: State) -> None:
        epoch = state.consumed // job.stream.per_epoch
        if epoch in wanted:
            network = state.ensemble.member(0)
            state.keep(f"snapshot {wanted.index(epoch)}", network.state_dict())

    def finish(job: Job, state: State) -> Ensemble:
        networks = []
        for number in range(len(wanted)):
            network = state.ensemble.member(0)
            network.load_state_dict(state.recall(f"snapshot {number}"))
            networks.append(network)
        return _gathered(networks, DeepEnsemble(members=len(networks)), state.ensemble)

    return Phase(build=single, end=recipe.epochs, rate=rate, after_epoch=collect, finish=finish)


def _gathered(networks: Sequence[nn.Module], method: Replicate, like: Ensemble) -> Ensemble:
    about = like.about
    made = gather(networks, method, output=about.output, task=about.task, class_dim=about.class_dim)
    made.memory_format = like.memory_format
    return made.to(next(like.parameters()).device)


def _check(recipe: Recipe, members: int = 1) -> None:
    if members < 1:
        raise OptionError(f"members is the number of networks, at least 1; got {members}.")
    if recipe.keep == "best" or recipe.patience is not None:
        raise OptionError(
            "members along a trajectory end with the last of them, so keep='best' and patience, which stop at the "
            "best epoch, have no meaning; leave them out."
        )
