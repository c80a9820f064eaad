"""One network out of several: their weights averaged, as long as that helps.

Wortsman et al. (2022). Networks that were fine-tuned from one start mostly lie in one basin of the loss, and so does
their average; networks that were trained apart do not, and their average is worth nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from covey.deploy.scoring import Judge, judge
from covey.ensemble import Ensemble
from covey.errors import OptionError
from covey.methods.replicate import DeepEnsemble
from covey.train.averaging import Average, refresh_statistics
from covey.trainings.trajectory import check_alike, gathered


@dataclass(frozen=True)
class Soup:
    """A network that is the average of several.

    Args:
        network: the average, a plain network.
        used: numbers of the networks in it, in the order in which they were added.
        score: the score that was compared.
        value: the average's score.
        alone: each network's own score.
        mixed: for each network that was tried and left out, the score of the average with it.
        apart: those left out because the average with them is worse than either alone, so they lie in different minima.
    """

    network: nn.Module = field(repr=False)
    used: tuple[int, ...]
    score: str
    value: float
    alone: tuple[float, ...]
    mixed: dict[int, float]
    apart: tuple[int, ...]

    def __str__(self) -> str:
        names = ", ".join(map(str, self.used))
        best = self.alone[self.used[0]]
        text = f"average of {len(self.used)} of {len(self.alone)} networks ({names}): {self.score} {self.value:.4f}"
        text += f"; the best alone has {best:.4f}."
        if self.apart:
            left = ", ".join(map(str, self.apart))
            text += (
                f" Networks that share no basin with it, so that an average means nothing: {left}. Keep them as an "
                "ensemble, or distill it."
            )
        return text


@torch.no_grad()
def soup(
    networks: Ensemble | Sequence[nn.Module],
    data: Any,
    *,
    score: str = "accuracy",
    inputs: Iterable[Any] = (),
) -> Soup:
    """Average networks greedily: best first, each kept if the average with it scores no worse.

    Args:
        networks: of one architecture, or an ensemble, whose members are meant.
        data: validation data: whatever `covey.evaluate` takes; of data with a validation part, that part.
        score: "accuracy", "nll", or for regressions "rmse".
        inputs: training inputs in batches, with which running statistics of an average are estimated anew; without
            them statistics are averaged like weights.
    """
    plain = _plain(networks)
    judged = judge(data, score)
    batches = list(inputs)
    score_of = _judged(networks, judged)
    alone = [score_of(network) for network in plain]
    lower = judged.is_better(0.0, 1.0)
    order = sorted(range(len(plain)), key=lambda k: alone[k] if lower else -alone[k])
    used = [order[0]]
    best, value = plain[order[0]], alone[order[0]]
    mixed: dict[int, float] = {}
    apart = []
    for k in order[1:]:
        tried = _average([plain[i] for i in (*used, k)], batches)
        found = score_of(tried)
        if not judged.is_better(value, found):
            used.append(k)
            best, value = tried, found
            continue
        mixed[k] = found
        if judged.is_better(alone[k], found):
            apart.append(k)
    return Soup(best, tuple(used), score, value, tuple(alone), mixed, tuple(apart))


def _judged(networks: Ensemble | Sequence[nn.Module], judged: Judge) -> Callable[[nn.Module], float]:
    """Scores a network, a member's as the ensemble's output is read."""
    if not isinstance(networks, Ensemble):
        return judged.of_network
    return lambda network: judged.of_network(gathered([network], DeepEnsemble(members=1), networks))


def _plain(networks: Ensemble | Sequence[nn.Module]) -> list[nn.Module]:
    if isinstance(networks, Ensemble):
        if not networks.stackable:
            raise OptionError("members of different architectures cannot be averaged.")
        return [networks.member(k) for k in range(networks.members)]
    plain = list(networks)
    if not plain or not all(isinstance(network, nn.Module) for network in plain):
        raise OptionError("networks are nn.Modules of one architecture, at least one, or an ensemble.")
    check_alike(plain)
    return plain


def _average(networks: Sequence[nn.Module], inputs: list[Any]) -> nn.Module:
    """Parameters averaged; floating statistics averaged too, or estimated anew."""
    average = Average()
    for network in networks:
        average.update(network)
    made = average.applied(networks[0])
    theirs = [dict(network.named_buffers()) for network in networks]
    for name, buffer in made.named_buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.stack([buffers[name] for buffers in theirs]).mean(0))
    if inputs:
        refresh_statistics(made, inputs)
    return made
