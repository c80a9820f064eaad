"""Products of matrices, and attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from covey.surgery.operators import (
    broadcast,
    matrix_product,
)
from covey.surgery.operators.sums import contract
from covey.surgery.recorder import Recorder
from covey.surgery.sizes import Sizes, sizes_of
from covey.surgery.torch_internals import leaves


def matmul(rec: Recorder, made: Tensor, /, input: Tensor, other: Tensor) -> Sizes:
    """Products of matrices, batched or not."""
    return matrix_product(rec, input, other)


def reversed_matmul(rec: Recorder, made: Tensor, /, input: Tensor, other: Tensor) -> Sizes:
    """`other @ input`."""
    return matrix_product(rec, other, input)


def grouped_matmul(rec: Recorder, made: Tensor, /, mat_a: Tensor, mat_b: Tensor, **options: Any) -> Sizes:
    """(rows, k) and (groups, k, m) -> (rows, m): each row is multiplied by the matrix of its group."""
    if mat_b.dim() == mat_a.dim():
        return matrix_product(rec, mat_a, mat_b)
    contract(rec, mat_a, mat_b)
    groups, *_ = sizes_of(mat_b)
    rec.position(groups)
    return (sizes_of(mat_a)[0], sizes_of(mat_b)[-1])


def without_content(mat_a: Tensor, mat_b: Tensor, **options: Any) -> Tensor:
    """What a grouped product makes of rows; PyTorch's own refuses float32 where tensors have no content."""
    if mat_a.dim() == 2 and mat_b.dim() == 3:
        return mat_a.new_empty(mat_a.shape[0], mat_b.shape[-1])
    if mat_a.dim() == 3 and mat_b.dim() == 3:
        return mat_a.new_empty(*mat_a.shape[:-1], mat_b.shape[-1])
    raise NotImplementedError("covey does not know what a grouped product of such shapes does to sizes")


def einsum(rec: Recorder, made: Tensor, /, equation: str, *operands: Any) -> Sizes:
    """Each letter is one size; letters that the result lacks are summed over."""
    tensors = [leaf for leaf in leaves(operands) if isinstance(leaf, Tensor)]
    inputs, _, answer = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if not answer and "->" not in equation:
        answer = "".join(sorted(letter for letter in set(inputs) - set(",.") if inputs.count(letter) == 1))
        answer = "..." + answer if "..." in inputs else answer
    found: dict[str, int] = {}
    batches = []
    for term, tensor in zip(terms, tensors, strict=True):
        sizes = sizes_of(tensor)
        before, dots, after = term.partition("...")
        if dots:
            batches.append(sizes[len(before) : len(sizes) - len(after)])
        ends = [*zip(before, sizes, strict=False), *zip(reversed(after), reversed(sizes), strict=False)]
        for letter, size in ends:
            if int(size) > 1 and int(found.get(letter, 1)) > 1:
                rec.equate(found[letter], size)
            if int(size) > 1 or letter not in found:
                found.setdefault(letter, size)
                found[letter] = found[letter] if int(found[letter]) > 1 else size
        if not any(map(rec.is_data, sizes)):  # a weight
            rec.width(*sizes)
    rec.sum_over(*[size for letter, size in found.items() if letter not in answer])
    before, dots, after = answer.partition("...")
    batch = broadcast(rec, batches) if dots else ()
    return (*[found[letter] for letter in before], *batch, *[found[letter] for letter in after])


def attention(
    rec: Recorder,
    made: Tensor,
    /,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *rest: Any,
    **options: Any,
) -> Sizes:
    """(..., heads, L, E), (..., heads, S, E), (..., heads, S, V) -> (..., heads, L, V)."""
    *batch, length, width = sizes_of(query)
    *key_batch, key_length, key_width = sizes_of(key)
    *value_batch, value_length, value_width = sizes_of(value)
    rec.sum_over(width, value_width)
    rec.equate(width, key_width)
    rec.equate(key_length, value_length)
    heads_axis = len(batch) - 1
    is_grouped = options.get("enable_gqa", False)
    for axis, (size, key_size, value_size) in enumerate(zip(batch, key_batch, value_batch, strict=True)):
        if int(key_size) == int(value_size):
            rec.equate(key_size, value_size)
        if is_grouped and axis == heads_axis:
            # Several heads of queries share one head of keys and values.
            rec.divide(size, key_size)
        elif int(size) == int(key_size):
            rec.equate(size, key_size)
    if attn_mask is not None:
        target = (*batch, length, key_length)
        for size, wanted in zip(reversed(sizes_of(attn_mask)), reversed(target), strict=False):
            if int(size) > 1:
                rec.equate(size, wanted)
    return (*batch, length, value_width)


def multi_head_attention(
    rec: Recorder,
    made: Tensor,
    /,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    **options: Any,
) -> Sizes:
    """What nn.MultiheadAttention runs: (L, B, E) -> (L, B, E)."""
    *lengths, width = sizes_of(query)
    rec.equate(width, embed_dim_to_check)
    rec.divide(width, num_heads)
    for given in (query, key, value):
        rec.position(sizes_of(given)[0])  # learned queries are a list, not a width
    if in_proj_weight is not None and in_proj_weight.dim() == 2:
        rec.equate(sizes_of(key)[-1], width)
        rec.equate(sizes_of(value)[-1], width)
    rec.compose(width, "product", (num_heads, width // num_heads))
    projections = {
        "q_proj_weight": (width, width),
        "k_proj_weight": (width, sizes_of(key)[-1]),
        "v_proj_weight": (width, sizes_of(value)[-1]),
    }
    pairs: list[tuple[Tensor | None, Sizes]] = [
        (options.get(name), sizes) for name, sizes in projections.items()
    ]
    pairs.append((in_proj_weight, (3 * width, width)))
    pairs.append((in_proj_bias, (3 * width,)))
    pairs.append((out_proj_weight, (width, width)))
    pairs.append((out_proj_bias, (width,)))
    pairs.append((bias_k, (1, 1, width)))
    pairs.append((bias_v, (1, 1, width)))
    for tensor, wanted in pairs:
        if tensor is None or tensor.dim() != len(wanted):
            continue
        sizes = sizes_of(tensor)
        for size, other in zip(sizes, wanted, strict=True):
            rec.equate(size, other)
        if len(sizes) == 2:
            rec.width(*sizes)
            rec.sum_over(sizes[1])
    rec.compose(3 * width, "product", (3, width))
    return (*lengths, width)
