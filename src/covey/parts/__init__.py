"""Pieces that methods are made of, for authors of methods.

| piece | what it is |
| --- | --- |
| `Anatomy.select`, `Anatomy.matrices`, `Anatomy.values` | which tensors of a network, and their values |
| `Shared` | the same tensors for all members |
| `Replicated` | each member has its own copy |
| `RankOne` | a shared weight times an outer product of each member's own |
| `Separate` | each member's own tensors, where members differ in shape |
| `Templates`, `Bank`, `FlatBank` | tensors mixed out of shared templates |
| `TemplateMethod`, `Draft`, `BankSpec`, `Makeup`, `Piece` | a method that only decides on banks and pieces |
| `assemble` | an ensemble out of parts; what no part makes is shared |
| `stack` | copies of a tensor, with noise if asked |

A part's `note(name)` is what the coverage table says of a tensor; `Layout.notes` says it of shared ones.
"""

from covey.networks.anatomy import Anatomy
from covey.networks.layers import Axes
from covey.parts.banks import Bank, BankSpec, FlatBank, Piece
from covey.parts.plain import RankOne, Replicated, Separate, Shared, assemble, rows, stack
from covey.parts.template_method import Draft, TemplateMethod
from covey.parts.templates import Makeup, Templates
from covey.tensors import Tensors, scale_gradient

__all__ = [
    "Anatomy",
    "Axes",
    "Bank",
    "BankSpec",
    "Draft",
    "FlatBank",
    "Makeup",
    "Piece",
    "RankOne",
    "Replicated",
    "Separate",
    "Shared",
    "TemplateMethod",
    "Templates",
    "Tensors",
    "assemble",
    "rows",
    "scale_gradient",
    "stack",
]
