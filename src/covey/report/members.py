"""Figures of ensembles whose members differ: clusters by depth, score against time, the way between two members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from covey.ensemble import Ensemble
from covey.errors import EvaluationError
from covey.report.style import Figure, blank, finish, looks, styled
from covey.scores.landscape import interpolation
from covey.scores.subsets import Anytime, CostAxis


def clusters(ensemble: Ensemble, labels: Sequence[str] | None = None) -> Figure:
    """Which cluster each layer of each network belongs to, by depth. For `SuperWeights`.

    Args:
        ensemble: SuperWeights.
        labels: what to call the networks; "member 0", ... by default.
    """
    groups = ensemble.layout.facts.get("clusters")
    if groups is None:
        raise EvaluationError("the figure shows SuperWeights' clusters; this ensemble has none.")
    found = {(body, name): i for i, group in enumerate(groups) for body, name in group}
    networks = len(ensemble.records)
    labels = list(labels or (f"member {k}" for k in range(networks)))
    shared = {i for i in set(found.values()) if sum(c == i for c in found.values()) > 1}
    with styled():
        figure, axes = blank((6.4, 0.7 + 0.45 * networks))
        for body in range(networks):
            order = [name for name, _ in ensemble.skeleton(body).named_parameters() if (body, name) in found]
            for depth, name in enumerate(order):
                cluster = found[body, name]
                colour = f"C{cluster % 10}" if cluster in shared else "none"
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
                axes.text(depth + 0.46, body, str(cluster), ha="center", va="center", fontsize=6.5)
        axes.set_yticks(range(networks), labels)
        axes.set_xlabel("layer, by depth; the number and colour are its cluster, white stands alone")
        axes.invert_yaxis()
        axes.grid(visible=False)
        told = f"{len(set(found.values()))} clusters of {len(found)} layers, {len(shared)} of more than one layer."
        return finish(figure, "clusters", "Cluster membership by member and depth", told)


def anytime(found: Mapping[str, Anytime], by: CostAxis = "milliseconds") -> Figure:
    """Score against cost: every subset as a point, each ensemble's front as a line."""
    unit = {
        "milliseconds": f"ms for a batch of {next(iter(found.values())).batch}",
        "multiply_adds": "multiply-adds",
    }
    with styled():
        figure, axes = blank()
        for name, look in looks(list(found), next(iter(found))).items():
            every = found[name].subsets
            axes.scatter(
                [getattr(s, by) for s in every], [s.score for s in every], s=8, color=look.colour, alpha=0.4
            )
            front = found[name].front(by)
            axes.plot(
                [getattr(s, by) for s in front],
                [s.score for s in front],
                marker=look.marker,
                color=look.colour,
                label=name,
            )
        axes.set_xlabel(unit[by])
        axes.set_ylabel("score")
        axes.legend()
        told = "; ".join(f"{name}: best {max(s.score for s in a.subsets):.4f}" for name, a in found.items())
        return finish(figure, f"anytime-{by}", "Score of subsets of members against their cost", told)


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
    with styled():
        figure, axes = blank()
        axes.plot(line["t"], [100 * a for a in line["accuracy"]], marker="o")
        axes.set_xlabel("from one member (0) to the other (1)")
        axes.set_ylabel("accuracy, %")
        low = min(line["accuracy"])
        ends = line["accuracy"][0], line["accuracy"][-1]
        told = f"Accuracy {ends[0]:.3f} and {ends[1]:.3f} at the ends, {low:.3f} at the lowest."
        return finish(figure, "between", "Accuracy between two members", told)
