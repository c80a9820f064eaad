"""What is evaluated: an ensemble, or a plain network as an ensemble of one, behind one set of names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from covey.calibration import Temperature
from covey.ensemble import Ensemble
from covey.errors import EvaluationError
from covey.networks.modes import evaluating


@dataclass(frozen=True, eq=False)
class EvaluatedModel:
    """An ensemble or a plain network, ready to be asked.

    Args:
        module: the ensemble or the network itself.
        outputs: members' outputs (M, B, ...) for a batch (B, ...), in the present mode.
        evaluating: eval mode for a while, as a context.
        one_by_one: members run one after another for a while, whichever way was measured fastest, as a context.
        members: how many members answer.
        task: what the ensemble was made for; None for a plain network, which does not say.
        class_dim: which axis of a member's output holds the classes, if that was set.
        temperature: the ensemble's own calibration, if it has one.
    """

    module: nn.Module
    outputs: Callable[..., Tensor]
    evaluating: Callable[[], AbstractContextManager[None]]
    one_by_one: Callable[[], AbstractContextManager[None]] = nullcontext
    members: int = 1
    task: str | None = None
    class_dim: int | None = None
    temperature: Temperature | None = None

    @property
    def network(self) -> nn.Module:
        """The network, or the first member's without its memory."""
        return self.module.skeleton() if isinstance(self.module, Ensemble) else self.module

    @property
    def device(self) -> torch.device:
        """Where inputs must go."""
        first = next(self.module.parameters(), None)
        return torch.device("cpu") if first is None else first.device


def evaluated_model(module: Any) -> EvaluatedModel:
    """An ensemble, or any network as an ensemble of one."""
    if not isinstance(module, nn.Module):
        raise EvaluationError(f"expected an ensemble or a network (nn.Module), got {type(module).__name__}")
    ensemble = _ensemble_in(module)
    if ensemble is None:
        return EvaluatedModel(module, partial(_outputs_of_one, module), partial(evaluating, module))
    return EvaluatedModel(
        ensemble,
        ensemble,
        ensemble.evaluating,
        partial(_one_by_one, ensemble),
        members=ensemble.members,
        task=ensemble.task,
        class_dim=ensemble.class_dim,
        temperature=ensemble.temperature,
    )


def _ensemble_in(module: nn.Module) -> Ensemble | None:
    """The ensemble itself, or the one inside what torch.compile or DistributedDataParallel put around it."""
    if isinstance(module, (DataParallel, DistributedDataParallel)):
        module = module.module
    # What torch.compile returns has this attribute; importing its class would import the whole compiler.
    module = getattr(module, "_orig_mod", module)
    return module if isinstance(module, Ensemble) else None


@contextmanager
def _one_by_one(ensemble: Ensemble) -> Iterator[None]:
    chosen, measured = ensemble.runs, ensemble.measured
    ensemble.run = "loop"
    try:
        yield
    finally:
        ensemble.runs, ensemble.measured = chosen, measured


def _outputs_of_one(network: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    outputs = network(*args, **kwargs)
    if not isinstance(outputs, Tensor):
        raise EvaluationError(
            f"the network answers with {type(outputs).__name__}, not with a tensor: convert it with output=..., which "
            "picks the logits"
        )
    return outputs[None]
