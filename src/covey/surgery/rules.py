"""What operations say about sizes: shortcuts that answer at once, and facts that shapes alone do not tell.

`Shortcuts` works on functions (linear, convolutions, norms, activations, attention): it writes the equations
down and makes the output's shape, which is some ten times faster than PyTorch's own symbolic rules. Whatever has no
shortcut runs as it is. `Facts` works below, on operators: which axes are looked up by index or cut at a fixed
place (tables and positions, never widths), which belong to a weight, and how axes are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from covey.surgery.symbols import Recorder, Size, as_int, expression, user_line

aten = torch.ops.aten

_SAME_SHAPE = frozenset(
    {
        F.relu, F.relu6, F.gelu, F.silu, F.mish, F.elu, F.selu, F.softplus, F.leaky_relu, F.hardswish, F.hardsigmoid,
        F.hardtanh, F.sigmoid, F.tanh, F.softmax, F.log_softmax, F.dropout, F.dropout1d, F.dropout2d, F.dropout3d,
        F.alpha_dropout, F.feature_alpha_dropout, F.normalize, F.prelu,
        torch.relu, torch.sigmoid, torch.tanh, torch.softmax, torch.log_softmax, torch.exp, torch.erf, torch.relu_,
        torch.prelu, torch.selu, torch.dropout,
        Tensor.relu, Tensor.relu_, Tensor.sigmoid, Tensor.sigmoid_, Tensor.tanh, Tensor.softmax, Tensor.exp,
        Tensor.contiguous, Tensor.clone, Tensor.detach,
    }
)  # fmt: skip


class Shortcuts(TorchFunctionMode):
    """Answers common functions on tensors of symbolic size."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.table: dict[Any, Callable[..., Tensor]] = {
            F.linear: self._linear,
            F.batch_norm: self._batch_norm,
            F.instance_norm: self._batch_norm,
            F.layer_norm: self._layer_norm,
            F.rms_norm: self._layer_norm,
            F.group_norm: self._group_norm,
            F.scaled_dot_product_attention: self._attention,
            F.pad: self._pad,
        }
        for rank in (1, 2, 3):
            self.table[getattr(F, f"conv{rank}d")] = self._convolution
            self.table[getattr(F, f"conv_transpose{rank}d")] = self._transposed

    def __torch_function__(
        self, func: Callable, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _SAME_SHAPE:
            return args[0].new_empty(args[0].shape, dtype=_float(args[0]))
        rule = self.table.get(func)
        return rule(*args, **kwargs) if rule else func(*args, **kwargs)

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        self.recorder.width(*weight.shape)
        self.recorder.sum_over(weight.shape[-1])
        self.recorder.equate(input.shape[-1], weight.shape[-1])
        if bias is not None:
            self.recorder.equate(bias.shape[0], weight.shape[0])
        return input.new_empty((*input.shape[:-1], *weight.shape[:-1]))

    def _convolution(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: Size = 1,
    ) -> Tensor:
        rec, rank = self.recorder, weight.dim() - 2
        rec.width(*weight.shape[:2])
        rec.sum_over(weight.shape[1] * groups)
        rec.equate(input.shape[-rank - 1], weight.shape[1] * groups)
        rec.divide(weight.shape[0], groups)
        if bias is not None:
            rec.equate(bias.shape[0], weight.shape[0])
        stride, dilation = _each(stride, rank), _each(dilation, rank)
        space = []
        for axis in range(rank):
            kernel, size = as_int(weight.shape[2 + axis]), as_int(input.shape[axis - rank])
            reach = dilation[axis] * (kernel - 1)
            pad = (
                {"same": reach, "valid": 0}[padding]
                if isinstance(padding, str)
                else 2 * _each(padding, rank)[axis]
            )
            space.append(rec.from_data((size + pad - reach - 1) // stride[axis] + 1))
        return input.new_empty((*input.shape[: -rank - 1], weight.shape[0], *space))

    def _transposed(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: Size = 1,
        dilation: Any = 1,
    ) -> Tensor:
        rec, rank = self.recorder, weight.dim() - 2
        rec.width(*weight.shape[:2])
        rec.sum_over(weight.shape[0])
        rec.equate(input.shape[-rank - 1], weight.shape[0])
        rec.divide(weight.shape[0], groups)
        if bias is not None:
            rec.equate(bias.shape[0], weight.shape[1] * groups)
        each = zip(*(_each(v, rank) for v in (stride, padding, output_padding, dilation)), strict=True)
        space = []
        for axis, (step, pad, extra, hole) in enumerate(each):
            kernel, size = as_int(weight.shape[2 + axis]), as_int(input.shape[axis - rank])
            space.append(rec.from_data((size - 1) * step - 2 * pad + hole * (kernel - 1) + extra + 1))
        return input.new_empty((*input.shape[: -rank - 1], weight.shape[1] * groups, *space))

    def _pad(self, input: Tensor, pad: Sequence[Size], *rest: Any, **options: Any) -> Tensor:
        shape: list[Size] = list(input.shape)
        for i in range(len(pad) // 2):
            size = shape[-1 - i] + pad[2 * i] + pad[2 * i + 1]
            inside = isinstance(shape[-1 - i], torch.SymInt) and not self.recorder.is_data(shape[-1 - i])
            shape[-1 - i] = size if inside else self.recorder.from_data(size)
        return input.new_empty(shape)

    def _batch_norm(self, input: Tensor, *tensors: Any, **options: Any) -> Tensor:
        for tensor in (*tensors, *options.values()):
            if isinstance(tensor, Tensor):
                self.recorder.equate(input.shape[1], tensor.shape[0])
        return input.new_empty(input.shape)

    def _layer_norm(
        self, input: Tensor, normalized_shape: Sequence[Size], *tensors: Any, **options: Any
    ) -> Tensor:
        for axis, size in enumerate(normalized_shape):
            self.recorder.equate(input.shape[axis - len(normalized_shape)], size)
            for tensor in (*tensors, *options.values()):
                if isinstance(tensor, Tensor):
                    self.recorder.equate(tensor.shape[axis], size)
        return input.new_empty(input.shape)

    def _group_norm(self, input: Tensor, num_groups: Size, *tensors: Any, **options: Any) -> Tensor:
        self.recorder.divide(input.shape[1], num_groups)
        if as_int(num_groups) == as_int(input.shape[1]):
            self.recorder.equate(num_groups, input.shape[1])
        return self._batch_norm(input, *tensors, **options)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor:
        rec = self.recorder
        rec.sum_over(query.shape[-1], value.shape[-1])
        rec.equate(query.shape[-1], key.shape[-1])
        rec.equate(key.shape[-2], value.shape[-2])
        grouped = options.get("enable_gqa", False)
        for axis in range(query.dim() - 2):
            rec.equate(key.shape[axis], value.shape[axis])
            if grouped and axis == query.dim() - 3:
                rec.divide(query.shape[axis], key.shape[axis])
            elif as_int(query.shape[axis]) == as_int(key.shape[axis]):
                rec.equate(query.shape[axis], key.shape[axis])
        scores = (*query.shape[:-1], key.shape[-2])
        mask = rest[0] if rest else options.get("attn_mask")
        for size, wanted in zip(
            reversed(mask.shape if mask is not None else ()), reversed(scores), strict=False
        ):
            if as_int(size) > 1:
                rec.equate(size, wanted)
        return query.new_empty((*query.shape[:-1], value.shape[-1]))


class Facts(TorchDispatchMode):
    """Watches operators for what equal sizes do not tell."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        rec, packet = self.recorder, func.overloadpacket
        if packet in _LOOKED_UP:
            _looked_up(rec, packet, args)
        elif packet in _CONTRACT:
            for matrix in args[_CONTRACT[packet] :][:2]:
                if not any(rec.is_data(size) for size in matrix.shape):
                    rec.width(*matrix.shape[-2:])
            rec.sum_over(args[_CONTRACT[packet]].shape[-1])
        elif packet in (aten.sum, aten.mean) and len(args) > 1 and args[1]:
            rec.sum_over(*(args[0].shape[dim] for dim in args[1]))
        elif packet is aten.cat:
            _cat(rec, *args)
        elif packet is aten.slice and len(args) > 2:
            size = args[0].shape[args[1]]
            cut = [bound for bound in args[2:4] if bound is not None and not _beyond(bound, size)]
            if cut and all(isinstance(bound, int) or rec.is_data(bound) for bound in cut):
                rec.position(size)
        out = func(*args, **(kwargs or {}))
        if packet in _RESHAPE:
            _reshaped(rec, args[0].shape, out.shape)
            out = _plain_data(rec, out)
        elif packet in _SPLIT:
            dim = args[2] if len(args) > 2 else (kwargs or {}).get("dim", 0)
            rec.order(args[0].shape[dim], "sum", tuple(part.shape[dim] for part in out))
        elif packet in _POOL and isinstance(out, Tensor):
            out = _plain_data(rec, out)
        if any(carries_data(leaf) for leaf in tree_leaves(args)):
            tree_map(mark_data, out)
        return out


_LOOKED_UP = {
    aten.embedding,
    aten.index,
    aten.index_select,
    aten.gather,
    aten.take,
    aten.scatter,
    aten.index_put,
}
_CONTRACT = {aten.mm: 0, aten.bmm: 0, aten.addmm: 1, aten.baddbmm: 1}
_RESHAPE = {aten.view, aten._unsafe_view, aten.reshape, aten._reshape_alias}
_SPLIT = {aten.split, aten.split_with_sizes, aten.chunk}
_POOL = {
    aten.max_pool2d, aten.avg_pool1d, aten.avg_pool2d, aten.avg_pool3d, aten.upsample_nearest2d,
    aten.upsample_bilinear2d, aten.upsample_bicubic2d, aten.upsample_nearest1d, aten.reflection_pad2d,
}  # fmt: skip


def mark_data(leaf: Any) -> Any:
    """Mark a tensor as computed from the network's input, and not from parameters alone."""
    if isinstance(leaf, Tensor):
        leaf.covey_data = True  # type: ignore[attr-defined]
    return leaf


def carries_data(leaf: Any) -> bool:
    """Whether a tensor was computed from the network's input."""
    return isinstance(leaf, Tensor) and getattr(leaf, "covey_data", False)


def _looked_up(rec: Recorder, packet: Any, args: tuple) -> None:
    if packet is aten.embedding:
        rec.position(args[0].shape[0])
    elif packet in (aten.index, aten.index_put):
        for axis, index in enumerate(args[1]):
            if index is not None:
                rec.position(args[0].shape[axis])
    elif packet is not aten.take:
        rec.position(args[0].shape[args[1]])


def _cat(rec: Recorder, tensors: Sequence[Tensor], dim: int = 0) -> None:
    tensors = [tensor for tensor in tensors if tensor.dim() > 1 or as_int(tensor.shape[0])]
    parts = tuple(tensor.shape[dim] for tensor in tensors)
    if any(rec.is_data(part) for part in parts):
        for tensor, part in zip(tensors, parts, strict=True):
            if not carries_data(tensor):
                rec.position(part)  # class tokens and the like, put next to the data
    if any(isinstance(part, torch.SymInt) for part in parts):
        rec.order(sum(parts[1:], parts[0]), "sum", parts)


def _reshaped(rec: Recorder, before: Sequence[Size], after: Sequence[Size]) -> None:
    """Match the axes of a view from the left: one axis split into several, or several merged into one."""
    where = user_line(rec.modules)
    if where is not None:
        rec.seen.setdefault(where.module, set()).update(expression(size) for size in after)
    i = j = 0
    while i < len(before) and j < len(after):
        ends = [i + 1, j + 1]
        sizes = [as_int(before[i]), as_int(after[j])]
        while sizes[0] != sizes[1]:
            side, axes = (0, before) if sizes[0] < sizes[1] else (1, after)
            if ends[side] == len(axes):
                return
            sizes[side] *= as_int(axes[ends[side]])
            ends[side] += 1
        left, right = tuple(before[i : ends[0]]), tuple(after[j : ends[1]])
        if len(left) == 1 and len(right) > 1:
            rec.order(left[0], "product", right)
        elif len(right) == 1 and len(left) > 1:
            rec.order(right[0], "product", left)
        i, j = ends


def _plain_data(rec: Recorder, tensor: Tensor) -> Tensor:
    """Write sizes that follow from the input's as symbols of their own; as formulas they grow with depth."""
    sizes = [rec.from_data(size) if _formula_of_data(rec, size) else size for size in tensor.shape]
    same = all(a is b for a, b in zip(sizes, tensor.shape, strict=True))
    return tensor if same else tensor.new_empty(sizes)


def _formula_of_data(rec: Recorder, size: Size) -> bool:
    expr = expression(size)
    return not (expr.is_Symbol or expr.is_Number) and expr.free_symbols <= rec.data


def _beyond(bound: Size, size: Size) -> bool:
    return as_int(bound) == 0 or as_int(bound) >= as_int(size)


def _each(value: Any, rank: int) -> list[int]:
    values = list(value) if isinstance(value, tuple | list) else [value]
    return [as_int(v) for v in (values * rank if len(values) == 1 else values)]


def _float(tensor: Tensor) -> torch.dtype:
    return tensor.dtype if tensor.is_floating_point() else torch.get_default_dtype()


def recurrent_forward(module: nn.RNNBase, recorder: Recorder) -> Callable[..., Any]:
    """A stand-in for the forward of nn.LSTM, nn.GRU and nn.RNN, which have no symbolic form in PyTorch."""
    gates = {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
    hidden, directions = module.hidden_size, 2 if module.bidirectional else 1
    answer = module.proj_size or hidden

    def forward(input: Tensor, hx: Any = None) -> Any:
        width = input.shape[-1]
        recorder.equate(width, module.input_size)
        for layer in range(module.num_layers):
            for suffix in ("", "_reverse")[:directions]:
                tensors = {k: t for k, t in module._parameters.items() if k.endswith(f"_l{layer}{suffix}")}
                for name, tensor in tensors.items():
                    assert tensor is not None
                    recorder.width(*tensor.shape)
                    recorder.sum_over(hidden, *tensor.shape[1:])
                    recorder.equate(
                        tensor.shape[0], answer if name.startswith("weight_hr") else gates * hidden
                    )
                    recorder.order(tensor.shape[0], "product", (gates, hidden)) if "hr" not in name else None
                    if "weight" in name:
                        columns = width if "_ih" in name else hidden if "_hr" in name else answer
                        recorder.equate(tensor.shape[1], columns)
            width = directions * answer
        if directions == 2:
            recorder.order(width, "sum", (answer, answer))
        batch = () if input.dim() == 2 else (input.shape[0 if module.batch_first else 1],)
        state = (module.num_layers * directions, *batch)
        last = input.new_empty((*state, answer))
        cell = (last, input.new_empty((*state, hidden))) if module.mode == "LSTM" else last
        return input.new_empty((*input.shape[:-1], width)), cell

    return forward


def recurrent_cell_forward(module: nn.RNNCellBase, recorder: Recorder) -> Callable[..., Any]:
    """A stand-in for the forward of nn.LSTMCell, nn.GRUCell and nn.RNNCell."""
    gates = 4 if isinstance(module, nn.LSTMCell) else 3 if isinstance(module, nn.GRUCell) else 1
    hidden = module.hidden_size

    def forward(input: Tensor, hx: Any = None) -> Any:
        recorder.equate(input.shape[-1], module.input_size)
        for name, tensor in module._parameters.items():
            if tensor is None:
                continue
            recorder.width(*tensor.shape)
            recorder.sum_over(hidden, *tensor.shape[1:])
            recorder.equate(tensor.shape[0], gates * hidden)
            recorder.order(tensor.shape[0], "product", (gates, hidden))
            if "weight" in name:
                recorder.equate(tensor.shape[1], input.shape[-1] if "_ih" in name else hidden)
        state = input.new_empty((*input.shape[:-1], hidden))
        return (state, state.clone()) if isinstance(module, nn.LSTMCell) else state

    return forward
