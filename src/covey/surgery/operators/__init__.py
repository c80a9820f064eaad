"""How sizes pass through PyTorch's operators, and what operators tell about them.

`functions` works on what a network calls, this package on what is run below. Most operators work element by element,
and one rule serves them all: axes that are not broadcast are the same. The others have a rule here, which writes down
what it learns and returns the sizes of the result. An operator that is neither is refused if its result could have a
width.
"""

from covey.surgery.operators import chosen, joins, order, systems  # noqa: F401  (their rules register themselves)
from covey.surgery.operators.cuts import split_sizes
from covey.surgery.operators.facts import RULES, Call, Facts, broadcast, fix_constant, note_origin
from covey.surgery.operators.space import space_sizes
from covey.surgery.operators.sums import matrix_product

__all__ = [
    "RULES",
    "Call",
    "Facts",
    "broadcast",
    "fix_constant",
    "matrix_product",
    "note_origin",
    "space_sizes",
    "split_sizes",
]
