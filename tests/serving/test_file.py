"""An exported file is served as the run that it came from."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

import covey
from covey.cli.main import main
from covey.cli.serve import ServeFlags, _application
from covey.scores import Conformal, Temperature
from covey.serving import Limits, Model, ServedFile, application

pytest.importorskip("onnxruntime", reason="skipped: the extra export is not installed")


@pytest.fixture(scope="module")
def pets(images: Any) -> Model:
    """Calibrated, with conformal sets."""
    ensemble = copy.deepcopy(images.ensemble)
    ensemble.temperature = Temperature("members", (0.5, 2.0, 1.0))
    ensemble.conformal = Conformal("threshold", 0.1, 0.6)
    return Model(ensemble=ensemble, record=images.record, name="pets", defer=1.09)


@pytest.fixture(scope="module")
def files(pets: Model, table: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Exported with and without members."""
    folder = tmp_path_factory.mktemp("served")
    pictures, numbers = torch.randn(4, 1, 8, 8), torch.randn(4, *table.shape)
    found = {"pets": folder / "my pets.onnx", "brief": folder / "brief.onnx", "wages": folder / "wages.onnx"}
    covey.export(pets.ensemble, found["pets"], pictures, record=pets.record, members=True)
    covey.export(pets.ensemble, found["brief"], pictures, record=pets.record)
    covey.export(table.ensemble, found["wages"], numbers, record=table.record, members=True)
    return found


def asked(app: Any, sent: dict[str, Any]) -> dict[str, Any]:
    with TestClient(app) as client:
        return client.post("/predict", json=sent).json()


def close(found: Any, wanted: Any) -> None:
    """Equal up to rounding, however nested."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            close(found[key], value)
    elif isinstance(wanted, list):
        for ours, theirs in zip(found, wanted, strict=True):
            close(ours, theirs)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=1e-4)
    else:
        assert found == wanted


def test_answers_are_the_ensembles(files: dict[str, Path], pets: Model, table: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8)).tolist()
    rows = [[30, 1.6, "cook", "2021-02-03"]]
    for model, name, sent in ((pets, "pets", {"pixels": pixels}), (table, "wages", {"rows": rows})):
        sent["members"] = True
        served = ServedFile(files[name])
        of_file = Model(ensemble=served, record=served.record, name=model.name, defer=model.defer)
        wanted = asked(application(model), sent)
        assert len(wanted["predictions"][0]["members"]) == model.ensemble.members
        close(asked(application(of_file), sent), wanted)


def test_the_command_line_serves_a_file(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    app = _application(ServeFlags(folder=str(files["brief"]), defer=0.5), Limits())
    pixels = np.zeros((1, 1, 8, 8), int).tolist()
    with TestClient(app) as client:
        about = client.get("/metadata").json()
        answer = client.post("/predict", json={"pixels": pixels}).json()
        refused = client.post("/predict", json={"pixels": pixels, "members": True})
        assert client.get("/v2/models/brief").status_code == 200
    assert (about["method"], about["calibrated"], about["tells_members"]) == ("deep-ensemble", True, False)
    assert set(answer["predictions"][0]) >= {"label", "probs", "set", "defer"}
    assert about["coverage"] == pytest.approx(0.9)
    assert "set" in about["answers"]
    assert refused.status_code == 422
    assert "export it with --members" in refused.json()["error"]
    for words, said in {
        (str(files["brief"]), "--anytime"): "--anytime is for runs",
        (str(files["brief"]), "--network", "a.py:f"): "--network is for runs",
        ("none.onnx",): "none.onnx is not there",
    }.items():
        assert main(["serve", *words]) == 2
        assert said in capsys.readouterr().err


def test_files_that_cannot_be_served(files: dict[str, Path], tmp_path: Path, images: Any) -> None:
    covey.export(images.ensemble, tmp_path / "bare.onnx", torch.randn(2, 1, 8, 8))
    with pytest.raises(covey.CoveyError, match="exported without record="):
        ServedFile(tmp_path / "bare.onnx")
    content = files["brief"].read_bytes()
    (tmp_path / "cut.onnx").write_bytes(content[:-100])
    with pytest.raises(covey.CoveyError, match="damaged"):
        ServedFile(tmp_path / "cut.onnx")
    served = ServedFile(files["wages"])
    with pytest.raises(covey.CoveyError, match="do not belong together"):
        Model(ensemble=served, record=images.record)
