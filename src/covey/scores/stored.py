"""What the files of an evaluation look like: evaluation.json and cost.json, and when they agree with themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from covey import calibration
from covey.errors import StoreError
from covey.quantiles import KIND, kind_of
from covey.schema import Both, Either, Many, Maybe, Named, Number, Record, Spec, Whole, Word, check

from .multilabel import PER_LABEL
from .ood import CRITERIA, DETECTION
from .regression import LEVELS

_REACH = 1e30  # no score or cost comes near it, and figures can still be drawn
_VALUE = Number(-_REACH, _REACH)
_SCORES = Named(Maybe(_VALUE))
_CURVE = Many(_VALUE, least=1)
_ANSWER = Record({name: Maybe(_VALUE) for name in ("accuracy", "nll", "ece")})
_SETS = Record({"coverage": _VALUE, "size": _VALUE})
_DETECTED = Record({name: Record(dict.fromkeys(DETECTION, _VALUE)) for name in CRITERIA})
PER_CLASS = ("recall", "precision", "f1")
"""Scores of each class."""

_MATRICES = ("disagreement_matrix", "normalised_disagreement_matrix")
_COMMON: dict[str, Spec] = {"member_mean": _SCORES, "members": Many(_SCORES, least=1)}

_EACH = Many(Maybe(_VALUE))
_PER_CLASS = Record({"samples": Many(Whole()), **dict.fromkeys(PER_CLASS, _EACH)}, optional={"iou": _EACH})
_PER_LABEL = Record({"samples": Many(Whole()), **dict.fromkeys(PER_LABEL, _EACH)})
_INTERVALS = Record(dict.fromkeys(("coverage", "width", "interval_score"), _VALUE))

_CLASSIFICATION = Record(
    {
        **_COMMON,
        "ensemble": Both((_ANSWER, _SCORES)),
        "diversity": Record(
            {
                "mutual_information": Named(Maybe(_VALUE)),
                **dict.fromkeys(("ambiguity", "normalised_disagreement", "error_correlation"), Maybe(_VALUE)),
            },
            optional={
                "disagreement": Maybe(_VALUE),
                **dict.fromkeys(_MATRICES, Maybe(Many(Many(Maybe(_VALUE))))),
            },
        ),
    },
    optional={
        "selective": _SCORES,
        "per_class": _PER_CLASS,
        "confused": Many(Record(dict.fromkeys(("label", "predicted", "count"), Whole()))),
        "confusion": Many(Many(Whole())),
        "calibration": Record(
            optional={"pooled": _ANSWER, "members": _ANSWER, "threshold": _SETS, "aps": _SETS}
        ),
        "ood": Record({"sets": Named(_DETECTED), "mean": _DETECTED}),
        "robustness": Record(
            {
                "mean_corruption_error": _VALUE,
                "mean_corruption_ece": Maybe(_VALUE),
                "by_severity": Named(_SCORES),
            }
        ),
    },
)
_REGRESSION = Record(
    {**_COMMON, "ensemble": _SCORES, "diversity": _SCORES},
    optional={"calibration": Record(optional={"absolute": _INTERVALS, "normalised": _INTERVALS})},
)
_QUANTILES = Record(
    {**_COMMON, "ensemble": _SCORES, "diversity": _SCORES},
    optional={"calibration": Record(optional={"margin": _INTERVALS})},
)
_MULTILABEL = Record(
    {
        **_COMMON,
        "ensemble": _SCORES,
        "per_label": _PER_LABEL,
        "diversity": Record(
            {"mutual_information": _SCORES, **dict.fromkeys(("ambiguity", "disagreement"), Maybe(_VALUE))}
        ),
    }
)
_SCORES_OF = {"regression": _REGRESSION, "multilabel": _MULTILABEL, KIND: _QUANTILES}
"""Scores of tasks that are no classification."""

_CURVES = Record(
    optional={
        "reliability": Record(dict.fromkeys(("left", "confidence", "accuracy", "share"), _CURVE)),
        "risk_coverage": Record(dict.fromkeys(("coverage", "risk"), _CURVE)),
        "roc": Named(Record(dict.fromkeys(("lost", "found"), _CURVE))),
        "histogram": Record({"edges": _CURVE, "share": Named(_CURVE)}),
        "intervals": Record(
            {name: Many(_VALUE, len(LEVELS), len(LEVELS)) for name in ("expected", "observed")}
        ),
        "levels": Record(dict.fromkeys(("expected", "observed"), _CURVE)),
    }
)
_ABOUT = Record(
    {
        "task": Word(),
        "members": Whole(1),
        "samples": Whole(1),
        "outputs": Whole(1),
        "classes": Many(Word()),
        "ood": Named(Whole()),
        "versions": Named(Word()),
    },
    optional={"validation": Whole()},
)
EVALUATION = Record(
    {
        "scores": Named(),
        "curves": _CURVES,
        "about": _ABOUT,
        "notes": Many(Word()),
        "examples": Many(),  # the report leaves out those that are not as covey writes them
        "calibration": Named(calibration.SPEC),
    }
)
COST = Record(
    {
        **dict.fromkeys(("members", "stored", "weight_bytes", "peak_bytes", "batch", "threads"), Whole(1)),
        **dict.fromkeys(("trainable", "multiply_adds"), Whole()),
        "latency": Number(1e-12, _REACH),
        "spread": Number(0, _REACH),
    },
    optional={"training_seconds": Maybe(Number(0, _REACH)), "clock": Word(("wall", "cpu"))},
)
SUBSETS = Record(
    {
        "batch": Whole(1),
        "score": Word(),
        "subsets": Many(
            Record(
                {
                    "members": Many(Whole(), least=1),
                    "multiply_adds": Whole(),
                    "milliseconds": Number(0, _REACH),
                    "score": _VALUE,
                }
            ),
            least=1,
            most=1 << 12,  # of up to twelve members all subsets are scored
        ),
    },
    optional={"clusters": Many(Many(Whole(), most=1 << 12), most=100)},
)
"""What each subset of members costs and scores."""

HISTORY = Named(Maybe(Either((Word(), Number(finite=False)))))
"""A row of history.jsonl."""


def renewed(stored: Any) -> Any:
    """A stored evaluation under the names that scores have now.

    What covey 0.1 called disagreement was divided by a member's error rate.
    """
    if not isinstance(stored, Mapping) or not isinstance(stored.get("scores"), Mapping):
        return stored
    diversity = stored["scores"].get("diversity")
    if not isinstance(diversity, Mapping) or "normalised_disagreement" in diversity:
        return stored
    if "per_label" in stored["scores"]:  # scores of several labels are newer
        return stored
    found = {}
    for name, value in diversity.items():
        is_old = name in ("disagreement", "disagreement_matrix")
        found[f"normalised_{name}" if is_old else name] = value
    return {**stored, "scores": {**stored["scores"], "diversity": found}}


def check_evaluation(stored: Any, source: str) -> None:
    """Refuse what `Evaluation.to_dict` cannot have given, as a StoreError that says what is wrong."""
    check(stored, EVALUATION, source)
    scores = _SCORES_OF.get(kind_of(stored["about"]["task"]), _CLASSIFICATION)
    check(stored, Record({"scores": scores}), source)
    for fault in _contradictions(stored):
        raise StoreError(f"{source}: {fault}. The file was changed after it was written, or damaged.")


def _contradictions(stored: Mapping[str, Any]) -> Iterator[str]:
    """Where parts of an evaluation do not go together."""
    scores, curves, about = stored["scores"], stored["curves"], stored["about"]
    alone = ("reliability", "risk_coverage", "intervals", "levels")
    single = {name: curves[name] for name in alone if name in curves}
    for name, curve in {**single, **curves.get("roc", {})}.items():
        if len({len(values) for values in curve.values()}) > 1:
            yield f"the lists of the curve {name!r} differ in length"
    histogram = curves.get("histogram")
    if histogram is not None:
        bins = len(histogram["edges"]) - 1
        if "test" not in histogram["share"] or any(len(s) != bins for s in histogram["share"].values()):
            yield f"the histogram should have {bins} shares for the test set and each other set"
    names = set(about["ood"])
    found = {
        "scores.ood": set(scores.get("ood", {}).get("sets", {})),
        "curves.roc": set(curves.get("roc", {})),
    }
    for where, sets in found.items():
        if sets != names:
            yield f"{where} has the sets {sorted(sets)}, and about.ood has {sorted(names)}"
    members = about["members"]
    for name in _MATRICES:
        matrix = scores["diversity"].get(name)
        if matrix is not None and any(len(row) != members for row in [matrix, *matrix]):
            yield f"scores.diversity.{name} should be {members} x {members}, one row for each member"
    yield from _faults_of_classes(scores, about["outputs"])
    if len(scores["members"]) != members:
        yield f"scores.members should have {members} entries, one for each member"


def _faults_of_classes(scores: Mapping[str, Any], classes: int) -> Iterator[str]:
    """Where scores of single classes do not fit the number of classes."""
    for group in ("per_class", "per_label"):
        for name, values in scores.get(group, {}).items():
            if len(values) != classes:
                yield f"scores.{group}.{name} should have {classes} entries, one for each"
    matrix = scores.get("confusion")
    if matrix is not None and any(len(row) != classes for row in [matrix, *matrix]):
        yield f"scores.confusion should be {classes} x {classes}, one row for each class"
    for pair in scores.get("confused", ()):
        if max(pair["label"], pair["predicted"]) >= classes:
            yield f"scores.confused names a class beyond the {classes} classes"
