"""Flags that would change nothing, beside the others that were typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from covey.cli.flags import UsageError
from covey.cli.settings import Settings, is_table

Rule = tuple[str, Callable[[Settings], bool], str]


def check_idle(settings: Settings, args: Sequence[str]) -> None:
    """Refuse a typed flag that nothing would look at: its owner thinks that it does something."""
    typed = {
        word.partition("=")[0].replace("_", "-").replace("no-", "", 1) for word in args if word[:2] == "--"
    }
    idle = {flag: when for flag, counts, when in _RULES if not counts(settings)}
    idle |= {f"--{option.replace('_', '-')}": when for option, when in settings.options.idle.items()}
    for flag, when in idle.items():
        if flag in typed:
            raise UsageError(f"{flag} changes nothing here: it is for {when}. Leave it out, or add that.")
    if {"--samples", "--train-samples"} <= typed:
        raise UsageError(
            "--samples cuts every part of the data and --train-samples the training part alone; choose one."
        )
    if "--scale" in typed and "--recipe" not in typed:
        raise UsageError("--scale is the size of a recipe file; give --recipe too, or leave it out.")


def _kind(*kinds: str) -> Callable[[Settings], bool]:
    return lambda settings: settings.recipe.schedule.kind in kinds


def _operations(settings: Settings) -> bool:
    return settings.recipe.augment.operations > 0


def _two_mixes(settings: Settings) -> bool:
    augment = settings.recipe.augment
    return augment.mixup > 0 and augment.cutmix > 0


def _sgd(settings: Settings) -> bool:
    return settings.recipe.optimizer == "sgd"


def _chosen_by_score(settings: Settings) -> bool:
    return settings.recipe.keep == "best" or settings.recipe.patience is not None


def _no_table(settings: Settings) -> bool:
    return not is_table(settings.dataset.data)


_RULES: tuple[Rule, ...] = (
    ("--schedule.milestones", _kind("multistep"), "--schedule.kind multistep"),
    ("--schedule.factor", _kind("multistep"), "--schedule.kind multistep"),
    ("--schedule.cycle", _kind("cyclic", "triangular"), "--schedule.kind cyclic or triangular"),
    ("--schedule.end", _kind("linear"), "--schedule.kind linear"),
    (
        "--schedule.start",
        _kind("linear", "cyclic", "triangular"),
        "--schedule.kind linear, cyclic or triangular",
    ),
    (
        "--schedule.final",
        _kind("linear", "cosine", "triangular"),
        "--schedule.kind linear, cosine or triangular",
    ),
    ("--augment.magnitude", _operations, "RandAugment, --augment.operations 1 or more"),
    ("--augment.spread", _operations, "RandAugment, --augment.operations 1 or more"),
    ("--augment.switch", _two_mixes, "--augment.mixup and --augment.cutmix together"),
    ("--nesterov", _sgd, "--optimizer sgd"),
    ("--choose", _chosen_by_score, "--keep best or --patience"),
    ("--channels-last", _no_table, "images"),
)
