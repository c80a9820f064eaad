"""Calibrations are stored with the ensemble and used by predict."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import covey
from covey.errors import OptionError
from covey.scores import fit_conformal, fit_temperature


@pytest.mark.parametrize("kind", ["pooled", "members"])
def test_predict_uses_what_was_fitted_and_load_brings_it_back(kind: str, tmp_path: Path) -> None:
    network = nn.Linear(4, 3)
    ens = covey.convert(network, covey.DeepEnsemble(members=3))
    with torch.no_grad():
        for parameter in ens.parameters():
            parameter.mul_(20)  # far too sure
    x, y = torch.randn(400, 4), torch.randint(0, 3, (400,))
    raw = ens.predict(x)
    with pytest.raises(OptionError, match="no conformal sets yet.*fit_conformal"):
        _ = raw.sets
    ens.temperature = fit_temperature(raw.logits, y, kind=kind)
    calm = ens.predict(x)
    ens.conformal = fit_conformal(calm.probs, y, alpha=0.2)
    covey.save(ens, tmp_path)
    back = covey.load(tmp_path, network=network)
    assert (back.temperature, back.conformal) == (ens.temperature, ens.conformal)
    again = back.predict(x)
    torch.testing.assert_close(again.probs, calm.probs)
    rows = torch.arange(400)
    assert -again.log_probs[rows, y].mean() < -raw.log_probs[rows, y].mean()
    torch.testing.assert_close(again.probs.sum(-1), torch.ones(400))
    if kind == "pooled":
        torch.testing.assert_close(again.mutual_information, raw.mutual_information)
    assert again.sets[rows, y].float().mean() >= 0.78
