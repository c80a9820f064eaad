"""Operators that change the extent of the data: pooling, resizing, padding and windows."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from covey.surgery.operators.facts import Facts, Named, rule
from covey.surgery.recorder import Recorder
from covey.surgery.sizes import Sizes, sizes_of


def _space(axes: int) -> Callable[..., list[Sizes]]:
    """The rule of an operator that changes the last axes, which are the data's, and keeps the others."""

    def resized(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
        return [space_sizes(facts.recorder, sizes_of(args[0]), made[0], axes)] * len(made)

    return resized


def space_sizes(rec: Recorder, sizes: Sizes, out: Tensor, axes: int) -> Sizes:
    """Sizes where the last axes were pooled or resized."""
    changed = []
    for before, after in zip(sizes[-axes:], out.shape[-axes:], strict=True):
        if int(before) == int(after):
            changed.append(before)
            continue
        if int(after) > 1:
            rec.position(before)
        changed.append(rec.from_data(after))
    return (*sizes[:-axes], *changed)


@rule("aten.unfold")
def _windows(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """`x.unfold(axis, size, step)`: windows along an axis, their entries last."""
    sizes = list(sizes_of(args[0]))
    axis = args[1] % len(sizes)
    facts.recorder.position(sizes[axis])
    sizes[axis] = facts.recorder.from_data(made[0].shape[axis])
    return [(*sizes, made[0].shape[-1])]


rule("aten.avg_pool1d", "aten.upsample_nearest1d", "aten.upsample_linear1d", "aten.reflection_pad1d")(
    _space(1)
)
rule(
    "aten.max_pool2d_with_indices",
    "aten.max_unpool2d",
    "aten.avg_pool2d",
    "aten._adaptive_avg_pool2d",
    "aten.adaptive_max_pool2d",
    "aten.upsample_nearest2d",
    "aten.upsample_bilinear2d",
    "aten._upsample_bilinear2d_aa",
    "aten.upsample_bicubic2d",
    "aten._upsample_bicubic2d_aa",
    "aten.reflection_pad2d",
    "aten.replication_pad2d",
)(_space(2))
rule(
    "aten.max_pool3d_with_indices",
    "aten.max_unpool3d",
    "aten.avg_pool3d",
    "aten._adaptive_avg_pool3d",
    "aten.adaptive_max_pool3d",
    "aten.upsample_nearest3d",
    "aten.upsample_trilinear3d",
)(_space(3))
