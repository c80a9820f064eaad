"""covey evaluate: score a run, on its own test data or on others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tyro.conf import Positional

from covey.cli import reading, run
from covey.cli.calibrated import offer
from covey.cli.flags import UsageError, parse_one
from covey.cli.settings import Settings, updated
from covey.data import Data
from covey.data.labelled import read_labelled
from covey.data.load import out_of_distribution
from covey.data.splits import fewer


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags:
    """Score a trained run on its test data.

    Args:
        folder: of the run.
        data: score on these data instead of the run's own: a folder of images in class folders, a table with the same
            columns, or an .npz file. Scores go to evaluations/ in the run's folder.
        limit: use only so many samples of each set, drawn with the classes in proportion. Scores go to evaluations/.
        corruptions: corrupt the first so many test images in 75 ways and score those too.
        corrupted: score the published corrupted images in this folder, CIFAR-10-C or CIFAR-100-C, in place of ones
            corrupted here: the first --corruptions of each set, all by default. Scores go to evaluations/.
        skip_bad: with a folder of images as --data: go on without those that cannot be read.
        ood: further sets to test out-of-distribution detection on: known ones, or inputs of your own.
        network: the run's network again, as FILE.py:FUNCTION, which is run; only for a network of your own.
        json: print all scores as JSON.
        report: measure the cost too, and write report.html and its Markdown twin into the folder.
        pdf: write the report's figures as PDF too, for papers; SVG is always written.
    """

    folder: Positional[str]
    data: str | None = None
    limit: int | None = None
    corruptions: int = 0
    corrupted: str | None = None
    skip_bad: bool = False
    ood: tuple[str, ...] = ()
    network: str | None = None
    json: bool = False
    report: bool = True
    pdf: bool = False


def evaluate(args: Sequence[str]) -> int:
    """Score a trained run and write its report: covey evaluate FOLDER"""
    own = parse_one(
        "covey evaluate",
        EvaluateFlags,
        args,
        about="Score a trained run on its test data, and write a report.",
    )
    with run.writing(reading.existing(own.folder)):
        return _evaluate(own)


def _evaluate(own: EvaluateFlags) -> int:
    folder = Path(own.folder)
    stored = reading.read_settings(folder)
    settings = reading.settings_of(stored)
    ensemble = reading.read_ensemble(folder, own.network)
    data = _data_to_score(own, settings, stored["record"], folder, fitted=reading.BY_FIT in stored)
    if own.limit is not None:
        data = fewer(data, own.limit, settings.dataset.data_seed)
    place = _place(own, folder)
    place.mkdir(parents=True, exist_ok=True)
    scores = run.score(place, ensemble, data, corruptions=own.corruptions, corrupted=own.corrupted)
    told = [run.headline(scores), *run.told(scores)]
    if place != folder:
        told.append(f"written to {place}; the run's own scores stay as they are")
    else:
        told += offer(folder, scores)
    if own.data is not None:
        told += run.data_notes(data)
    if own.report:
        from covey.report import write

        run.measure_cost(folder, ensemble, data, place)
        title = f"{settings.method} on {own.data or settings.dataset.data}"
        result = run.result(folder, settings.method, settings.recipe.seed, place)
        page = write([result], place, title=title, pdf=own.pdf)
        told.append(f"report: {page}")
    print(json.dumps(scores.scores, indent=1) if own.json else "\n".join(told))
    return 0


def _data_to_score(
    own: EvaluateFlags, settings: Settings, record: dict[str, Any], folder: Path, *, fitted: bool
) -> Data:
    """The run's own test data, or new ones in the same form."""
    if own.skip_bad and (own.data is None or not Path(own.data).is_dir()):
        raise UsageError("--skip-bad is for images of your own: --data FOLDER.")
    if own.data is None and fitted:
        raise UsageError(
            f"{folder} was trained by covey.fit, and where its test data are is not known: name some, --data FILE.npz "
            "with inputs x and answers y."
        )
    if own.data is None:
        ood = {} if not own.ood else {"ood": list(own.ood)}
        data = updated(settings.dataset, ood, "dataset").load()
        reading.check_same_data(data, record, folder)
        return data
    data = read_labelled(own.data, record, settings.dataset.target, skip_bad=own.skip_bad)
    return replace(data, ood=out_of_distribution(own.ood, record, settings.dataset.root))


def _place(own: EvaluateFlags, folder: Path) -> Path:
    """Where scores go: those of other data, or of a part of the data, do not replace the run's own."""
    parts = [] if own.data is None else [Path(own.data).stem]
    if own.corrupted is not None:
        parts.append(Path(own.corrupted).resolve().name or "corrupted")
        if own.corruptions:
            parts.append(str(own.corruptions))
    if own.limit is not None:
        parts.append(f"limit-{own.limit}")
    return folder / "evaluations" / "-".join(parts) if parts else folder
