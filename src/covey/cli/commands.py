"""The commands, one function each: from what was typed to what is printed."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor
from tyro.conf import Positional

from covey import registry
from covey.cli import recipes, run
from covey.cli.flags import UsageError, describe, flag_names, parse, parse_one
from covey.cli.settings import TABLE, TRANSFORMER, Dataset, Settings, is_table, updated
from covey.combine import MultiLabel, Prediction, Regression
from covey.data import Data
from covey.data.inputs import prepare, read_inputs
from covey.data.labelled import read_labelled
from covey.data.show import contact_sheet, list_known, summary
from covey.data.splits import fewer
from covey.deploy import DeployedEnsemble
from covey.errors import DataError, StoreError
from covey.files import write_text
from covey.schema import read_text
from covey.train import Recipe
from covey.zoo import from_file

_NAMED = 5  # inputs in a message
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what the cells begin with that spreadsheets compute


@dataclass(frozen=True, kw_only=True)
class TrainFlags:
    """What `covey train` takes besides the run's own settings.

    Args:
        recipe: a recipe file, whose settings are the defaults of all other flags.
        scale: the size of the recipe: "full", or "small" for a run on a CPU.
        folder: where to write the run; runs/... if not given.
        resume: go on from the newest whole checkpoint in the folder.
        evaluate: score on the test data at the end.
    """

    recipe: str | None = None
    scale: Literal["full", "small"] = "full"
    folder: str | None = None
    resume: bool = False
    evaluate: bool = True


def train(args: Sequence[str]) -> int:
    """Train a network or an ensemble: covey train METHOD --data NAME --network NAME ..."""
    name, rest = _method_first(args)
    file = flag_value(rest, "--recipe")
    scale = flag_value(rest, "--scale") or "full"
    if scale not in ("full", "small"):
        raise UsageError(f"--scale is full or small; got {scale!r}.")
    start = recipes.read(file).at(scale) if file else usual_settings(rest)
    if name is None and not file:
        if any(word in ("-h", "--help") for word in rest):
            print(train_help())
            return 0
        raise UsageError(
            "covey train takes a method, or a recipe file that names one; `covey methods` lists them."
        )
    name = name or start.method
    options = start.options if name == start.method else registry.lookup(name)()
    settings, own = read_run(f"covey train {name}", name, options, start, TrainFlags(), rest)
    check_typed(settings, rest)
    settings = settings.complete()
    folder = Path(own.folder) if own.folder else run.usual_folder(settings)
    with run.writing(folder):
        history, data = run.train(settings, folder, resume=own.resume)
        if not run.leads():
            return 0
        print(f"{folder}: {history.ended}, {history.ensemble.members} members, "
              f"{sum(p.numel() for p in history.ensemble.parameters()):,} parameters")  # fmt: skip
        if own.evaluate and len(data.test):
            scores = run.score(folder, history.ensemble, data)
            print("\n".join(["test scores:", run.headline(scores), *run.told(scores)]))
    return 0


def usual_settings(args: Sequence[str]) -> Settings:
    """The defaults for what was typed: tables and transformers are not trained as images are."""
    network = flag_value(args, "--network") or ""
    if network.startswith("hf:"):
        return Settings(recipe=TRANSFORMER)
    if is_table(flag_value(args, "--data") or ""):
        return Settings(recipe=TABLE)
    return Settings()


def check_typed(settings: Settings, args: Sequence[str]) -> None:
    """Refuse to run a Python file that was not named on the command line, but in a recipe or in a stored run."""
    typed = set()
    for word in args:
        for piece in (word, *re.split("[=,+]", word)):  # --network=..., single:network=..., a.py:f+b.py:g
            if from_file.is_code(piece) and ":" in piece:
                typed.add(from_file.absolute(piece))
    for name in settings.network.code:
        if from_file.absolute(name) not in typed:
            raise UsageError(
                f"the network is made by {name}. That is code, and only run if you name it: --network {name}"
            )


def read_run(
    command: str, name: str, options: Any, start: Settings, own: Any, args: Sequence[str]
) -> tuple[Settings, Any]:
    """Settings and a command's own flags, from `start` and what was typed."""
    parts = {
        "own": own,
        "recipe": start.recipe,
        "options": options,
        "network": start.network,
        "dataset": start.dataset,
        "machine": start.machine,
    }
    about = (registry.lookup(name).__doc__ or "").strip().split("\n\n")[0]
    found = parse(command, parts, args, about=" ".join(about.split()))
    settings = Settings(
        method=name,
        options=found["options"],
        dataset=found["dataset"],
        network=found["network"],
        recipe=found["recipe"],
        machine=found["machine"],
    )
    return settings, found["own"]


def train_help() -> str:
    """What `covey train --help` says: the methods, each with its first line."""
    lines = ["usage: covey train METHOD [flags]", "       covey train --recipe FILE [flags]", "", "methods:"]
    lines += [f"  {name:16} {_first_line(registry.lookup(name))}" for name in registry.names()]
    return "\n".join([*lines, "", "`covey train METHOD --help` explains every flag."])


@dataclass(frozen=True, kw_only=True)
class EvaluateFlags:
    """Score a trained run on its test data.

    Args:
        folder: of the run.
        data: score on these data instead of the run's own: a folder of images in class folders, a table with the same
            columns, or an .npz file. Scores go to evaluations/ in the run's folder.
        limit: use only so many samples of each set, drawn with the classes in proportion. Scores go to evaluations/.
        corruptions: corrupt the first so many test images in 75 ways and score those too.
        ood: further sets to test out-of-distribution detection on: known ones, or inputs of your own.
        network: the run's network again, as FILE.py:FUNCTION, which is run; only for a network of your own.
        json: print all scores as JSON.
        report: measure the cost too, and write report.html and its Markdown twin into the folder.
    """

    folder: Positional[str]
    data: str | None = None
    limit: int | None = None
    corruptions: int = 0
    ood: tuple[str, ...] = ()
    network: str | None = None
    json: bool = False
    report: bool = True


def evaluate(args: Sequence[str]) -> int:
    """Score a trained run and write its report: covey evaluate FOLDER"""
    own = parse_one(
        "covey evaluate",
        EvaluateFlags,
        args,
        about="Score a trained run on its test data, and write a report.",
    )
    with run.writing(run.existing(own.folder)):
        return _evaluate(own)


def _evaluate(own: EvaluateFlags) -> int:
    folder = Path(own.folder)
    stored = run.read_settings(folder)
    settings = run.settings_of(stored)
    ensemble = run.read_ensemble(folder, own.network)
    data = _data_to_score(own, settings, stored["record"], folder)
    if own.limit is not None:
        data = fewer(data, own.limit, settings.dataset.data_seed)
    place = _place(own, folder)
    place.mkdir(parents=True, exist_ok=True)
    scores = run.score(place, ensemble, data, corruptions=own.corruptions)
    told = [run.headline(scores), *run.told(scores)]
    if place != folder:
        told.append(f"written to {place}; the run's own scores stay as they are")
    if own.report:
        from covey.report import write

        run.measure_cost(folder, ensemble, data, place)
        title = f"{settings.method} on {own.data or settings.dataset.data}"
        page = write([run.result(folder, settings.method, settings.recipe.seed, place)], place, title=title)
        told.append(f"report: {page}")
    print(json.dumps(scores.scores, indent=1) if own.json else "\n".join(told))
    return 0


def _data_to_score(own: EvaluateFlags, settings: Settings, record: dict[str, Any], folder: Path) -> Data:
    """The run's own test data, or new ones in the same form."""
    if own.data is None:
        ood = {} if not own.ood else {"ood": list(own.ood)}
        data = updated(settings.dataset, ood, "dataset").load()
        run.check_same_data(data, record, folder)
        return data
    data = read_labelled(own.data, record, settings.dataset.target)
    outside = {Path(name).name: read_inputs(name, record)[1] for name in own.ood}
    return replace(data, ood=outside)


def _place(own: EvaluateFlags, folder: Path) -> Path:
    """Where scores go: those of other data, or of a part of the data, do not replace the run's own."""
    parts = [] if own.data is None else [Path(own.data).stem]
    if own.limit is not None:
        parts.append(f"limit-{own.limit}")
    return folder / "evaluations" / "-".join(parts) if parts else folder


@dataclass(frozen=True, kw_only=True)
class PredictFlags:
    """Predict with a trained run.

    Args:
        folder: of the run, or an .onnx file that `covey export` wrote.
        input: an image, a folder of images, a table with the training columns, or an .npy or .npz array.
        network: the run's network again, as FILE.py:FUNCTION, which is run; only for a network of your own.
        out: a .csv or .json file to write; printed as CSV if not given.
        batch: samples that run at once.
    """

    folder: Positional[str]
    input: Positional[str]
    network: str | None = None
    out: str | None = None
    batch: int = 256


def predict(args: Sequence[str]) -> int:
    """Predict with a trained run: covey predict FOLDER INPUT"""
    own = parse_one("covey predict", PredictFlags, args, about="Predict with a trained run.")
    if own.out is not None and Path(own.out).suffix not in (".csv", ".json"):
        raise UsageError(f"--out is a .csv or .json file; got {own.out!r}.")
    if own.batch < 1:
        raise UsageError(f"--batch is a whole number of at least 1; got {own.batch}.")
    answering, record = _answering(Path(own.folder), own.network)
    names, inputs = read_inputs(own.input, record)
    rows: list[dict[str, Any]] = []
    for labels, part in zip(_cut(names, own.batch), inputs.split(own.batch), strict=True):
        rows += prediction_rows(labels, answering(prepare(part, record)), record)
    _check_finite(rows, own.input)
    text = _as_csv(rows) if own.out is None or own.out.endswith(".csv") else json.dumps(rows, indent=1) + "\n"
    if own.out is None:
        sys.stdout.write(text)
    else:
        try:
            write_text(Path(own.out), text)
        except OSError as error:
            raise StoreError(f"cannot write {own.out}: {error}") from error
        print(f"{len(rows)} predictions written to {own.out}")
    return 0


def _answering(path: Path, network: str | None) -> tuple[Callable[[Tensor], Any], dict[str, Any]]:
    """What answers prepared inputs, and the record of the data that it was trained on."""
    if path.suffix == ".onnx":
        deployed = DeployedEnsemble(path)
        if deployed.about["data"] is None:
            raise StoreError(
                f"{path} does not say what data it was trained on: it was exported without record=. Export it from a "
                "run with `covey export`."
            )

        def from_file(inputs: Tensor) -> dict[str, Tensor]:
            found = deployed(inputs.numpy())
            return {name: torch.from_numpy(array) for name, array in found.items()}

        return from_file, deployed.about["data"]
    record = run.read_settings(path)["record"]
    ensemble = run.read_ensemble(path, network)
    # Whether answers are finite is checked over all batches and with the inputs' names.
    return (lambda inputs: ensemble.predict(inputs, check=False)), record


def prediction_rows(names: Sequence[str], answer: Any, record: dict[str, Any]) -> list[dict[str, Any]]:
    """A record for each input: the prediction and its uncertainty."""
    columns = COLUMNS[type(answer)](answer, record)
    return [
        dict(zip(("input", *columns), row, strict=True)) for row in zip(names, *columns.values(), strict=True)
    ]


def _class_columns(answer: Prediction, record: dict[str, Any]) -> dict[str, list[Any]]:
    classes = _class_names(record["classes"], answer.probs.shape[-1])
    if answer.probs.ndim == 4:
        return _pixel_columns(answer, classes)
    return {
        "prediction": [classes[i] for i in answer.label.tolist()],
        "probability": answer.max_prob.tolist(),
        "entropy": answer.entropy.tolist(),
        "mutual_information": answer.mutual_information.tolist(),
        **{f"p({name})": answer.probs[:, i].tolist() for i, name in enumerate(classes)},
    }


def _pixel_columns(answer: Prediction, classes: Sequence[str]) -> dict[str, list[Any]]:
    """An image's shares of classes, and the means over its pixels of how sure the answer is."""

    def mean(values: Tensor) -> list[float]:
        return values.flatten(1).double().mean(1).tolist()

    return {
        "probability": mean(answer.max_prob),
        "entropy": mean(answer.entropy),
        "mutual_information": mean(answer.mutual_information),
        **{f"share({name})": mean(answer.label == i) for i, name in enumerate(classes)},
    }


def _label_columns(answer: MultiLabel, record: dict[str, Any]) -> dict[str, list[Any]]:
    names = _class_names(record["classes"], answer.probs.shape[-1])
    said = []
    for true in answer.labels.tolist():
        said.append("; ".join(name for name, is_true in zip(names, true, strict=True) if is_true))
    return {
        "prediction": said,
        "entropy": answer.entropy.sum(-1).tolist(),
        "mutual_information": answer.mutual_information.sum(-1).tolist(),
        **{f"p({name})": answer.probs[:, i].tolist() for i, name in enumerate(names)},
    }


def _number_columns(answer: Regression, record: dict[str, Any]) -> dict[str, list[Any]]:
    unit = record["target_normalisation"] or {"mean": [0.0], "std": [1.0]}
    scales, shifts = unit["std"], unit["mean"]
    values = {
        "prediction": answer.mean,
        "std": answer.std,
        "epistemic_std": answer.epistemic.sqrt(),
        "aleatoric_std": answer.aleatoric.sqrt(),
    }
    columns = {}
    for k, (scale, shift) in enumerate(zip(scales, shifts, strict=True)):
        which = f"[{k}]" if len(scales) > 1 else ""
        for name, tensor in values.items():
            own = tensor.reshape(len(tensor), -1)[:, k] * scale
            columns[name + which] = (own + shift if name == "prediction" else own).tolist()
    return columns


def _file_columns(found: dict[str, Tensor], record: dict[str, Any]) -> dict[str, list[Any]]:
    """Of an exported file's answer, which has the names of an ensemble's."""
    answer: Any = SimpleNamespace(**found)
    if "mean" in found:
        return _number_columns(answer, record)
    if record["task"] == "multilabel":
        answer.labels = answer.probs > 0.5
        return _label_columns(answer, record)
    answer.label, answer.max_prob = answer.probs.argmax(-1), answer.probs.amax(-1)
    return _class_columns(answer, record)


COLUMNS: dict[type, Callable[[Any, dict[str, Any]], dict[str, list[Any]]]] = {
    Prediction: _class_columns,
    MultiLabel: _label_columns,
    Regression: _number_columns,
    dict: _file_columns,
}
"""What is written of each kind of answer."""


def _class_names(classes: Sequence[str], outputs: int) -> list[str]:
    """A name for each output; a network may have more outputs than the data have classes."""
    if outputs < len(classes):
        raise StoreError(
            f"the run's settings name {len(classes)} classes, and its ensemble has {outputs} outputs: its files do "
            "not belong together."
        )
    return [*classes, *(f"class {i}" for i in range(len(classes), outputs))]


@dataclass(frozen=True, kw_only=True)
class MethodsFlags:
    """List the methods, or explain one.

    Args:
        name: of a method; all are listed if not given.
    """

    name: Positional[str] = ""


def methods(args: Sequence[str]) -> int:
    """List the methods, or explain one: covey methods [NAME]"""
    own = parse_one("covey methods", MethodsFlags, args, about="List the methods, or explain one.")
    if not own.name:
        for name in registry.names():
            print(f"{name:16} {_first_line(registry.lookup(name))}")
        return 0
    kind = registry.lookup(own.name)
    print(f"{own.name}: {_first_line(kind)}\n")
    told, example = describe(kind), kind()
    names = flag_names({"own": TrainFlags(), "recipe": Recipe(), "options": example}, "options")
    for name, flag in names.items():
        print(f"  {flag:16} {told.get(name, '')} (default {getattr(example, name)})")
    return 0


@dataclass(frozen=True, kw_only=True)
class DataFlags:
    """What `covey data` takes besides the data set.

    Args:
        sheet: a PNG file to draw a contact sheet to.
    """

    sheet: str | None = None


def data(args: Sequence[str]) -> int:
    """Show what would be trained on: covey data SOURCE [--sheet FILE]"""
    words = list(args)
    if not words:
        print(list_known())
        return 0
    if not words[0].startswith("-"):
        words[:1] = ["--data", words[0]]
    about = "Show what would be trained on; without a source, list the known ones."
    found = parse("covey data", {"dataset": Dataset(), "own": DataFlags()}, words, about=about)
    loaded = found["dataset"].load()
    print(summary(loaded))
    if found["own"].sheet:
        print(f"contact sheet  {contact_sheet(loaded, found['own'].sheet)}")
    return 0


@dataclass(frozen=True, kw_only=True)
class ShowFlags:
    """Show a run.

    Args:
        folder: of the run.
        network: the run's network again, as FILE.py:FUNCTION, which is run; only for a network of your own.
        tensors: list what became of every tensor of the network.
    """

    folder: Positional[str]
    network: str | None = None
    tensors: bool = False


def show(args: Sequence[str]) -> int:
    """Show a run: its settings, its history and its scores: covey show FOLDER"""
    own = parse_one("covey show", ShowFlags, args, about="Show a run: settings, history, scores.")
    folder = Path(own.folder)
    stored = run.read_settings(folder)
    settings = run.settings_of(stored)
    finished = (folder / "ensemble").exists()
    ensemble = run.read_ensemble(folder, own.network) if finished else None
    usual = "the usual one for the data"
    if ensemble is not None:
        usual = getattr(ensemble.skeleton(), "covey_zoo", {}).get("name", usual)
    print(f"method    {settings.method} {_differences(settings.options)}")
    print(f"network   {settings.network.network or usual}")
    print(f"data      {settings.dataset.data}")
    print(f"recipe    {_differences(settings.recipe)}")
    if ensemble is None:
        print(f"training  {stored['ended']}: go on with the same command and --resume")
        if (folder / "history.csv").exists():
            print("\n" + read_text(folder / "history.csv").strip())
        return 0
    coverage = ensemble.coverage
    print(f"run       {ensemble.runs['train']} in training, {ensemble.runs['eval']} in evaluation")
    print(
        f"size      {coverage.total:,} parameters, {coverage.ratio:.3f} of the network's {coverage.network:,}"
    )
    print(f"training  {stored['ended']}, {stored['seconds']} s\n")
    print(read_text(folder / "history.csv").strip())
    if (folder / "evaluation.json").exists():
        from covey.scores import Evaluation

        print("\ntest scores:\n" + run.headline(Evaluation.load(folder, outputs=False)))
    if own.tensors:
        print(f"\n{coverage}")
    return 0


def _method_first(args: Sequence[str]) -> tuple[str | None, list[str]]:
    if args and not args[0].startswith("-"):
        registry.lookup(args[0])
        return args[0], list(args[1:])
    return None, list(args)


def flag_value(args: Sequence[str], flag: str) -> str | None:
    """A flag's value before all flags are read, since the recipe file changes their defaults."""
    for i, word in enumerate(args):
        if word == flag and i + 1 < len(args):
            return args[i + 1]
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]


def _differences(options: Any) -> str:
    """What differs from the defaults, as flags."""
    default = asdict(type(options)())
    changed = {k: v for k, v in asdict(options).items() if v != default[k] and not callable(v)}
    return " ".join(f"{k}={v}" for k, v in changed.items())


def _cut(names: Sequence[str], size: int) -> list[Sequence[str]]:
    return [names[i : i + size] for i in range(0, len(names), size)]


def _check_finite(rows: Sequence[dict[str, Any]], source: str) -> None:
    """Refuse to pass on a prediction that is no number, which a reader could take for one."""
    broken = []
    for row in rows:
        numbers = [value for value in row.values() if isinstance(value, float)]
        if not all(map(math.isfinite, numbers)):
            broken.append(row["input"])
    if not broken:
        return
    named = ", ".join(broken[:_NAMED]) + (f" and {len(broken) - _NAMED} more" if broken[_NAMED:] else "")
    raise DataError(
        f"{source}: the prediction is NaN or infinite for {len(broken)} of {len(rows)} inputs: {named}. Their values "
        "are too large or missing; correct or remove these inputs."
    )


def _as_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    names = list(rows[0]) if rows else ["input"]
    plain = csv.writer(text, lineterminator="\n")
    # The plain writer puts no quotes around a carriage return, which would end the row for whoever reads it.
    quoting = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    table = [names, *([row[name] for name in names] for row in rows)]
    for row in table:
        cells = [_defused(cell) for cell in row]
        returns = any("\r" in cell for cell in cells if isinstance(cell, str))
        writer = quoting if returns else plain
        writer.writerow(cells)
    return text.getvalue()


def _defused(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: a quote before words, such as a file's name, that look like one.

    Numbers stay as they are, those that are the name of a class too.
    """
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return "'" + cell
    return cell
