"""Recipe files: what differs from the defaults, as TOML."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covey.cli.settings import SINGLE, Settings
from covey.errors import CoveyError, OptionError, StoreError, suggest
from covey.files import is_ordinary
from covey.schema import Named, Record, check

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_SPEC = Record(
    optional={"about": Named(), "small": Record(optional={"compare": Named()}), "compare": Named()}
)
_MOST = 1 << 20  # characters of a recipe
KEYS = ("about", "method", "options", "dataset", "network", "recipe", "machine", "small", "compare")


@dataclass(frozen=True)
class RecipeFile:
    """A recipe file.

    Args:
        path: where it is.
        about: paper, table, title, and what the paper reports.
        settings: the run at its full size.
        small: what a run on a CPU changes.
        compare: several methods and settings, where the experiment has them: `methods`, `seeds`, `vary`.
    """

    path: Path
    about: Mapping[str, Any]
    settings: Settings
    small: Mapping[str, Any] = field(default_factory=dict)
    compare: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    def at(self, scale: str) -> Settings:
        """The settings at the size asked for, "full" or "small"."""
        return self.settings if scale == "full" else self.settings.scaled(self.small)

    def compared(self, scale: str) -> dict[str, Any]:
        """What the experiment compares at that size."""
        return {**self.compare, **(self.small.get("compare", {}) if scale == "small" else {})}


def folder() -> Path:
    """The folder of covey's own recipes, in the package or beside the sources."""
    inside = Path(__file__).parents[1] / "recipes"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "recipes"


def find(name: str) -> Path:
    """A recipe file by its path or by its name among covey's own."""
    path = Path(name)
    own = {p.stem: p for p in sorted(folder().glob("*.toml"))}
    is_own = path.stem in own and path.parent in (Path(), Path("recipes"))
    a_runs_folder = is_own and path.is_dir()
    if path.exists() and not a_runs_folder:
        return path
    if is_own:
        return own[path.stem]
    raise StoreError(
        f"there is no recipe {name!r}{suggest(path.stem, own)}; `covey reproduce --list` lists them."
    )


def read(name: str) -> RecipeFile:
    """Read and check a recipe file; mistakes are errors that name the line and the key."""
    path = find(name)
    text = _text(path)
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError
        raise OptionError(f"{path} is not valid TOML: {error}") from error
    for key in table:
        if key not in KEYS:
            raise OptionError(f"{path}, line {_line(text, key)}: unknown key {key!r}{suggest(key, KEYS)}.")
    stored = {k: v for k, v in table.items() if k not in ("about", "small", "compare")}
    try:
        check(table, _SPEC, path)
        settings = Settings.from_dict({"method": SINGLE, **stored})
        made = RecipeFile(
            path, table.get("about", {}), settings, table.get("small", {}), table.get("compare", {})
        )
        made.at("small")
    except (CoveyError, KeyError, TypeError, ArithmeticError) as error:
        raise OptionError(f"{path}, line {_line(text, _key_in(str(error)))}: {error}") from error
    return made


def _text(path: Path) -> str:
    """The text of an ordinary file; from a pipe one could read for ever."""
    if not is_ordinary(path):
        raise StoreError(f"{path} is no ordinary file; expected a recipe.")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MOST + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if len(text) > _MOST:
        raise StoreError(
            f"{path} has more than {_MOST:,} characters; expected a recipe, which is a short file."
        )
    return text


def _key_in(message: str) -> str:
    """The key that an error speaks of."""
    quoted = re.search(
        r"no setting '([^']+)'|^(?:[\w]+\.)*(\w+) (?:should|is|must)|no method '([^']+)'", message
    )
    return next((g for g in quoted.groups() if g), "") if quoted else ""


def _line(text: str, key: str) -> int:
    """The line that a key, or a value, stands on; 1 if it is not found."""
    for number, line in enumerate(text.splitlines(), 1):
        if key and re.search(rf"(^|[\s\[{{,.\"]){re.escape(key)}([\s=\].\"]|$)", line):
            return number
    return 1
