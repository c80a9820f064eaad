"""covey distill: a trained run teaches its answers to one network, or to a cheaper ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from covey import deploy, registry
from covey.cli import reading, run
from covey.cli.flags import UsageError
from covey.cli.settings import SINGLE, Network, Settings
from covey.cli.train import check_typed, ended, flag_value, read_run, tell_scores
from covey.data import Data
from covey.ensemble import Ensemble


@dataclass(frozen=True, kw_only=True)
class DistillFlags:
    """What `covey distill` takes besides the student's own settings.

    Args:
        temperature: above 1 softens the teacher's probabilities, so that small ones teach too.
        truth: share of the true labels in what is taught, from 0 to 1.
        teacher_network: the teacher's network again, as FILE.py:FUNCTION, which is run; only if it is one of your own,
            and the student's is another.
        folder: where to write the student; the teacher's folder with the method's name behind it if not given.
        resume: go on from the newest whole checkpoint in the folder.
        overwrite: replace the run in the folder, if it holds nothing else.
        evaluate: score on the test data at the end.
    """

    temperature: float = 1.0
    truth: float = 0.0
    teacher_network: str | None = None
    folder: str | None = None
    resume: bool = False
    overwrite: bool = False
    evaluate: bool = True


_USAGE = """usage: covey distill TEACHER [METHOD] [flags]

Teach a trained run's answers to one network, or to a cheaper ensemble.

TEACHER is the folder of a run. Without a METHOD, one network learns the averaged answer. With a method of as many
members as the teacher has, which is the default, member k learns from member k and the student keeps the disagreement.
Data, network and recipe are the teacher's if no flag says otherwise.

`covey distill TEACHER METHOD --help` explains every flag."""


def distill(args: Sequence[str]) -> int:
    """Teach a run's answers to one network or a cheaper ensemble: covey distill TEACHER [METHOD] ..."""
    teacher, name, rest = _positional(args)
    if teacher is None:
        if any(word in ("-h", "--help") for word in rest):
            print(_USAGE)
            return 0
        raise UsageError(
            "covey distill takes the folder of a run that teaches: covey distill TEACHER [METHOD]"
        )
    stored = reading.read_settings(reading.existing(teacher))
    start = _start(teacher, stored, rest)
    settings, own = read_run(
        f"covey distill {teacher} {name}", name, _options(name, stored), start, DistillFlags(), rest
    )
    check_typed(settings, rest)
    if own.resume and own.overwrite:
        raise UsageError("--resume goes on with a run and --overwrite replaces it; choose one.")
    settings = settings.complete()
    ensemble = reading.read_ensemble(Path(teacher), _code(own, settings, stored))
    folder = Path(own.folder or f"{teacher.rstrip('/')}-{name}")
    if folder.resolve() == Path(teacher).resolve():
        raise UsageError(f"--folder {folder} is the teacher's own; choose another for the student.")
    lesson = _lesson(ensemble, Path(teacher), own)
    with run.writing(folder):
        history, data = run.train(settings, folder, resume=own.resume, overwrite=own.overwrite, lesson=lesson)
        print(ended(folder, history))
        if own.evaluate:
            tell_scores(folder, history.ensemble, data)
    return 0


def _positional(args: Sequence[str]) -> tuple[str | None, str, list[str]]:
    """The teacher's folder, the student's method, and the flags."""
    words = list(args)
    teacher = words.pop(0) if words and not words[0].startswith("-") else None
    name = words.pop(0) if teacher is not None and words and not words[0].startswith("-") else SINGLE
    registry.lookup(name)
    return teacher, name, words


def _start(teacher: str, stored: dict[str, Any], args: Sequence[str]) -> Settings:
    """The teacher's settings, which are the student's defaults; another network has options of its own."""
    for flag in ("--data", "--network"):
        if reading.BY_FIT in stored and flag_value(args, flag) is None:
            raise UsageError(
                f"{teacher} was trained by covey.fit, which does not store its data and network: name what the student "
                f"learns on with --data, and its network with --network; {flag} is missing."
            )
    start = reading.settings_of(stored)
    return start if flag_value(args, "--network") is None else replace(start, network=Network())


def _options(name: str, stored: dict[str, Any]) -> Any:
    """The method's defaults, with as many members as the teacher has."""
    options: Any = registry.lookup(name)()
    members = stored["options"].get("members")
    takes = any(field.name == "members" and field.init for field in fields(options))
    return replace(options, members=members) if takes and isinstance(members, int) else options


def _code(own: DistillFlags, settings: Settings, stored: dict[str, Any]) -> str | None:
    """The Python file of the teacher's network, which is the student's too if none is named."""
    if own.teacher_network is not None:
        return own.teacher_network
    has_code = bool(reading.settings_of(stored).network.code)
    return settings.network.network if has_code and settings.network.code else None


def _lesson(ensemble: Ensemble, teacher: Path, own: DistillFlags) -> run.Lesson:
    record = reading.read_settings(teacher)["record"]
    described = {
        "teacher": str(teacher.resolve()),
        "temperature": own.temperature,
        "truth": own.truth,
    }
    return run.Lesson(
        learn=partial(deploy.distill, ensemble, temperature=own.temperature, truth=own.truth),
        check=lambda data: _check_answers(data, record, teacher),
        described=described,
    )


def _check_answers(data: Data, record: Mapping[str, Any], teacher: Path) -> None:
    """Refuse data that the teacher was not made for."""
    for name in ("task", "shape", "classes"):
        known, given = record[name], data.record[name]
        if given != known:
            raise UsageError(
                f"{teacher} was trained on data with {name} {reading.in_short(known)}, and {data.record['source']} has "
                f"{name} {reading.in_short(given)}: a teacher answers only data like its own. Choose other --data, or "
                "leave it out."
            )
