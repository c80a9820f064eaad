"""Methods and ways of training by name: covey's own, those of installed packages, and what a program registers.

The name is what the command line takes, what a stored folder says, and what reports print. Another package adds its
own through the entry-point group `covey.methods`:

    [project.entry-points."covey.methods"]
    low-rank = "their_package:LowRank"
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from covey.errors import CoveyError, OptionError, StoreError, suggest
from covey.method import Method, Training

Kind = type[Method] | type[Training]
"""A class of options that stands in the registry."""

GROUP = "covey.methods"

# Imported when they are first asked for: a program that converts a network does not pay for training.
OWN_METHODS: dict[str, str] = {
    "replicate": "covey.methods.replicate:Replicate",
    "deep-ensemble": "covey.methods.replicate:DeepEnsemble",
    "multi-head": "covey.methods.replicate:MultiHead",
    "norm-ensemble": "covey.methods.replicate:NormEnsemble",
    "batch-ensemble": "covey.methods.batch_ensemble:BatchEnsemble",
    "tabm": "covey.methods.tabm:TabM",
    "masksembles": "covey.methods.masksembles:Masksembles",
    "mimo": "covey.methods.mimo:MIMO",
    "mc-dropout": "covey.methods.mc_dropout:MCDropout",
    "low-rank": "covey.methods.low_rank:LowRank",
    "shared-low-rank": "covey.methods.shared_low_rank:SharedLowRank",
    "hypernetwork": "covey.methods.hypernetwork:Hypernetwork",
    "mixture": "covey.methods.mixture:Mixture",
    "superweights": "covey.methods.superweights:SuperWeights",
    "shapeshifter": "covey.methods.shapeshifter:ShapeShifter",
    "slimmable": "covey.methods.slimmable:Slimmable",
    "packed": "covey.methods.packed:Packed",
}
OWN_TRAININGS: dict[str, str] = {
    "single": "covey.trainings.single:Single",
    "late": "covey.trainings.late_start:Late",
    "late-phase": "covey.trainings.late_phase:LatePhase",
    "economical": "covey.trainings.economical:Economical",
    "swag": "covey.trainings.swag:SWAG",
    "snapshot": "covey.trainings.snapshot:Snapshot",
    "fge": "covey.trainings.fge:FGE",
}
OWN = {**OWN_METHODS, **OWN_TRAININGS}
_registered: dict[str, Kind] = {}
_log = logging.getLogger("covey")


def register(name: str, kind: Kind) -> None:
    """Make a method, or a way of training, known under a name.

    From then on `convert`, `fit`, `save` and `load`, the command line, comparisons and reports know it. A package does
    the same with an entry point, as the page "Write your own method" shows.

    Args:
        name: lower case, words joined by hyphens.
        kind: a frozen dataclass that derives from `Method` or `Training`.
    """
    _check_kind(name, kind)
    if name in OWN or (name in _registered and _registered[name] is not kind):
        raise OptionError(f"the name {name!r} is taken by {lookup(name).__name__}; choose another.")
    _registered[name] = kind


def unregister(name: str) -> None:
    """Forget what `register` made known, as a test does at its end."""
    _registered.pop(name, None)


def names(base: Kind | None = None) -> list[str]:
    """All names, covey's own first; only those of methods, or of ways of training, if `base` says so."""
    others = [*_registered, *_foreign()]
    if base is None:
        return list(dict.fromkeys([*OWN, *others]))
    own = OWN_METHODS if base is Method else OWN_TRAININGS
    return list(dict.fromkeys([*own, *(name for name in others if _is_a(name, base))]))


def _is_a(name: str, base: Kind) -> bool:
    """Whether a name stands for such a class; one whose package cannot be imported stands for nothing."""
    try:
        return issubclass(lookup(name), base)
    except OptionError as error:
        _log.warning("%s", error)
        return False


def lookup(name: str) -> Kind:
    """The class that a name stands for."""
    if name in OWN:
        module, _, attribute = OWN[name].partition(":")
        return getattr(import_module(module), attribute)
    if name in _registered:
        return _registered[name]
    if name in _foreign():
        return _load(name, _foreign()[name])
    raise OptionError(f"there is no method {name!r}{suggest(name, names())}; `covey methods` lists them.")


def name_of(options: Method | Training) -> str:
    """The name that an object's class is registered under."""
    for name in [*OWN_METHODS, *OWN_TRAININGS, *_registered]:
        if _class_name(name) == type(options).__name__ and lookup(name) is type(options):
            return name
    for name in names(Method if isinstance(options, Method) else Training):
        if lookup(name) is type(options):
            return name
    raise StoreError(
        f"{type(options).__name__} is not registered, so what it makes could not be loaded again: call "
        f"covey.register('a-name', {type(options).__name__}) first."
    )


def _class_name(name: str) -> str:
    """The class that a name stands for, by its name alone: nothing is imported."""
    return OWN[name].rpartition(":")[2] if name in OWN else _registered[name].__name__


def described(options: Method | Training) -> dict[str, Any]:
    """An object's name and options as JSON holds them; an error where they could not be stored."""
    kept: dict[str, Any] = {}
    for field in fields(options):
        if field.metadata.get("stored", True):
            kept[field.name] = getattr(options, field.name)
    name = name_of(options)
    for option, value in kept.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise StoreError(
                f"the option {option!r} of {name!r} is a {type(value).__name__}, which cannot be stored as JSON: "
                'give its field metadata={"stored": False}, or another type.'
            ) from error
    return {"method": name, "options": json.loads(json.dumps(kept))}


def revived(name: str, options: Mapping[str, Any]) -> Any:
    """The object that `described` wrote down."""
    try:
        kind = lookup(name)
        given = kind.renamed(options) if issubclass(kind, Method) else options
        return kind(**{key: _plain(value) for key, value in given.items()})
    except (TypeError, CoveyError) as error:
        raise StoreError(f"the stored method {name!r} with its options cannot be made: {error}") from error


def parsed(text: str) -> Any:
    """A method, or a way of training, from its name and options, as the command line writes them.

    >>> parsed("batch-ensemble:members=8,init=ones").members
    8
    """
    name, _, rest = text.partition(":")
    given: dict[str, Any] = {}
    for word in split_options(rest):
        key, equals, value = word.partition("=")
        if not equals:
            raise OptionError(f"options are written name:key=value,key=value; got {text!r}.")
        given[key.strip().replace("-", "_")] = read_value(value)
    kind = lookup(name)
    known = [field.name for field in fields(kind) if field.init]
    for key in given:
        if key not in known:
            raise OptionError(f"{name} has no option {key!r}{suggest(key, known)}.")
    return kind(**given)


def split_options(text: str) -> list[str]:
    """Options at the commas that stand outside brackets.

    >>> split_options("members=4,where=[head,norms]")
    ['members=4', 'where=[head,norms]']
    """
    words, depth = [""], 0
    for character in text:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            words.append("")
        else:
            words[-1] += character
    return [word for word in words if word]


_MOST_BRACKETS = 200  # one inside the other, more would exhaust the stack


_AS_FLAGS_HAVE_IT: dict[str, Any] = {"()": (), "None": None}


def read_value(text: str) -> Any:
    """A value as JSON or a flag writes it, else a word; a list, also one of words without quotes, becomes a tuple.

    >>> read_value("0.5"), read_value("ones"), read_value("[head,norms]"), read_value("()")
    (0.5, 'ones', ('head', 'norms'), ())
    """
    if text in _AS_FLAGS_HAVE_IT:
        return _AS_FLAGS_HAVE_IT[text]
    if text.count("[") + text.count("{") > _MOST_BRACKETS:
        raise OptionError(f"the value {text[:40]}... has more than {_MOST_BRACKETS} brackets.")
    try:
        return _plain(json.loads(text))
    except ValueError:
        if text.startswith("[") and text.endswith("]"):
            return tuple(map(read_value, split_options(text[1:-1])))
        return text


class Registered(Mapping[str, Kind]):
    """The registry as a mapping from names to classes; it shows what is registered at the moment."""

    def __init__(self, base: Kind) -> None:
        self._base = base

    def __getitem__(self, name: str) -> Kind:
        if name not in names(self._base):
            raise KeyError(name)
        return lookup(name)

    def __iter__(self) -> Iterator[str]:
        return iter(names(self._base))

    def __len__(self) -> int:
        return len(names(self._base))

    def __repr__(self) -> str:
        return f"<{', '.join(self)}>"


METHODS = Registered(Method)
TRAININGS = Registered(Training)


@cache
def _foreign() -> dict[str, EntryPoint]:
    """Entry points of installed packages by name."""
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name not in OWN}


@cache
def _load(name: str, entry: EntryPoint) -> Kind:
    try:
        kind = entry.load()
    except Exception as error:
        raise OptionError(
            f"the method {name!r} comes from {entry.value}, which cannot be imported: {error}. Repair or uninstall "
            "that package."
        ) from error
    _check_kind(name, kind)
    return kind


def _check_kind(name: str, kind: Any) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise OptionError(
            f"a method's name is lower case words and numbers joined by hyphens, such as 'low-rank'; got {name!r}."
        )
    if not isinstance(kind, type) or not issubclass(kind, Method | Training):
        raise OptionError(
            f"{name!r} should stand for a class that derives from covey.Method or covey.Training."
        )
    frozen: Any = getattr(kind, "__dataclass_params__", None)
    if not is_dataclass(kind) or frozen is None or not frozen.frozen:
        raise OptionError(f"{kind.__name__} should be a frozen dataclass, so that its options can be stored.")


def _plain(value: Any) -> Any:
    """JSON knows no tuples; options that are sequences are tuples."""
    return tuple(_plain(each) for each in value) if isinstance(value, list) else value
