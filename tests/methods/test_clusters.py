from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.errors import CoveyError
from covey.methods.superweights.clusters import allocate, cut, depth_bins, greedy_groups, shared_out


def test_the_most_similar_are_united_first() -> None:
    cosines = {("b", "c"): 0.5, ("a", "b"): 0.9, ("c", "d"): 0.7}
    assert greedy_groups("abcd", cosines, groups=3) == [["a", "b"], ["c"], ["d"]]
    assert greedy_groups("abcd", cosines, groups=2) == [["a", "b"], ["c", "d"]]
    assert greedy_groups("abcd", cosines, groups=1) == [["a", "b", "c", "d"]]


def test_two_groups_become_one_even_if_some_of_their_items_are_unlike() -> None:
    cosines = {("a", "b"): 0.9, ("c", "d"): 0.8, ("b", "c"): 0.3, ("a", "d"): -0.9}
    assert greedy_groups("abcd", cosines, threshold=0.2) == [["a", "b", "c", "d"]]
    assert greedy_groups("abcd", cosines, threshold=0.3) == [
        ["a", "b"],
        ["c", "d"],
    ]  # above, not at, the threshold


def test_leftovers_stand_alone() -> None:
    cosines = {("a", "b"): 0.9, ("a", "c"): 0.1, ("b", "c"): 0.0, ("c", "d"): -0.2}
    assert greedy_groups("abcde", cosines, threshold=0.5) == [["a", "b"], ["c"], ["d"], ["e"]]
    assert greedy_groups("abc", {}, threshold=0.0) == [["a"], ["b"], ["c"]]
    assert greedy_groups("ab", {("a", "b"): float("nan")}, threshold=-1) == [["a"], ["b"]]


def test_both_limits_together() -> None:
    cosines = {("a", "b"): 0.9, ("c", "d"): 0.8, ("b", "c"): 0.7}
    assert greedy_groups("abcd", cosines, threshold=0.75, groups=1) == [["a", "b"], ["c", "d"]]
    assert greedy_groups("abcd", cosines, threshold=0.0, groups=3) == [["a", "b"], ["c"], ["d"]]


@given(st.data())
def test_above_a_threshold_groups_are_the_connected_components(data: st.DataObject) -> None:
    items = range(data.draw(st.integers(1, 7)))
    pairs = list(itertools.combinations(items, 2))
    cosines = {pair: data.draw(st.floats(-1, 1)) for pair in pairs}
    groups = greedy_groups(items, cosines, threshold=0.1)
    assert sorted(itertools.chain(*groups)) == list(items)
    reached = {i: {i} for i in items}
    for _ in items:  # spread along edges above the threshold until nothing changes
        for a, b in pairs:
            if cosines[a, b] > 0.1:
                reached[a] = reached[b] = reached[a] | reached[b]
        for i in items:
            for j in list(reached[i]):
                reached[j] = reached[i] = reached[i] | reached[j]
    assert {frozenset(g) for g in groups} == {frozenset(r) for r in reached.values()}


def test_bad_input() -> None:
    with pytest.raises(CoveyError, match="at least 1"):
        greedy_groups("ab", {}, groups=0)
    with pytest.raises(CoveyError, match=r"not among the items: \['z'\]"):
        greedy_groups("ab", {("a", "z"): 1.0})


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_every_shape_is_put_together_exactly_once_and_no_slab_is_too_large(
    shapes: list[tuple[int, int]],
) -> None:
    slabs = cut(shapes)
    needed = set()
    for outputs, inputs in shapes:
        cells: list[tuple[int, int]] = []
        for slab in slabs:
            part = slab.within(outputs, inputs)
            if part:
                assert part.top == slab.top
                assert part.left == slab.left
                cells += itertools.product(range(part.top, part.bottom), range(part.left, part.right))
        whole = set(itertools.product(range(outputs), range(inputs)))
        assert len(cells) == len(set(cells))
        assert set(cells) == whole
        needed |= whole
    assert sum(rows * columns for rows, columns in (slab.shape for slab in slabs)) == len(needed)


def test_slabs_of_nested_widths() -> None:
    slabs = [(s.top, s.bottom, s.left, s.right) for s in cut([(32, 32), (16, 16), (16, 3), (32, 16)])]
    assert slabs == [(0, 16, 0, 3), (0, 16, 3, 16), (16, 32, 0, 16), (0, 32, 16, 32)]


def test_depth_bins_are_equal_and_shared_out_by_count() -> None:
    assert [depth_bins(i, 8, 4) for i in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [depth_bins(i, 2, 4) for i in range(2)] == [0, 2]
    assert shared_out(4, [25, 3]) == [4, 1]
    assert shared_out(4, [10, 10]) == [2, 2]


def test_templates_go_to_slabs_with_more_users_first() -> None:
    assert allocate([5, 5, 5], [1, 2, 4], 14) is None
    assert allocate([5, 5, 5], [1, 2, 4], 15) == [1, 1, 1]
    assert allocate([5, 5, 5], [1, 2, 4], 20) == [1, 2, 1]
    assert allocate([5, 5, 5], [1, 2, 4], 25) == [1, 2, 2]
    assert allocate([5, 5, 5], [1, 2, 4], 35) == [1, 2, 4]
    assert allocate([5, 5, 5], [1, 2, 4], 40) == [2, 2, 4]  # then whatever the users
    assert allocate([5, 5, 5], [1, 2, 4], 10**6, most=8) == [8, 8, 8]
    assert allocate([5, 5, 5], [1, 2, 4], 105) == [7, 7, 7]  # until the budget is used
    assert allocate([5, 5, 5], [1, 2, 4], 114) == [8, 7, 7]
    assert allocate([5, 50], [3, 3], 65) == [3, 1]  # where there is no room for a large one, a small one
