"""What PyTorch's operators say about sizes that equal sizes alone do not.

`functions` works on what a network calls, this module on what is run below: which axes are looked up by index or cut
at a fixed place (tables and positions, never widths), which belong to a weight and are summed over, and how axes are
put together. A fact that shows in the arguments has its rule in `BEFORE`; one that shows in the result, in `AFTER`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from covey.surgery.recorder import Recorder, Size, as_int, expression
from covey.surgery.source import user_line
from covey.surgery.torch_internals import leaves, map_leaves, require_operators

Before = Callable[[Recorder, tuple], None]
Named = dict[str, Any]  # an operator's arguments by keyword
After = Callable[[Recorder, tuple, Named, Any], Any]


class Facts:
    """Notes what operators tell about sizes; made for `torch_internals.watch_operators`."""

    def __init__(self, recorder: Recorder) -> None:
        require_operators(BEFORE.keys() | AFTER.keys())
        self.recorder = recorder

    def observe(
        self,
        name: str,
        args: tuple,
        kwargs: Named,
        run: Callable[[], Any],
    ) -> Any:
        """Run one operator, note what it tells, and mark its result if it comes from the input."""
        before = BEFORE.get(name)
        if before is not None:
            before(self.recorder, args)
        out = run()
        after = AFTER.get(name)
        if after is not None:
            out = after(self.recorder, args, kwargs, out)
        if any(carries_data(leaf) for leaf in leaves(args)):
            map_leaves(mark_data, out)
        return out


# --- data or parameters ------------------------------------------------------------------------------------------


def mark_data(leaf: Any) -> Any:
    """Mark a tensor as computed from the network's input, and not from parameters alone."""
    if isinstance(leaf, Tensor):
        leaf.covey_data = True  # type: ignore[attr-defined]
    return leaf


def carries_data(leaf: Any) -> bool:
    """Whether a tensor was computed from the network's input."""
    return isinstance(leaf, Tensor) and getattr(leaf, "covey_data", False)


# --- tables: axes that are looked up -----------------------------------------------------------------------------


def _embedding(rec: Recorder, args: tuple) -> None:
    table = args[0]
    rec.position(table.shape[0])


def _index(rec: Recorder, args: tuple) -> None:
    tensor, indices = args[:2]
    for axis, index in enumerate(indices):
        if index is not None:
            rec.position(tensor.shape[axis])


def _index_along_axis(rec: Recorder, args: tuple) -> None:
    tensor, axis = args[:2]
    rec.position(tensor.shape[axis])


def _slice(rec: Recorder, args: tuple) -> None:
    """An axis that is cut at a fixed place is made of positions: channels have no order that a cut could follow."""
    if len(args) < 3:
        return
    tensor, axis = args[:2]
    size = tensor.shape[axis]
    cuts = []
    for bound in args[2:4]:
        if bound is not None and not _is_an_end(bound, size):
            cuts.append(bound)
    is_fixed = [isinstance(cut, int) or rec.is_data(cut) for cut in cuts]
    if cuts and all(is_fixed):
        rec.position(size)


def _is_an_end(bound: Size, size: Size) -> bool:
    """Whether a slice's bound is the axis's own beginning or end, so that it cuts nothing off."""
    return as_int(bound) == 0 or as_int(bound) >= as_int(size)


# --- products: axes of weights, and axes that are summed over ----------------------------------------------------


def _matrix_product(rec: Recorder, args: tuple) -> None:
    _contract(rec, args[0], args[1])


def _added_matrix_product(rec: Recorder, args: tuple) -> None:
    _contract(rec, args[1], args[2])


def _contract(rec: Recorder, left: Tensor, right: Tensor) -> None:
    for matrix in (left, right):
        if not any(map(rec.is_data, matrix.shape)):  # a weight
            rec.width(*matrix.shape[-2:])
    rec.sum_over(left.shape[-1])


def _reduction(rec: Recorder, args: tuple) -> None:
    if len(args) > 1 and args[1]:
        tensor, axes = args[:2]
        for axis in axes:
            rec.sum_over(tensor.shape[axis])


# --- how axes are put together -----------------------------------------------------------------------------------


def _concatenation(rec: Recorder, args: tuple) -> None:
    given = args[0]
    axis = args[1] if len(args) > 1 else 0
    tensors = []
    for tensor in given:
        # PyTorch lets an empty list of numbers be joined to anything.
        is_empty = tensor.dim() <= 1 and not as_int(tensor.shape[0])
        if not is_empty:
            tensors.append(tensor)
    parts = tuple(tensor.shape[axis] for tensor in tensors)
    if any(map(rec.is_data, parts)):
        for tensor, part in zip(tensors, parts, strict=True):
            if not carries_data(tensor):
                rec.position(part)  # class tokens and the like, put next to the data
    if any(isinstance(part, torch.SymInt) for part in parts):
        whole = sum(parts[1:], parts[0])
        rec.compose(whole, "sum", parts)


def _split(
    rec: Recorder,
    args: tuple,
    kwargs: Named,
    out: Any,
) -> Any:
    axis = args[2] if len(args) > 2 else kwargs.get("dim", 0)
    parts = tuple(part.shape[axis] for part in out)
    rec.compose(args[0].shape[axis], "sum", parts)
    return out


def _view(
    rec: Recorder,
    args: tuple,
    kwargs: Named,
    out: Any,
) -> Any:
    before, after = args[0].shape, out.shape
    where = user_line(rec.modules)
    if where is not None:
        viewed = rec.viewed.setdefault(where.module, set())
        viewed.update(map(expression, after))
    _match_axes(rec, before, after)
    return _with_plain_sizes(rec, out)


def _match_axes(rec: Recorder, before: Sequence[Size], after: Sequence[Size]) -> None:
    """Match the axes of a view from the left: one axis split into several, or several merged into one."""
    i = j = 0
    while i < len(before) and j < len(after):
        # Take axes from the shorter side until both sides hold as many entries.
        i_end, j_end = i + 1, j + 1
        left = as_int(before[i])
        right = as_int(after[j])
        while left != right:
            if left < right:
                if i_end == len(before):
                    return
                left *= as_int(before[i_end])
                i_end += 1
            else:
                if j_end == len(after):
                    return
                right *= as_int(after[j_end])
                j_end += 1
        olds = tuple(before[i:i_end])
        news = tuple(after[j:j_end])
        if len(olds) == 1 and len(news) > 1:
            rec.compose(olds[0], "product", news)
        elif len(news) == 1 and len(olds) > 1:
            rec.compose(news[0], "product", olds)
        i, j = i_end, j_end


# --- short formulas ----------------------------------------------------------------------------------------------


def _pooling(
    rec: Recorder,
    args: tuple,
    kwargs: Named,
    out: Any,
) -> Any:
    if isinstance(out, Tensor):
        return _with_plain_sizes(rec, out)
    return out


def _with_plain_sizes(rec: Recorder, tensor: Tensor) -> Tensor:
    """Write sizes that follow from the input's as symbols of their own; as formulas they grow with depth."""
    if not any(isinstance(size, torch.SymInt) for size in tensor.shape):
        return tensor
    sizes: list[Size] = []
    for size in tensor.shape:
        is_formula = _is_formula_of_data(rec, size)
        sizes.append(rec.from_data(size) if is_formula else size)
    # A fresh tensor is contiguous: it has no strides about which PyTorch would ask more questions.
    return tensor.new_empty(sizes)


def _is_formula_of_data(rec: Recorder, size: Size) -> bool:
    formula = expression(size)
    if formula.is_Symbol or formula.is_Number:
        return False
    return formula.free_symbols <= rec.data


BEFORE: dict[str, Before] = {
    "aten.embedding": _embedding,
    "aten.index": _index,
    "aten.index_put": _index,
    "aten.index_select": _index_along_axis,
    "aten.gather": _index_along_axis,
    "aten.scatter": _index_along_axis,
    "aten.slice": _slice,
    "aten.mm": _matrix_product,
    "aten.bmm": _matrix_product,
    "aten.addmm": _added_matrix_product,
    "aten.baddbmm": _added_matrix_product,
    "aten.sum": _reduction,
    "aten.mean": _reduction,
    "aten.cat": _concatenation,
}

AFTER: dict[str, After] = {
    "aten.view": _view,
    "aten._unsafe_view": _view,
    "aten.reshape": _view,
    "aten._reshape_alias": _view,
    "aten.split": _split,
    "aten.split_with_sizes": _split,
    "aten.chunk": _split,
    "aten.max_pool2d": _pooling,
    "aten.avg_pool1d": _pooling,
    "aten.avg_pool2d": _pooling,
    "aten.avg_pool3d": _pooling,
    "aten.upsample_nearest1d": _pooling,
    "aten.upsample_nearest2d": _pooling,
    "aten.upsample_bilinear2d": _pooling,
    "aten.upsample_bicubic2d": _pooling,
    "aten.reflection_pad2d": _pooling,
}
