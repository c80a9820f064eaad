"""The loss around and between networks: flatness, interpolation, planes.

All functions take plain networks (an ensemble's members: `ensemble.member(k)`), leave them as they are, and
evaluate loss (mean cross-entropy) and accuracy on inputs (N, ...) and labels (N,) in eval mode.
Floating-point buffers such as BatchNorm statistics are combined in the same way as the weights, or, with
`batch_statistics`, norms use those of the inputs, as in train mode; statistics of the ends mean little in between.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call

from covey.errors import EvaluationError
from covey.networks.modes import evaluating

Tensors = dict[str, Tensor]


def flatness(
    network: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    sigmas: Sequence[float] = (0.1, 0.2, 0.3, 0.4, 0.5),
    draws: int = 10,
    seed: int = 0,
) -> dict[str, list[float]]:
    """Rise of the loss under multiplicative noise on the weights, w (1 + sigma z) with z ~ N(0, 1).

    Returns lists "sigma", "rise" (mean over draws of the loss minus the loss without noise) and "std".
    """
    if draws < 1:
        raise EvaluationError(f"draws: expected 1 or more, got {draws}")
    generator = torch.Generator().manual_seed(seed)
    tensors = _tensors(network)
    trained = [name for name, _ in network.named_parameters()]
    base, _ = _loss_and_accuracy(network, tensors, inputs, labels)
    result: dict[str, list[float]] = {"sigma": list(sigmas), "rise": [], "std": []}
    for sigma in sigmas:
        rises = torch.zeros(draws, dtype=torch.float64)
        for draw in range(draws):
            noisy = dict(tensors)
            for name in trained:
                noisy[name] = _with_noise(tensors[name], sigma, generator)
            loss, _ = _loss_and_accuracy(network, noisy, inputs, labels)
            rises[draw] = loss - base
        result["rise"].append(float(rises.mean()))
        result["std"].append(float(rises.std()) if draws > 1 else 0.0)
    return result


def interpolation(
    first: nn.Module,
    second: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    points: int = 11,
    batch_statistics: bool = False,
) -> dict[str, list[float]]:
    """Loss and accuracy of (1 - t) first + t second for t from 0 to 1.

    Returns "t", "loss", "accuracy" and "barrier" (one number).

    The barrier is the largest rise of the loss above the straight line between the two ends.
    """
    if points < 2:
        raise EvaluationError(f"points: expected 2 or more, got {points}")
    if batch_statistics:
        first, second = _without_statistics((first, second))
    ends = [_tensors(first), _tensors(second)]
    steps = [i / (points - 1) for i in range(points)]
    losses, accuracies = [], []
    for t in steps:
        between = _combined(ends, (1 - t, t))
        loss, accuracy = _loss_and_accuracy(first, between, inputs, labels)
        losses.append(loss)
        accuracies.append(accuracy)
    rises = []
    for t, loss in zip(steps, losses, strict=True):
        straight = (1 - t) * losses[0] + t * losses[-1]
        rises.append(loss - straight)
    return {"t": steps, "loss": losses, "accuracy": accuracies, "barrier": [max(rises)]}


def plane(
    networks: Sequence[nn.Module],
    inputs: Tensor,
    labels: Tensor,
    *,
    points: int = 15,
    margin: float = 0.3,
    embeddings: Tensor | None = None,
    batch_statistics: bool = False,
) -> dict[str, list]:
    """Loss and accuracy on the plane through three networks.

    The axes are orthonormal, the first network lies at (0, 0), the second on the first axis. Distances are
    those of the weights, or of `embeddings` (3, D): where weights are linear in an embedding (a
    hypernetwork), both describe the same plane, and the embeddings give the papers' axes.

    Returns "corners" (3 pairs), "u" and "v" (grid coordinates), "loss" and "accuracy" (rows along v).
    """
    if len(networks) != 3:
        raise EvaluationError(f"plane: expected three networks, got {len(networks)}")
    if batch_statistics:
        networks = _without_statistics(networks)
    ends = [_tensors(network) for network in networks]
    if embeddings is None:
        embeddings = torch.stack([_weight_vector(network) for network in networks])
    corners = _corners(embeddings.double())
    u = _grid_axis(corners[:, 0], points, margin)
    v = _grid_axis(corners[:, 1], points, margin)
    losses, accuracies = [], []
    for y in v.tolist():
        loss_row, accuracy_row = [], []
        for x in u.tolist():
            here = _combined(ends, _shares(corners, x, y))
            loss, accuracy = _loss_and_accuracy(networks[0], here, inputs, labels)
            _check_finite(loss)
            loss_row.append(loss)
            accuracy_row.append(accuracy)
        losses.append(loss_row)
        accuracies.append(accuracy_row)
    return {
        "corners": corners.tolist(),
        "u": u.tolist(),
        "v": v.tolist(),
        "loss": losses,
        "accuracy": accuracies,
    }


def _with_noise(weight: Tensor, sigma: float, generator: Generator) -> Tensor:
    # Drawn in float64, so that a network has the same noise in every precision.
    noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return weight * (1 + sigma * noise.to(weight))


def _without_statistics(networks: Sequence[nn.Module]) -> list[nn.Module]:
    """Copies whose BatchNorms use the statistics of what they are given."""
    copies = [copy.deepcopy(network) for network in networks]
    for network in copies:
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.track_running_stats = False
                module.running_mean = None
                module.running_var = None
                module.num_batches_tracked = None
    return copies


def _corners(points: Tensor) -> Tensor:
    """Coordinates (3, 2) of three points (3, D) in their plane."""
    to_second = points[1] - points[0]
    to_third = points[2] - points[0]
    length = to_second.norm()
    if length > 0:
        along = (to_third @ to_second) / length
        height = (to_third - along * to_second / length).norm()
        if height > 1e-9 * to_third.norm():
            return torch.tensor([(0, 0), (length, 0), (along, height)], dtype=points.dtype)
    raise EvaluationError("plane: the three networks lie on one line (two are equal?), so they span no plane")


def _grid_axis(corners: Tensor, points: int, margin: float) -> Tensor:
    """Coordinates along one axis, from below the corners' least (3,) to above their greatest."""
    low, high = corners.min(), corners.max()
    pad = margin * (high - low)
    return torch.linspace(float(low - pad), float(high + pad), points, dtype=torch.float64)


def _shares(corners: Tensor, x: float, y: float) -> list[float]:
    """How much of each of the three networks lies at a point of their plane; the shares sum to 1."""
    system = torch.cat((corners.T, torch.ones(1, 3, dtype=corners.dtype)))
    point = torch.tensor([x, y, 1.0], dtype=corners.dtype)
    return torch.linalg.solve(system, point).tolist()


def _check_finite(loss: float) -> None:
    if not math.isfinite(loss):
        raise EvaluationError(
            "plane: the loss is no number somewhere on the plane, as where variances of norms, continued beyond "
            "the networks, fall below 0; set batch_statistics=True, or a smaller margin"
        )


def _tensors(network: nn.Module) -> Tensors:
    """Parameters and buffers by name."""
    tensors = {}
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        tensors[name] = tensor.detach()
    return tensors


def _weight_vector(network: nn.Module) -> Tensor:
    flat = [parameter.detach().flatten() for parameter in network.parameters()]
    return torch.cat(flat)


def _shapes(tensors: Tensors) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def _combined(ends: Sequence[Tensors], shares: Sequence[float]) -> Tensors:
    """The sum of the ends' tensors, each times its share; integers are the first's."""
    first = ends[0]
    for other in ends[1:]:
        if _shapes(first) != _shapes(other):
            raise EvaluationError(
                "networks differ in their tensors' names or shapes, so they cannot be combined"
            )
    combined = {}
    for name, tensor in first.items():
        if not tensor.is_floating_point():
            combined[name] = tensor
            continue
        total = torch.zeros_like(tensor)
        for share, end in zip(shares, ends, strict=True):
            total += share * end[name]
        combined[name] = total
    return combined


@torch.no_grad()
def _loss_and_accuracy(
    network: nn.Module, tensors: Tensors, inputs: Tensor, labels: Tensor
) -> tuple[float, float]:
    with evaluating(network):
        logits = functional_call(network, tensors, (inputs,))
    loss = F.cross_entropy(logits.double(), labels)
    accuracy = (logits.argmax(-1) == labels).double().mean()
    return float(loss), float(accuracy)
