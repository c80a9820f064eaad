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
from torch import Tensor, nn
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
    base = _loss(network, tensors, inputs, labels)[0]
    result: dict[str, list[float]] = {"sigma": list(sigmas), "rise": [], "std": []}
    for sigma in sigmas:
        rises = []
        for _ in range(draws):
            noisy = dict(tensors)
            for name in trained:
                weight = tensors[name]
                noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight)
                noisy[name] = weight * (1 + sigma * noise)
            rises.append(_loss(network, noisy, inputs, labels)[0] - base)
        values = torch.tensor(rises, dtype=torch.float64)
        result["rise"].append(float(values.mean()))
        result["std"].append(float(values.std()) if draws > 1 else 0.0)
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
    scored = [_loss(first, _combine(ends, (1 - t, t)), inputs, labels) for t in steps]
    losses = [loss for loss, _ in scored]
    line = [(1 - t) * losses[0] + t * losses[-1] for t in steps]
    barrier = max(loss - straight for loss, straight in zip(losses, line, strict=True))
    return {"t": steps, "loss": losses, "accuracy": [a for _, a in scored], "barrier": [barrier]}


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
        names = [name for name, _ in networks[0].named_parameters()]
        embeddings = torch.stack([torch.cat([end[n].flatten() for n in names]) for end in ends])
    corners = _corners(embeddings.double())
    low, high = corners.amin(0), corners.amax(0)
    pad = margin * (high - low)
    u = torch.linspace(float(low[0] - pad[0]), float(high[0] + pad[0]), points, dtype=torch.float64)
    v = torch.linspace(float(low[1] - pad[1]), float(high[1] + pad[1]), points, dtype=torch.float64)
    system = torch.cat((corners.T, torch.ones(1, 3, dtype=torch.float64)))
    rows: list[list[tuple[float, float]]] = []
    for y in v:
        row = []
        for x in u:
            weights = torch.linalg.solve(system, torch.stack((x, y, torch.ones_like(x))))
            row.append(_loss(networks[0], _combine(ends, weights.tolist()), inputs, labels))
        if not all(math.isfinite(loss) for loss, _ in row):
            raise EvaluationError(
                "plane: the loss is no number somewhere on the plane, as where variances of norms, continued beyond "
                "the networks, fall below 0; set batch_statistics=True, or a smaller margin"
            )
        rows.append(row)
    return {
        "corners": corners.tolist(),
        "u": u.tolist(),
        "v": v.tolist(),
        "loss": [[loss for loss, _ in row] for row in rows],
        "accuracy": [[accuracy for _, accuracy in row] for row in rows],
    }


def _without_statistics(networks: Sequence[nn.Module]) -> list[nn.Module]:
    """Copies whose BatchNorms use the statistics of what they are given."""
    copies = [copy.deepcopy(network) for network in networks]
    for network in copies:
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
    return copies


def _corners(points: Tensor) -> Tensor:
    """Coordinates (3, 2) of three points (3, D) in their plane."""
    a, b = points[1] - points[0], points[2] - points[0]
    length = a.norm()
    along = (b @ a) / length if length > 0 else length
    height = (b - along * a / length).norm() if length > 0 else length
    if length == 0 or height <= 1e-9 * b.norm():
        raise EvaluationError(
            "plane: the three networks lie on one line (two are equal?), so they span no plane"
        )
    zero = torch.zeros_like(length)
    return torch.stack((torch.stack((zero, zero)), torch.stack((length, zero)), torch.stack((along, height))))


def _tensors(network: nn.Module) -> Tensors:
    return {name: t.detach() for name, t in [*network.named_parameters(), *network.named_buffers()]}


def _combine(ends: Sequence[Tensors], weights: Sequence[float]) -> Tensors:
    first = ends[0]
    for other in ends[1:]:
        if {n: t.shape for n, t in first.items()} != {n: t.shape for n, t in other.items()}:
            raise EvaluationError(
                "networks differ in their tensors' names or shapes, so they cannot be combined"
            )
    return {
        name: sum((w * end[name] for w, end in zip(weights, ends, strict=True)), torch.zeros_like(tensor))
        if tensor.is_floating_point()
        else tensor
        for name, tensor in first.items()
    }


@torch.no_grad()
def _loss(network: nn.Module, tensors: Tensors, inputs: Tensor, labels: Tensor) -> tuple[float, float]:
    with evaluating(network):
        logits = functional_call(network, tensors, (inputs,))
    loss = F.cross_entropy(logits.double(), labels)
    return float(loss), float((logits.argmax(-1) == labels).double().mean())
