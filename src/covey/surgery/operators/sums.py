"""Operators that sum over axes: reductions and products of matrices."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from covey.surgery.operators.facts import Facts, Named, broadcast, rule
from covey.surgery.recorder import Recorder
from covey.surgery.sizes import Sizes, sizes_of


def _reduction(place: int) -> Callable[..., list[Sizes]]:
    """The rule of an operator that reduces the axes in its argument `place`, or all."""

    def reduced(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
        sizes = sizes_of(args[0])
        axes = args[place] if len(args) > place else kwargs.get("dim")
        if isinstance(axes, int):
            axes = [axes]
        if not axes:
            axes = range(len(sizes))
        gone = {int(axis) % len(sizes) for axis in axes} if sizes else set()
        facts.recorder.sum_over(*[sizes[axis] for axis in gone])
        if made[0].dim() == len(sizes):
            return [tuple(1 if axis in gone else size for axis, size in enumerate(sizes))] * len(made)
        return [tuple(size for axis, size in enumerate(sizes) if axis not in gone)] * len(made)

    return reduced


def contract(rec: Recorder, left: Tensor, right: Tensor) -> None:
    """Write down that a product of matrices sums over the last axis of one and the last but one of the other."""
    ours, theirs = sizes_of(left), sizes_of(right)
    for sizes in (ours, theirs):
        if not any(map(rec.is_data, sizes)):  # a weight
            rec.width(*sizes[-2:])
    rec.sum_over(ours[-1])
    rec.equate(ours[-1], theirs[-2] if len(theirs) > 1 else theirs[-1])


def matrix_product(rec: Recorder, left: Tensor, right: Tensor) -> Sizes:
    """(..., n, k) and (..., k, m) -> (..., n, m); a vector lacks its outer axis."""
    contract(rec, left, right)
    ours, theirs = sizes_of(left), sizes_of(right)
    batches = [shape for shape in (ours[:-2], theirs[:-2]) if shape]
    batch = broadcast(rec, batches) if batches else ()
    rows = ours[-2:-1]
    columns = theirs[-1:] if len(theirs) > 1 else ()
    return (*batch, *rows, *columns)


@rule("aten.mm", "aten.bmm", "aten.mv", "aten.dot", "aten.vdot")
def _matrix_product(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [matrix_product(facts.recorder, args[0], args[1])]


@rule("aten.addmm", "aten.baddbmm", "aten.addmv")
def _added_matrix_product(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    out = matrix_product(facts.recorder, args[1], args[2])
    return [broadcast(facts.recorder, [out, sizes_of(args[0])])]


@rule("aten._cdist_forward", "aten._euclidean_dist")
def _distances(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """(..., n, k) and (..., m, k) -> (..., n, m)."""
    (*batch, rows, width), (*other_batch, columns, other_width) = sizes_of(args[0]), sizes_of(args[1])
    facts.recorder.equate(width, other_width)
    facts.recorder.sum_over(width)
    return [(*broadcast(facts.recorder, [tuple(batch), tuple(other_batch)]), rows, columns)]


rule(
    "aten.sum",
    "aten.nansum",
    "aten.mean",
    "aten.prod",
    "aten.amax",
    "aten.amin",
    "aten.argmax",
    "aten.argmin",
    "aten.any",
    "aten.all",
    "aten.var",
    "aten.std",
    "aten.var_mean",
    "aten.std_mean",
    "aten.median",
    "aten.logsumexp",
    "aten.mode",
    "aten.aminmax",
    "aten.max",
    "aten.min",
)(_reduction(1))
rule("aten.norm", "aten.linalg_vector_norm")(_reduction(2))


@rule("aten.mse_loss", "aten.smooth_l1_loss", "aten.huber_loss")
def _loss(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """Element by element, and then one number unless asked otherwise."""
    each = broadcast(facts.recorder, [sizes_of(args[0]), sizes_of(args[1])])
    if made[0].dim():
        return [each]
    facts.recorder.sum_over(*each)
    return [()]


@rule("aten.nll_loss_forward", "aten.nll_loss2d_forward")
def _loss_of_classes(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """One number for each sample, or for all, and the weight of all; classes are counted, so they are no width."""
    outputs = sizes_of(args[0])
    axis = 1 if len(outputs) > 1 else 0
    if made[0].dim():
        return [outputs[:axis] + outputs[axis + 1 :], ()]
    return [(), ()]
