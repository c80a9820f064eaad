"""Which layers belong together, and how layers of different shapes are cut into common slabs. Pure functions."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from covey.errors import OptionError

Item = TypeVar("Item", bound=Hashable)


def greedy_groups(
    items: Iterable[Item],
    similarity: Mapping[tuple[Item, Item], float],
    *,
    threshold: float = float("-inf"),
    groups: int | None = None,
) -> list[list[Item]]:
    """Unite the most similar items first, as long as they are similar enough.

    Pairs are taken from a priority queue, the highest similarity first, ties in the order given. Above the threshold,
    the two items' groups become one. Items that are never united stand alone.

    Args:
        items: what to group.
        similarity: of pairs of items; a pair that is missing is never united by itself.
        threshold: pairs must be more similar than this.
        groups: stop when so few groups are left, instead of or besides the threshold.

    Returns the groups, each in the order of `items`, in the order of their first items.

    >>> greedy_groups("abcd", {("a", "b"): 0.9, ("c", "d"): 0.8, ("b", "c"): 0.5, ("a", "d"): -1}, threshold=0.6)
    [['a', 'b'], ['c', 'd']]
    >>> greedy_groups("abcd", {("a", "b"): 0.9, ("c", "d"): 0.8, ("b", "c"): 0.5}, groups=1)
    [['a', 'b', 'c', 'd']]
    """
    items = list(items)
    if groups is not None and groups < 1:
        raise OptionError(f"groups is how many groups to stop at, at least 1; got {groups}.")
    unknown = {item for pair in similarity for item in pair} - set(items)
    if unknown:
        raise OptionError(
            f"similarity has pairs with items that are not among the items: {sorted(map(str, unknown))}."
        )
    group = {item: [item] for item in items}
    tie = count()
    queue = [(-value, next(tie), pair) for pair, value in similarity.items()]
    heapq.heapify(queue)
    left = len(items)
    while queue and (groups is None or left > groups):
        value, _, (first, second) = heapq.heappop(queue)
        if not -value > threshold:  # also where it is not a number
            break
        if group[first] is not group[second]:
            united = group[first] + group[second]
            for item in united:
                group[item] = united
            left -= 1
    order = {item: i for i, item in enumerate(items)}
    unique = {id(members): sorted(members, key=order.__getitem__) for members in group.values()}
    return list(unique.values())


def depth_bins(position: int, layers: int, bins: int) -> int:
    """In which of `bins` equal parts of a network's depth its layer `position` of `layers` lies.

    >>> [depth_bins(i, 6, 4) for i in range(6)]
    [0, 0, 1, 2, 2, 3]
    """
    return position * bins // layers


def shared_out(bins: int, counts: Sequence[int]) -> list[int]:
    """Bins for each kind of layer in proportion to its count, rounded, at least one each.

    >>> shared_out(4, [25, 3])
    [4, 1]
    """
    return [max(1, round(bins * n / sum(counts))) for n in counts]


@dataclass(frozen=True)
class Slab:
    """A rectangle of (output, input) channels: rows from `top` to `bottom`, columns from `left` to `right`."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.bottom - self.top, self.right - self.left

    def within(self, outputs: int, inputs: int) -> Slab | None:
        """What a layer of this shape has of it, or None."""
        bottom, right = min(self.bottom, outputs), min(self.right, inputs)
        return Slab(self.top, bottom, self.left, right) if bottom > self.top and right > self.left else None


def cut(shapes: Iterable[tuple[int, int]]) -> list[Slab]:
    """Slabs of which every shape (outputs, inputs) can be put together.

    The smallest shape is the first slab. Each larger one adds what it lacks: first the inputs beyond those that its
    rows have, then the rows beyond. Each slab lies wholly inside the shape that added it.

    >>> [(s.top, s.bottom, s.left, s.right) for s in cut([(4, 2), (8, 6)])]
    [(0, 4, 0, 2), (0, 4, 2, 6), (4, 8, 0, 6)]
    """
    slabs: list[Slab] = []
    widths: list[
        tuple[int, int]
    ] = []  # (bottom, right): rows down to `bottom` are covered up to column `right`
    for outputs, inputs in sorted(set(shapes), key=lambda shape: (shape[0] * shape[1], shape)):
        top = 0
        for bottom, right in [*widths, (outputs, 0)]:
            bottom = min(bottom, outputs)
            if bottom > top and right < inputs:
                slabs.append(Slab(top, bottom, right, inputs))
            top = max(top, bottom)
        widths = _covered([*widths, (outputs, inputs)])
    return slabs


def _covered(corners: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The outline of rectangles that all begin at (0, 0): bands of rows, each narrower than the one above."""
    outline: list[tuple[int, int]] = []
    for bottom, right in sorted(corners, reverse=True):
        if not outline or right > outline[-1][1]:
            outline.append((bottom, right))
    return outline[::-1]


def allocate(
    sizes: Sequence[int], users: Sequence[int], numbers: int, most: int | None = None
) -> list[int] | None:
    """Templates for each slab, or None where `numbers` are too few for one each.

    Every slab gets one. Then, in round r = 1, 2, ..., one more for each slab with more than r users for which there is
    room; then one more for each, whatever its users, until nothing fits any more.

    Args:
        sizes: what one template of each slab costs.
        users: how many layers use each slab.
        numbers: what there is.
        most: templates for one slab; None for as many as there is room for.

    >>> allocate([10, 10], [3, 1], 45)
    [3, 1]
    >>> allocate([10, 10], [3, 1], 50)
    [3, 2]
    >>> allocate([10, 10], [3, 1], 1000, most=8)
    [8, 8]
    """
    counts = [1] * len(sizes)
    left = numbers - sum(sizes)
    if left < 0:
        return None

    def fits(i: int) -> bool:
        return sizes[i] <= left and (most is None or counts[i] < most)

    for r in range(1, max(users)):
        for i, size in enumerate(sizes):
            if users[i] > r and counts[i] <= r and fits(i):
                counts[i] += 1
                left -= size
    r = 1
    while any(fits(i) for i in range(len(sizes))):
        for i, size in enumerate(sizes):
            if counts[i] <= r and fits(i):
                counts[i] += 1
                left -= size
        r += 1
    return counts
