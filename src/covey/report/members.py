"""Figures of ensembles whose members differ: clusters by depth, score against time, the way between two members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from covey.ensemble import Ensemble
from covey.errors import EvaluationError
from covey.report.style import Figure, Look, blank, finish, label, looks, styled
from covey.scores.landscape import interpolation
from covey.scores.subsets import CostAxis, Measured

MOST_NUMBERED = 60
"""Layers of a network, above which the figure of clusters has room for colours only."""

AXES = {
    "accuracy": "accuracy",
    "nll": "mean log-likelihood",
    "mse": "minus the mean squared error",
    "rmse": "minus the RMSE",
    "pinball": "minus the pinball loss",
}
"""What the scores of subsets are called beside a figure."""


def clusters(ensemble: Ensemble, labels: Sequence[str] | None = None) -> Figure:
    """Which cluster each layer of each network belongs to, by depth. For `SuperWeights`.

    Args:
        ensemble: SuperWeights.
        labels: what to call the networks; "member 0", ... by default, "all members" where they have one.
    """
    return draw_clusters(clusters_by_depth(ensemble), labels)


def clusters_by_depth(ensemble: Ensemble) -> list[list[int]]:
    """The clusters of each network's layers, in the order of depth."""
    cluster_of = _clusters(ensemble)
    found = []
    for body in range(len(ensemble.records)):
        names = [name for name, _ in ensemble.skeleton(body).named_parameters()]
        found.append([cluster_of[body, name] for name in names if (body, name) in cluster_of])
    return found


def draw_clusters(
    by_depth: Sequence[Sequence[int]], labels: Sequence[str] | None = None, name: str = ""
) -> Figure:
    """The figure of `clusters`, from what `clusters_by_depth` found; a name stands in its title."""
    if labels is None:
        one = len(by_depth) == 1
        labels = ["all members"] if one else [f"member {k}" for k in range(len(by_depth))]
    sizes = Counter(cluster for layers in by_depth for cluster in layers)
    numbered = max(map(len, by_depth), default=0) <= MOST_NUMBERED
    shared = {cluster for cluster, size in sizes.items() if size > 1}
    networks = len(by_depth)
    title = "Cluster membership by member and depth" + (f": {name}" if name else "")
    with styled():
        figure, axes = blank((6.4, 0.7 + 0.45 * networks))
        for body, layers in enumerate(by_depth):
            for depth, cluster in enumerate(layers):
                colour = f"C{cluster % 10}" if cluster in shared else "none"
                _draw_layer(axes, body, depth, str(cluster) if numbered else "", colour)
        axes.set_yticks(range(networks), [label(text) for text in labels])
        axes.set_xlabel("layer, by depth; the number and colour are its cluster, white stands alone")
        axes.set_title(label(title), loc="left")
        axes.invert_yaxis()
        axes.grid(visible=False)
        told = f"{len(sizes)} clusters of {sum(sizes.values())} layers, {len(shared)} of more than one layer."
        return finish(figure, "clusters", title, told)


def _clusters(ensemble: Ensemble) -> dict[tuple[int, str], int]:
    """The cluster of each network's layers, by network and name."""
    groups = ensemble.layout.facts.get("clusters")
    if groups is None:
        raise EvaluationError("the figure shows SuperWeights' clusters; this ensemble has none.")
    found = {}
    for cluster, layers in enumerate(groups):
        for body, name in layers:
            found[body, name] = cluster
    return found


def _draw_layer(axes: Any, body: int, depth: int, number: str, colour: str) -> None:
    axes.barh(
        body,
        0.92,
        left=depth,
        height=0.7,
        color=colour,
        alpha=0.75,
        edgecolor="gray",
        linewidth=0.5,
    )
    if number:
        axes.text(depth + 0.46, body, number, ha="center", va="center", fontsize=6.5)


def anytime(found: Mapping[str, Measured], by: CostAxis = "milliseconds") -> Figure:
    """Score against cost: every subset as a point, each ensemble's front as a line."""
    names = list(found)
    batch = found[names[0]].batch
    units = {"milliseconds": f"ms for a batch of {batch}", "multiply_adds": "multiply-adds"}
    told = []
    with styled():
        figure, axes = blank((6.4, 3.8))
        for name, look in looks(names, names[0]).items():
            _draw_subsets(axes, found[name], by, name, look)
            best = max(subset.score for subset in found[name].subsets)
            told.append(f"{name}: best {best:.4f}")
        axes.set_xlabel(units[by])
        axes.set_ylabel(AXES.get(found[names[0]].score, "score"))
        figure.legend(loc="outside right upper")
        title = "Score of subsets of members against their cost"
        axes.set_title(title, loc="left")
        return finish(figure, f"anytime-{by}", title, "; ".join(told))


def _draw_subsets(axes: Any, found: Measured, by: CostAxis, name: str, look: Look) -> None:
    costs = [getattr(subset, by) for subset in found.subsets]
    scores = [subset.score for subset in found.subsets]
    axes.scatter(costs, scores, s=8, color=look.colour, alpha=0.4)
    front = found.front(by)
    axes.plot(
        [getattr(subset, by) for subset in front],
        [subset.score for subset in front],
        marker=look.marker,
        color=look.colour,
        label=label(name),
    )


def between(first: nn.Module, second: nn.Module, inputs: Tensor, labels: Tensor, points: int = 11) -> Figure:
    """Accuracy on the straight line between two members' weights, with norms on the batch's own statistics.

    Args:
        first: a member, `ensemble.member(0)`.
        second: another, of the same shapes.
        inputs: (N, ...), one batch.
        labels: (N,).
        points: how many along the line.
    """
    line = interpolation(first, second, inputs, labels, points=points, batch_statistics=True)
    accuracy = line["accuracy"]
    with styled():
        figure, axes = blank()
        axes.plot(line["t"], [100 * share for share in accuracy], marker="o")
        axes.set_xlabel("from one member (0) to the other (1)")
        axes.set_ylabel("accuracy, %")
        told = f"Accuracy {accuracy[0]:.3f} and {accuracy[-1]:.3f} at the ends, {min(accuracy):.3f} at the lowest."
        return finish(figure, "between", "Accuracy between two members", told)
