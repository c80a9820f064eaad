"""Small ensembles behind the application, in-process."""

from __future__ import annotations

from typing import Any

import pandas
import pytest
import torch
from small_ensembles import ensemble
from torch import nn

from covey.data.columns import fit_columns

pytest.importorskip("fastapi", reason="skipped: the extra serve is not installed")

IMAGE_RECORD = {
    "task": "classification",
    "classes": ["cat", "dog", "eel"],
    "shape": [1, 8, 8],
    "columns": [],
    "normalisation": {"mean": [0.5], "std": [0.25]},
    "target_normalisation": None,
}


@pytest.fixture(scope="session")
def images() -> Any:
    from covey.serving import Model

    return Model(ensemble=ensemble(64, 3, head=(nn.Flatten(),)), record=IMAGE_RECORD, name="pets", defer=1.09)


@pytest.fixture(scope="session")
def table() -> Any:
    from covey.serving import Model

    frame = pandas.DataFrame(
        {
            "age": [20.0, 30.0, 40.0, 50.0],
            "height": [1.5, None, 1.7, 1.8],
            "job": ["cook", "smith", "cook", "clerk"],
            "since": ["2020-01-01", "2021-02-03", "2022-03-04", "2023-05-06"],
        }
    )
    columns = fit_columns(frame, torch.arange(4).numpy())
    width = 1 + 2 + 3 + 1
    record = {
        "task": "regression",
        "classes": [],
        "shape": [width],
        "columns": columns,
        "normalisation": None,
        "target_normalisation": {"mean": [100.0], "std": [10.0]},
    }
    return Model(ensemble=ensemble(width, 2, task="gaussian"), record=record, name="wages", defer=1e9)
