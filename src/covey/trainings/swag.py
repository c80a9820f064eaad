"""SWAG: members are draws from a Gaussian that is fitted to the weights along training."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covey.ensemble import Ensemble
from covey.errors import OptionError, TrainingError
from covey.method import Method, Training
from covey.methods.replicate import Replicate
from covey.seeds import random_state_kept
from covey.train.averaging import training_inputs
from covey.train.phases import single
from covey.train.recipe import Recipe
from covey.train.schedules import epoch_of
from covey.train.state import Job, Phase, State
from covey.trainings.trajectory import check_whole_run, gathered


@dataclass(frozen=True, kw_only=True)
class SWAG(Training):
    """Fit a Gaussian to the weights along one training run, and draw the members from it.

    Maddox et al. (2019). Stores M P parameters.

    Args:
        members: how many draws.
        start: when to begin collecting, one snapshot per epoch: a share of training, or an epoch if 1 or more.
        rank: how many deviations from the mean are kept.
        scale: factor of the covariance.
    """

    members: int = 30
    start: float = 0.8
    rank: int = 20
    scale: float = 0.5

    def phases(self, recipe: Recipe) -> list[Phase]:
        """One, which collects and draws at its end."""
        check_whole_run(recipe, self.members)
        start = epoch_of(self.start, recipe.epochs)
        if recipe.epochs - start < 2:
            raise OptionError(
                f"SWAG needs two epochs or more to collect weights, and it would start at epoch {start} of "
                f"{recipe.epochs}. Start it earlier (start=), or train longer (epochs=)."
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
            ensemble = gathered(networks, Replicate(members=self.members), state.ensemble)
            ensemble.refresh_statistics(training_inputs(job))
            return ensemble

        return [Phase(build=single, end=recipe.epochs, after_epoch=collect, finish=draw)]

    def result(self, recipe: Recipe) -> Method:
        """Whole networks."""
        return Replicate(members=self.members)


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

    def draw(self, names: Iterable[str], scale: float = 0.5) -> dict[str, Tensor]:
        """One draw of the weights of these names, in their order. Uses the global random state."""
        if self.count < 2:
            raise TrainingError(
                f"SWAG needs at least two snapshots to know a spread; it has {self.count}. Start it earlier."
            )
        kept = len(next(iter(self.deviations.values())))
        shared = torch.randn(kept)
        drawn = {}
        for name in names:  # not in the order of a dict, which a checkpoint does not keep
            mean = self.mean[name]
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
        names = [name for name, _ in like.named_parameters()]
        with random_state_kept(like, seed=seed):
            for network in made:
                drawn = self.draw(names, scale)
                for name, parameter in network.named_parameters():
                    parameter.copy_(drawn[name])
        return made

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the count, by name, for a checkpoint."""
        stores = {"mean": self.mean, "square": self.square, "deviations": self.deviations}
        found = {}
        for kind, store in stores.items():
            for name, tensor in store.items():
                found[f"{kind}/{name}"] = tensor
        return found


def _with(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.partition("/")[2]: t.clone() for name, t in tensors.items() if name.startswith(f"{kind}/")}
