"""Flags out of dataclasses, by tyro, with errors of one line."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass, replace
from typing import Annotated, Any, get_type_hints

import docstring_parser
import tyro

from covey.cli.spoken import one_line
from covey.errors import OptionError, suggest


class UsageError(OptionError):
    """The command line itself is wrong."""


@dataclass(frozen=True)
class Flag:
    """A flag: the part and the field that it sets, its type and what --help says."""

    part: str
    name: str
    hint: Any
    help: str
    default: Any


def parse(command: str, parts: Mapping[str, Any], args: Sequence[str], *, about: str) -> dict[str, Any]:
    """Read flags for the fields of several dataclasses at once.

    Args:
        command: what was typed before the flags.
        parts: dataclass objects by name, whose values are the defaults. A field that an earlier part has already
            is named after its own part too: `--options-lr`.
        args: what was typed.
        about: the first lines of --help.

    Returns:
        The same parts with the values that were given.
    """
    flags = _flags(parts)
    _check_names(command, flags, args)
    flat = make_dataclass(
        "Flags",
        [
            (name, Annotated[flag.hint, tyro.conf.arg(help=flag.help)], _default(flag.default))
            for name, flag in flags.items()
        ],
        frozen=True,
        kw_only=True,
    )
    flat.__doc__ = about
    found = _run_tyro(flat, command, args, about)
    given: dict[str, dict[str, Any]] = {part: {} for part in parts}
    for name, flag in flags.items():
        value, default = getattr(found, name), getattr(parts[flag.part], flag.name)
        given[flag.part][flag.name] = default if value == flag.default else _unwrapped(value, flag)
    return {part: replace(parts[part], **values) for part, values in given.items()}


def describe(kind: type) -> dict[str, str]:
    """What a dataclass's docstring says of its fields, those of its bases included."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = base.__dict__.get("__doc__") or ""
        for argument in docstring_parser.parse(text).params:
            found[argument.arg_name] = " ".join((argument.description or "").split())
    return found


def flag_names(parts: Mapping[str, Any], part: str) -> dict[str, str]:
    """The flag of each field of a part, where the parts before it may have taken its name."""
    return {f.name: "--" + name.replace("_", "-") for name, f in _flags(parts).items() if f.part == part}


def _flags(parts: Mapping[str, Any]) -> dict[str, Flag]:
    flags: dict[str, Flag] = {}
    for part, default in parts.items():
        told, hints = describe(type(default)), get_type_hints(type(default), include_extras=True)
        for found in fields(default):
            if not found.metadata.get("stored", True):
                continue  # a function or the like, which cannot be typed
            name = found.name if found.name not in flags else f"{part}_{found.name}"
            value = getattr(default, found.name)
            hint = hints[found.name]
            if "Method" in str(hint):  # a method in words, such as packed:alpha=2
                hint = str
            if "Sequence[str]" in str(hint):  # one word or several
                hint, value = tuple[str, ...], _words(value)
            flags[name] = Flag(part, found.name, hint, told.get(found.name, ""), value)
    return flags


def _default(value: Any) -> Any:
    if isinstance(value, str) or value is None or not is_dataclass(value):
        return (
            field(default=value)
            if not isinstance(value, list | dict)
            else field(default_factory=lambda: value)
        )
    return field(default_factory=lambda: value)


def _words(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _unwrapped(value: Any, flag: Flag) -> Any:
    """One word stands for itself where several are allowed too."""
    several = isinstance(value, tuple) and flag.hint == tuple[str, ...] and isinstance(flag.default, tuple)
    return value[0] if several and len(value) == 1 and flag.name in ("where", "restart") else value


def _check_names(command: str, flags: Mapping[str, Flag], args: Sequence[str]) -> None:
    """Name the nearest flag where one does not exist."""
    known = set()
    for name, flag in flags.items():
        inner = fields(flag.default) if is_dataclass(flag.default) else None
        for leaf in [f.name for f in inner] if inner else [None]:
            full = (f"{name}.{leaf}" if leaf else name).replace("_", "-")
            known.add(f"--{full}")
            if isinstance(getattr(flag.default, leaf) if leaf else flag.default, bool):
                stem, dot, last = full.rpartition(".")
                known.add(f"--{stem}{dot}no-{last}")
    known |= {"--help", "-h"}
    for word in args:
        name = word.partition("=")[0].replace("_", "-")
        if name.startswith("--") and name not in known:
            raise UsageError(f"{command} has no flag {name}{_nearest(name, known)}.")


def _nearest(name: str, known: Iterable[str]) -> str:
    """The nearest flags, in a clause: the dashes that all begin with make none of them nearer."""
    plain = {flag.removeprefix("--"): flag for flag in sorted(known) if flag.startswith("--")}
    told = suggest(name.removeprefix("--"), plain, cutoff=0.6)
    return re.sub(r"'([^']+)'", lambda found: repr(plain[found[1]]), told)


def _run_tyro(kind: type, command: str, args: Sequence[str], about: str) -> Any:
    caught = io.StringIO()
    try:
        with contextlib.redirect_stderr(caught):
            config = (tyro.conf.PositionalMetavarFromFieldName,)
            return tyro.cli(kind, prog=command, args=list(args), description=about, config=config)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise UsageError(one_line(command, caught.getvalue())) from None


def parse_one(command: str, kind: type, args: Sequence[str], *, about: str) -> Any:
    """Read the flags and positional arguments of one dataclass."""
    names = [f for f in fields(kind) if "Positional" not in str(f.type)]
    dummy = {
        f.name: Flag("", f.name, f.type, "", f.default if f.default is not MISSING else None) for f in names
    }
    _check_names(command, dummy, args)
    return _run_tyro(kind, command, args, about)
