"""The entry point: finds the command, and turns errors into one line and an exit code."""

from __future__ import annotations

import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from covey.errors import CoveyError, MissingExtraError, reason, suggest
from covey.extras import explained, load
from covey.files import DRAFT

_GO_ON = {
    "compare": "; the same command goes on with what is not done",
    "reproduce": "; the same command goes on with what is not done",
    "distill": "; the same command with --resume goes on from the last checkpoint, if there is one",
}
"""What to do after Ctrl-C, by command; others say it themselves."""


_INSTEAD = {
    "help": "; `covey --help` lists all",
    "report": "; `covey evaluate FOLDER` writes the report of a run, `covey compare` one of several",
    "fit": "; `covey train METHOD` trains",
    "test": "; `covey evaluate FOLDER` scores a run on its test data",
}
"""What to type instead of a command that does not exist, where the nearest name would mislead."""


def main(args: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code: 0 for success, 2 for a mistake in what was asked, 1 for a fault."""
    words = list(sys.argv[1:] if args is None else args)
    verbose = any(word in ("-v", "--verbose") for word in words)
    words = [_expanded(word) for word in words if word not in ("-v", "--verbose")]
    try:
        _watch()
        return _dispatch(words)
    except MissingExtraError as error:  # without it, what knows the flags may not be importable either
        return _failed(error, 2, verbose)
    except CoveyError as error:
        from covey.cli.spoken import told  # which knows every method, and so takes its time

        return _failed(error, 2, verbose, message=told(error, words))
    except ModuleNotFoundError as error:
        return _failed(explained(error), 2, verbose)
    except KeyboardInterrupt as stop:
        on = f"; {stop}" if str(stop) else _GO_ON.get(words[0], "")
        print(f"covey: stopped{on}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever reads has read enough
        sys.stdout = None
        return 0
    except OSError as error:
        return _failed(error, 2, verbose, message=_of_the_system(error))
    except Exception as error:
        print("covey: this is a fault of covey, not of yours", file=sys.stderr)
        return _failed(error, 1, verbose=True)


def _expanded(word: str) -> str:
    """A word with the home folder in place of ~ where the shell has left it: --folder=~/runs."""
    flag, equals, value = word.rpartition("=")
    if value == "~" or value.startswith("~/"):
        return f"{flag}{equals}{Path(value).expanduser()}"
    return word


def commands() -> dict[str, Callable[[Sequence[str]], int]]:
    """The commands by name."""
    from covey.cli import (
        bench,
        compare,
        deploy,
        distill,
        evaluate,
        networks,
        predict,
        reproduce,
        serve,
        train,
    )
    from covey.cli import commands as simple

    return {
        "train": train.train,
        "compare": compare.compare,
        "evaluate": evaluate.evaluate,
        "predict": predict.predict,
        "serve": serve.serve,
        "export": deploy.export,
        "bench": bench.bench,
        "distill": distill.distill,
        "methods": simple.methods,
        "networks": networks.networks,
        "data": simple.data,
        "reproduce": reproduce.reproduce,
        "show": simple.show,
    }


def _dispatch(words: Sequence[str]) -> int:
    known = commands()
    if not words or words[0] in ("-h", "--help"):
        print("usage: covey COMMAND ...\n\ncommands:")
        for name, command in known.items():
            print(f"  {name:10} {(command.__doc__ or '').strip().splitlines()[0]}")
        print("\n`covey COMMAND --help` explains its flags; -v shows the traceback of an error.")
        return 0
    if words[0] == "--version":
        from covey import __version__

        print(__version__)
        return 0
    if words[0] not in known:
        from covey.cli.flags import UsageError

        instead = _INSTEAD.get(words[0]) or suggest(words[0], known)
        raise UsageError(f"there is no command {words[0]!r}{instead}.")
    return known[words[0]](words[1:])


def _failed(error: Exception, code: int, verbose: bool, message: str | None = None) -> int:
    if verbose:
        traceback.print_exception(error)
    if message is None:
        message = " ".join(str(error).split())
    print(f"covey: error: {message or type(error).__name__}", file=sys.stderr)
    return code


def _of_the_system(error: OSError) -> str:
    """What the system refused, and where: the folder, if it was to hold a draft that nobody knows by name."""
    if not isinstance(error.filename, str):
        return reason(error)
    path = Path(error.filename)
    return f"{path.parent if path.name.startswith(DRAFT) else path}: {reason(error)}."


def _watch() -> None:
    """Log lines and warnings go to stderr without disturbing the progress bar."""
    bars = load("tqdm")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            bars.tqdm.write(record.getMessage(), file=sys.stderr)

    log = logging.getLogger("covey")
    log.handlers[:] = [Handler()]
    log.setLevel(logging.INFO)

    def show(message: Any, category: type, *_: Any, **__: Any) -> None:
        bars.tqdm.write(f"covey: warning: {message}", file=sys.stderr)

    warnings.showwarning = show


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
