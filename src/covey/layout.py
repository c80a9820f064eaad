"""What a method decided about a network, as plain data that can be stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from covey.errors import ConversionError, StoreError
from covey.networks.anatomy import Anatomy
from covey.schema import Many, Named, Record, Whole, Word

VERSION = 1
SPEC = Record(
    {
        "version": Whole(),
        "shared_buffers": Many(Many(Word())),
        "tensors": Named(Many(Word())),
        "notes": Named(Word()),
        "facts": Named(),
    }
)
"""What a stored layout looks like; what the facts are is the method's affair."""


@dataclass(frozen=True)
class Layout:
    """What `Method.design` decided: all that `Method.build` needs besides its options and the network.

    It is plain data: config.json holds it, and an ensemble that is loaded is built from it without deciding anything
    again. `Layout.of` makes one.

    Args:
        shared_buffers: for each network, the names of the buffers that all members share.
        tensors: names of tensors under labels that the method chooses, such as which are replicated.
        notes: what the coverage table says of a tensor, by its name.
        facts: whatever else the method decided, as JSON holds it.
    """

    shared_buffers: tuple[tuple[str, ...], ...]
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(
        bodies: Sequence[Anatomy],
        *,
        own: Iterable[str],
        tensors: Mapping[str, Iterable[str]] | None = None,
        notes: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> Layout:
        """A layout for these networks.

        Args:
            bodies: the networks.
            own: names of the tensors in which members differ. Buffers that come after one of them in the network are
                kept per member, so that a member is always a plain network.
            tensors: as in the class.
            notes: as in the class.
            facts: as in the class.
        """
        differing = frozenset(own)
        return Layout(
            shared_buffers=tuple(body.shared_buffers(differing) for body in bodies),
            tensors={label: tuple(names) for label, names in (tensors or {}).items()},
            notes=dict(notes or {}),
            facts=_as_stored(facts or {}),
        )

    def with_facts(self, facts: Mapping[str, Any]) -> Layout:
        """The same layout with other facts."""
        return replace(self, facts=_as_stored(facts))

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "version": VERSION,
            "shared_buffers": [list(names) for names in self.shared_buffers],
            "tensors": {label: list(names) for label, names in self.tensors.items()},
            "notes": dict(self.notes),
            "facts": dict(self.facts),
        }

    @staticmethod
    def from_dict(stored: Mapping[str, Any]) -> Layout:
        """From what `to_dict` gave."""
        if stored.get("version") != VERSION:
            raise StoreError(
                f"the stored layout has version {stored.get('version')!r}; this covey reads version {VERSION}."
            )
        return Layout(
            shared_buffers=tuple(tuple(names) for names in stored["shared_buffers"]),
            tensors={label: tuple(names) for label, names in stored["tensors"].items()},
            notes=stored["notes"],
            facts=stored["facts"],
        )


def _as_stored(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as they come back from a file, so that a layout that was stored equals the one that was decided."""
    return json.loads(json.dumps(dict(facts), default=_plain))


def _plain(value: Any) -> Any:
    """A number of numpy's, or a tensor of one number, as Python's."""
    if hasattr(value, "item"):
        return value.item()
    raise ConversionError(
        f"a layout's facts are what JSON holds: numbers, words, lists and dicts; got a {type(value).__name__}."
    )
