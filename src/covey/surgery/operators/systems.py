"""Operators of linear algebra: diagonals, systems of equations, inverses and decompositions of square matrices."""

from __future__ import annotations

from torch import Tensor

from covey.surgery.operators.facts import Facts, Named, fresh, rule
from covey.surgery.sizes import Sizes, sizes_of


def _square(facts: Facts, matrix: Tensor) -> Sizes:
    """The sizes of a square matrix; every entry of the result depends on all of them."""
    sizes = sizes_of(matrix)
    facts.recorder.equate(sizes[-2], sizes[-1])
    facts.recorder.sum_over(sizes[-1])
    return sizes


@rule("aten.eye")
def _identity(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """The network's code gives one number for both axes."""
    sizes = fresh(facts, made[0])
    return [(sizes[0], sizes[0])] if made[0].shape[0] == made[0].shape[1] else [sizes]


@rule("aten.diag_embed")
def _diagonal(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """Vectors as diagonals of matrices, which are the last axes."""
    sizes = sizes_of(args[0])
    if made[0].shape != (*sizes, sizes[-1]):
        raise NotImplementedError("covey knows diag_embed without an offset and for the last axes only")
    return [(*sizes, sizes[-1])]


@rule("aten.linalg_inv_ex", "aten.linalg_cholesky_ex")
def _same_and_success(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = _square(facts, args[0])
    return [sizes, sizes[:-2]]


@rule("aten.linalg_matrix_exp")
def _same(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [_square(facts, args[0])]


@rule("aten._linalg_eigh")
def _values_and_vectors(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = _square(facts, args[0])
    return [sizes[:-1], sizes][: len(made)]


@rule("aten._linalg_det", "aten._linalg_slogdet")
def _determinant(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    sizes = _square(facts, args[0])
    numbers = [tensor for tensor in made if tensor.dim() == len(sizes) - 2]
    return [sizes[:-2]] * len(numbers)


@rule("aten.linalg_solve_triangular", "aten._linalg_solve_ex")
def _solution(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    """A X = B, or X A = B: the solution is as large as B. What is made beside it is for the backward pass."""
    return [_solved(facts, args[0], args[1], is_left=kwargs.get("left", True))]


@rule("aten.cholesky_solve")
def _solution_by_factor(facts: Facts, args: tuple, kwargs: Named, made: list[Tensor]) -> list[Sizes]:
    return [_solved(facts, args[1], args[0], is_left=True)]


def _solved(facts: Facts, matrix: Tensor, right: Tensor, is_left: bool) -> Sizes:
    equations = _square(facts, matrix)[-1]
    sizes = sizes_of(right)
    is_vector = len(sizes) < matrix.dim()
    facts.recorder.equate(sizes[-2] if is_left and not is_vector else sizes[-1], equations)
    return sizes
