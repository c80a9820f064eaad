"""Messages of the library and of the flags' parser, in the words of a command line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields

from covey import registry
from covey.cli.settings import Dataset, Network
from covey.errors import CoveyError
from covey.train import Machine, Recipe

_CALL = r"(?P<call>[\w.]+\((?:[^()]|\([^()]*\))*\))"  # Python to be copied, which stays as it is
_SETTING = (
    r"(?<![\w'\"`\[:,.=-])(?P<name>[a-z][a-z_]*)=(?P<value>'[^']*'|\('[^']*',\)|\([\w, ]+\)|-?[\w.]*\w)?"
)
_UNDERSCORED = r"(?<![\w'\"`.=-])(?P<plain>[a-z]+(?:_[a-z]+)+)(?![\w'\"`(=])"
_NESTED = re.compile(r"(?<![\w'\"`.=-])(schedule|augment)\.[a-z_]+")
_SHAPE = re.compile(r"\b(shape|got|to|on|of|and) [(\[](\d+(?:, \d+)*),?[)\]]")


def told(error: CoveyError, typed: Sequence[str]) -> str:
    """An error of the library in one line, in the words of the command line that led to it."""
    message = " ".join(str(error).split())
    setting = getattr(error, "setting", None)
    if setting and message.startswith(setting) and not setting.startswith("--"):
        own = _flag(f"options_{setting}", "")  # of a method, where the command has such a flag itself
        flag = own if any(word.partition("=")[0] == own for word in typed) else _flag(setting, "")
        message = flag + message.removeprefix(setting)
    method = typed[1] if len(typed) > 1 and typed[0] == "train" else ""
    return with_flags(message, method)


def with_flags(message: str, method: str = "") -> str:
    """A message of the library, with flags for all settings and methods that it names; `method` is what is trained."""
    classes = {registry.lookup(name).__name__: name for name in registry.names()}
    kinds = [Dataset, Network, Machine, Recipe, *map(registry.lookup, classes.values())]
    names = {"resume", *(field.name for kind in kinds for field in fields(kind))}
    return in_flags(with_methods(message, classes, method), names)


def with_methods(message: str, classes: Mapping[str, str], method: str = "") -> str:
    """A message that names methods as Python does, with what one types instead.

    >>> with_methods("Packed(init='slice', alpha=2) and LowRank", {"Packed": "packed", "LowRank": "low-rank"})
    'packed:init=slice,alpha=2 and low-rank'

    Args:
        message: of an error.
        classes: the methods' names by their classes'.
        method: whose options are flags of the command that was typed: Packed(init='slice') becomes --init slice.
    """

    def spoken(found: re.Match[str]) -> str:
        name, options = classes[found["kind"]], found["options"]
        if not options:
            return name if options is not None or _is_camel(found["kind"]) else found["kind"]
        if name == method:
            return options.replace(", ", " ")  # settings, which become flags next
        plain = re.sub(r"['\" ]|,(?=\))", "", options).replace("(", "[").replace(")", "]")
        return f"{name}:{plain}"

    kinds = "|".join(map(re.escape, sorted(classes, key=len, reverse=True)))
    return re.sub(
        rf"(?<![\w'\"`./-])(?P<kind>{kinds})\b(?:\((?P<options>(?:[^()]|\([^()]*\))*)\))?", spoken, message
    )


def _is_camel(name: str) -> bool:
    """Whether a class's name is no word of English, unlike Packed."""
    return re.search("[a-z][A-Z]", name) is not None


def in_flags(message: str, names: Collection[str]) -> str:
    """A message that names settings as Python does, with flags instead: keep='best' becomes --keep best.

    Args:
        message: of an error.
        names: of settings that are flags; whatever else is written with = stays as it is, and so does what is quoted
            or a call, which are the user's own words or Python to be copied.
    """

    def spoken(found: re.Match[str]) -> str:
        name = found["name"] or found["plain"]
        if name not in names:
            return found[0]
        return _flag(name, found["value"] or "")

    message = re.sub(f"{_CALL}|{_SETTING}|{_UNDERSCORED}", spoken, message)
    message = _NESTED.sub(lambda found: _flag(found[0], ""), message)
    # a flag that is named already
    message = re.sub(r"(--[\w-]+(?: \w+)?)(\b[^()]*) \(\1\)", r"\1\2", message)
    return _SHAPE.sub(lambda found: f"{found[1]} {found[2].replace(', ', ' x ')}", message)


def _flag(name: str, value: str) -> str:
    flag = name.replace("_", "-")
    if value == "True":
        return f"--{flag}"
    if value == "False":
        return f"--no-{flag}"
    value = value.strip("(),")
    if value.startswith("'"):
        word = value.strip("'")
        return f"--{flag} {shlex.quote(word) if word else word}".rstrip()
    return f"--{flag} {value.replace(', ', ' ')}".rstrip()


def one_line(command: str, text: str) -> str:
    """The message out of the box that tyro draws around it, as a sentence about the command."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = [re.sub(r"[╭─╮│╰╯]+|-{4,}", " ", line).strip() for line in text.splitlines()]
    kept = [line for line in lines if line and "full helptext" not in line and "--help" not in line]
    words = " ".join(" ".join(kept).split()).partition(" Argument helptext:")[0]
    for pattern, sentence in _SENTENCES:
        if found := re.search(pattern, words):
            return sentence(command, found)
    words = re.sub(r"^(Parsing error|Value error|Required options|Unrecognized options) ", "", words)
    words = re.sub(r"^Error parsing [\w.]+: ", "", words)
    return f"{command}: {words or 'the command line cannot be read'}"


def _not_a_number(command: str, found: re.Match[str]) -> str:
    kind = "a number" if found["what"].startswith("could not") else "a whole number"
    return f"{found['flag']} is {kind}; got {found['value']}."


def _not_even_none(command: str, found: re.Match[str]) -> str:
    kind = "a number" if found["kind"] == "FLOAT" else "a whole number"
    return f"{found['flag']} is {kind}; got {found['value']}."


def _no_parse(command: str, found: re.Match[str]) -> str:
    return f"{found['flag']} cannot be {found['value']}; `{command} --help` says what it takes."


def _no_choice(command: str, found: re.Match[str]) -> str:
    known = found["known"].replace("'", "").rstrip(", ")
    return f"{found['flag']} is one of {known}; got {found['value']}."


def _missing(command: str, found: re.Match[str]) -> str:
    needed = re.findall(r"([A-Z]+) (.*?)\.? \(required\)", found["what"])
    return f"{command} needs " + " and ".join(f"{name} ({about})" for name, about in needed) + "."


def _too_much(command: str, found: re.Match[str]) -> str:
    return f"{command} has no use for {found['what']!r}; `{command} --help` says what it takes."


def _valueless(command: str, found: re.Match[str]) -> str:
    count = int(found["count"] or 1)
    return f"{found['flag']} needs {'a value' if count == 1 else f'{count} values'}."


_SENTENCES: tuple[tuple[str, Callable[[str, re.Match[str]], str]], ...] = (
    (
        r"Error parsing (?P<flag>--\S+): (?P<what>invalid literal for int|could not convert string to float)"
        r".*: (?P<value>'[^']*')",
        _not_a_number,
    ),
    (
        r"Error parsing (?P<flag>--\S+): no type matching \{None\}\|(?P<kind>INT|FLOAT) could be instantiated from "
        r"\[(?P<value>'[^']*')\]",
        _not_even_none,
    ),
    (
        r"Error parsing (?P<flag>--\S+): Could not find valid parse for arguments: \[(?P<value>[^\]]*)\]",
        _no_parse,
    ),
    (
        r"invalid choice (?P<value>'[^']*') for argument '(?P<flag>[^']*)'\. Expected one of \((?P<known>.*)\)",
        _no_choice,
    ),
    (r"Missing from covey [\w -]+: (?P<what>.*\(required\))", _missing),
    (r"Unrecognized options: (?P<what>.*)", _too_much),
    (r"Missing value for argument '(?P<flag>[^']*)'(?:\. Expected (?P<count>\d+) values)?", _valueless),
)
