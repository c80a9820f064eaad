"""Tables of how well data from elsewhere are told from the test data, and of how much members differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from result_rows import WORDS, Row, markdown, origin, read, rows, waiting

CRITERIA = {"entropy": "entropy", "energy": "energy", "mutual_information": "mutual information"}
DETECTION = {"auroc": "AUROC %", "fpr95": "FPR95 %"}
DIVERSITY = {
    "disagreement": "disagreement",
    "normalised_disagreement": "disagreement over error rate",
    "error_correlation": "correlation of errors",
}


def by_set(name: str) -> str:
    """AUROC and FPR95 by entropy, against each set from elsewhere."""
    found = read(name)
    if found is None:
        return waiting(name)
    table = _ordered(rows(found))
    sets = _sets(table)
    headings = ["method", *(f"{each}: {words}" for each in sets for words in DETECTION.values())]
    lines = []
    for row in table:
        cells = [
            _percent(row, "scores", "ood", "sets", each, "entropy", key) for each in sets for key in DETECTION
        ]
        lines.append([WORDS.get(row.label, row.label), *cells])
    return f"{markdown(headings, lines)}\n\n{origin(found)}"


def by_criterion(name: str) -> str:
    """AUROC by three criteria, averaged over the sets, beside what makes members useful: that they differ."""
    found = read(name)
    if found is None:
        return waiting(name)
    headings = ["method", *(f"AUROC %, {words}" for words in CRITERIA.values()), *DIVERSITY.values()]
    lines = []
    for row in _ordered(rows(found)):
        alone = not row.values("scores", "diversity", "disagreement")
        cells = []
        for criterion in CRITERIA:
            if alone and criterion == "mutual_information":  # one member's is 0 for every sample
                cells.append("-")
            else:
                cells.append(_percent(row, "scores", "ood", "mean", criterion, "auroc"))
        cells += [row.cell("scores", "diversity", key) for key in DIVERSITY]
        lines.append([WORDS.get(row.label, row.label), *cells])
    return f"{markdown(headings, lines)}\n\n{origin(found)}"


def _ordered(table: Mapping[str, Row]) -> list[Row]:
    """Best NLL first, as in the table of scores."""
    return sorted(table.values(), key=lambda row: row.mean("scores", "ensemble", "nll"))


def _sets(table: Sequence[Row]) -> list[str]:
    """The sets from elsewhere, as the runs have them."""
    return list(table[0].runs[0]["scores"]["ood"]["sets"])


def _percent(row: Row, *path: str) -> str:
    return row.cell(*path, digits=1, percent=True)
