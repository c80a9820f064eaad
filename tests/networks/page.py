"""The page "Which networks work", from a table of verdicts."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from catalogue import Network
from verdicts import VERDICTS, Verdict, methods

MARKS = {
    "ok": "✓",
    "refused": "·",
    "no pack": "✓¹",
    "wrong": "**wrong**",
    "raises": "**raises**",
    "slow": "**slow**",
}
MEANINGLESS = "-"
PACKAGES = ("torch", "torchvision", "timm", "transformers")
SLOW_CONVERSION = 5.0  # seconds


def written(found: Sequence[Verdict], networks: Mapping[str, Network]) -> str:
    """The whole page."""
    found = [verdict for verdict in found if verdict.network in networks]
    sections = [
        _opening(found, len(networks)),
        _shares(found, networks),
        _rows(found, networks),
        _faults(found),
    ]
    sections += [_refusals(found), _slow_conversions(found), _states(found)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _opening(found: Sequence[Verdict], catalogue: int) -> str:
    counts = Counter(verdict.verdict for verdict in found)
    pointless = sum(bool(verdict.meaningless) for verdict in found)
    networks = len({verdict.network for verdict in found})
    versions = ", ".join(f"{package} {_version(package)}" for package in PACKAGES)
    told = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
    return f"""# Which networks work

Every method with its default options on {networks} of the catalogue's {catalogue} networks, which nobody here wrote
for it: classes of timm, torchvision and transformers in small versions, and plain networks as people write them. Random
weights, random inputs, float64. `Slimmable` is not here: it takes networks of several widths.

`python tests/networks/sweep.py --write docs/networks.md` on {datetime.date.today()}; {versions}.
A case that is run again replaces the older one; the last section says which state of the code was run. Of
{len(found)} cases: {told}.
In {pointless} of the refused cases the method can mean nothing for the network, such as an ensemble of norms where
there are none.

A case is `ok` if all of this holds:

- `convert` leaves the network, the example and the global random state alone, and the coverage table adds up;
- in eval mode every member answers as its plain network does, in a loop, batched and as `auto` chooses, on two batches;
- in train mode too, statistics included, and without touching other members;
- a training step through `ens.loss` gives a gradient to all that the plain network trains; afterwards members, a deep
  copy and a loaded state answer the same;
- MIMO's joint pass with the same input M times answers as the members do;
- a packed member has the parameters of alpha / M of every hidden width, up to 10 %, and `pack()` answers as the
  ensemble does.

Outputs agree to 1e-6 of their scale, to 2e-4 where the network itself computes in float32, to 2e-2 where it does in
bfloat16.
`tests/networks/verdicts.py` has the checks."""


def _shares(found: Sequence[Verdict], networks: Mapping[str, Network]) -> str:
    """For each method and kind: the share that is ok and that is refused, where the method can mean something."""
    kinds = list(dict.fromkeys(networks[verdict.network].kind for verdict in found))
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for verdict in found:
        if not verdict.meaningless:
            for kind in (networks[verdict.network].kind, "all"):
                counts[verdict.method, kind][verdict.verdict] += 1
    lines = ["## Per method and kind of network", ""]
    lines += [
        "Percent ok / refused, where the method can mean something; what is missing to 100 has a fault.",
        "",
    ]
    lines += [_line(["method", *kinds, "all"]), _line(["---"] * (len(kinds) + 2))]
    for method in methods():
        cells = [_share(counts[method, kind]) for kind in (*kinds, "all")]
        lines.append(_line([method, *cells]))
    return "\n".join(lines)


def _share(counts: Counter[str]) -> str:
    total = sum(counts.values())
    if not total:
        return MEANINGLESS
    works = counts["ok"] + counts["no pack"]
    return f"{100 * works / total:.0f} / {100 * counts['refused'] / total:.0f}"


def _rows(found: Sequence[Verdict], networks: Mapping[str, Network]) -> str:
    by_case = {(verdict.network, verdict.method): verdict for verdict in found}
    lines = ["## Per network", ""]
    lines += [
        f"{MARKS['ok']} ok; {MARKS['no pack']} ok, but pack() is refused; {MARKS['refused']} refused; "
        f"{MEANINGLESS} refused where the method can mean nothing.",
        "",
    ]
    lines += [_line(["network", "kind", *methods()]), _line(["---"] * (len(methods()) + 2))]
    for name, network in networks.items():
        cells = [_mark(by_case.get((name, method))) for method in methods()]
        if any(cells):
            lines.append(_line([name, network.kind, *cells]))
    return "\n".join(lines)


def _mark(verdict: Verdict | None) -> str:
    if verdict is None:
        return ""
    return MEANINGLESS if verdict.meaningless else MARKS[verdict.verdict]


def _faults(found: Sequence[Verdict]) -> str:
    faulty = [verdict for verdict in found if verdict.verdict in ("wrong", "raises", "slow")]
    if not faulty:
        return ""
    lines = ["## Faults", ""]
    for verdict in faulty:
        lines.append(f"- {verdict.network}, {verdict.method}, {verdict.verdict}: {_plain(verdict.reason)}")
    return "\n".join(lines)


def _refusals(found: Sequence[Verdict]) -> str:
    """Each reason once for each method, with the networks that it is given for."""
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for verdict in found:
        if verdict.verdict in ("refused", "no pack") and not verdict.meaningless:
            reasons[verdict.method, verdict.reason].append(verdict.network)
    lines = ["## Refusals", ""]
    for (method, reason), names in reasons.items():
        lines.append(f"- {method}: {_plain(reason)} ({', '.join(names)})")
    return "\n".join(lines) if reasons else ""


def _slow_conversions(found: Sequence[Verdict]) -> str:
    slow = [verdict for verdict in found if verdict.convert_seconds > SLOW_CONVERSION]
    if not slow:
        return ""
    lines = [f"## Conversions of more than {SLOW_CONVERSION:.0f} seconds", ""]
    for verdict in sorted(slow, key=lambda each: -each.convert_seconds):
        lines.append(f"- {verdict.network}, {verdict.method}: {verdict.convert_seconds:.1f} s")
    return "\n".join(lines)


def _states(found: Sequence[Verdict]) -> str:
    """How many cases were run on which state of the code."""
    counts = Counter((verdict.day, verdict.commit) for verdict in found)
    lines = ["## When the cases were run", "", _line(["day", "commit", "cases"]), _line(["---"] * 3)]
    for (day, commit), cases in sorted(counts.items()):
        lines.append(_line([day or "not recorded", commit or "not recorded", str(cases)]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is, and that has nothing like a link in it."""
    text = text.replace("](", "] (")
    for mark in "\\`*_[]<>|":
        text = text.replace(mark, "\\" + mark)
    return text


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
