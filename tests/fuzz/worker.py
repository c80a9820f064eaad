"""A process that damages and reads: takes lines "target seed" and answers each with what came of it, as JSON."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import sys
import traceback
import warnings
from pathlib import Path

import torch
from damage import removed

GIBIBYTE = 1 << 30


def main() -> None:
    """Serve until there are no more lines."""
    folder, limit = Path(sys.argv[1]), float(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed goes elsewhere than the answers
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    import targets

    made: dict[str, targets.Target] = {}
    limited = False
    for line in sys.stdin:
        name, seed = line.split()
        if name not in made:
            made[name] = targets.TARGETS[name](folder / "whole" / name, folder / "damaged" / name)
        if seed == "-":
            print(json.dumps({"outcome": "ready"}), file=answers, flush=True)
            continue
        if not limited:
            limited = True
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + int(limit * GIBIBYTE), resource.RLIM_INFINITY))
        found = attempt(made[name], int(seed))
        print(json.dumps(found), file=answers, flush=True)


def attempt(target, seed: int) -> dict[str, str]:
    """Damage and read once."""
    draw = random.Random(seed)
    target.place.parent.mkdir(parents=True, exist_ok=True)
    how = target.damage(draw)
    from covey.errors import CoveyError

    try:
        target.read(draw)
    except CoveyError as error:
        outcome = "over" if _asked_too_much(error) else "clear"
        text = str(error) or "(no words)"
        if not str(error):
            outcome = "raw"
    except BaseException as error:
        outcome = "over" if _asked_too_much(error) else "raw"
        text = "".join(traceback.format_exception(error)[-6:])
    else:
        outcome, text = "accepted", ""
    removed(target.place)
    return {"outcome": outcome, "how": how, "text": text[-3000:]}


def _asked_too_much(error: BaseException | None) -> bool:
    """Whether memory was asked for beyond the limit, even if that was reported well."""
    while error is not None:
        words = str(error)
        if (
            isinstance(error, MemoryError)
            or "can't allocate memory" in words
            or "Cannot allocate memory" in words
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


if __name__ == "__main__":
    faulthandler.enable()
    main()
