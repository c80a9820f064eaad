"""Networks that a function in a file of the user's makes. Building one runs the file."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import math
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from covey.errors import OptionError, suggest
from covey.files import is_ordinary

_NAME = re.compile(r"(?P<path>.+\.py):(?P<function>\w+)", re.DOTALL)


def is_code(name: str) -> bool:
    """Whether a network's name is that of a Python file, which building it would run."""
    return _NAME.fullmatch(name) is not None or name.endswith(".py")


def path_of(name: str) -> Path:
    """The file of FILE.py:FUNCTION."""
    return Path(_parts(name)[0]).expanduser()


def absolute(name: str) -> str:
    """The same name with the file's full path, so that it can be found from another folder."""
    path, function = _parts(name)
    return f"{Path(path).expanduser().resolve()}:{function}"


def digest(name: str) -> str:
    """SHA-256 of the file, to tell whether it was changed."""
    return hashlib.sha256(_file(name).read_bytes()).hexdigest()


def build(name: str, *, shape: Sequence[int], outputs: int, options: Mapping[str, Any]) -> nn.Module:
    """Run the file and call its function.

    Args:
        name: FILE.py:FUNCTION.
        shape: of one sample, without the batch axis.
        outputs: numbers that the network answers with.
        options: further keywords of the function.
    """
    make = _function(name)
    try:
        network = make(**_arguments(make, name, shape, outputs, options))
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(f"{name} failed{_where(error, name)}: {type(error).__name__}: {error}") from error
    if not isinstance(network, nn.Module):
        raise OptionError(f"{name} should return a torch.nn.Module; it returned {type(network).__name__}.")
    return network


def _parts(name: str) -> tuple[str, str]:
    found = _NAME.fullmatch(name)
    if found is None:
        raise OptionError(f"{name!r} names a file and no function in it: write {name}:FUNCTION.")
    return found["path"], found["function"]


def _file(name: str) -> Path:
    path = path_of(name)
    if not path.exists():
        raise OptionError(f"there is no file {path} to take the network {_parts(name)[1]!r} from.")
    if not is_ordinary(path):
        raise OptionError(f"{path} is no ordinary file; expected one of Python.")
    return path


def _function(name: str) -> Callable[..., Any]:
    function = _parts(name)[1]
    module = _imported(_file(name), name)
    found = getattr(module, function, None)
    if found is None:
        own = [
            key
            for key, value in vars(module).items()
            if callable(value) and value.__module__ == module.__name__
        ]
        raise OptionError(f"{path_of(name)} has no function {function!r}{suggest(function, own)}.")
    if not callable(found):
        raise OptionError(f"{name} is no function or class but {type(found).__name__}.")
    return found


def _imported(path: Path, name: str) -> ModuleType:
    """The file as a module; files beside it can be imported by it, as if it were started by itself."""
    place = path.resolve()
    title = f"covey_network_{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(title, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module  # dataclasses look their module up
    beside = str(place.parent)
    sys.path.insert(0, beside)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[title]
        raise OptionError(
            f"{path} cannot be run{_where(error, name)}: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(beside)
    return module


def _arguments(
    make: Callable[..., Any], name: str, shape: Sequence[int], outputs: int, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What the function asks for by the names of its parameters, and the options that were given."""
    parameters = inspect.signature(make).parameters
    known = _facts(shape, outputs)
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for key in options:
        if key not in parameters and not any_name:
            raise OptionError(f"{name} takes no {key!r}{suggest(key, parameters)}.")
    found = {key: known[key] for key in parameters if key in known} | dict(options)
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
            parameter.POSITIONAL_ONLY,
        ):
            if key in found and parameter.kind is not parameter.POSITIONAL_ONLY:
                continue
            raise OptionError(
                f"{name} needs {key!r}, which covey does not know: it passes {', '.join(map(repr, known))} where a "
                f"parameter has that name. Give it a default, or a value with --network-option {key}=..."
            )
    return found


def _facts(shape: Sequence[int], outputs: int) -> dict[str, Any]:
    """What covey knows of the data, under the names that functions use for it."""
    facts: dict[str, Any] = dict.fromkeys(
        ("outputs", "classes", "num_classes", "n_classes", "out_features"), outputs
    )
    facts |= {"shape": tuple(shape)}
    if len(shape) == 3:
        facts |= dict.fromkeys(("channels", "in_channels", "in_chans"), shape[0])
        facts |= {"image_size": shape[1] if shape[1] == shape[2] else tuple(shape[1:])}
    facts |= dict.fromkeys(("features", "in_features", "inputs"), math.prod(shape))
    return facts


def _where(error: Exception, name: str) -> str:
    """The line of the user's file that an error came from."""
    place = str(path_of(name).resolve())
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == place]
    if isinstance(error, SyntaxError) and error.filename == place:
        lines.append(error.lineno)
    return f" in line {lines[-1]}" if lines else ""
