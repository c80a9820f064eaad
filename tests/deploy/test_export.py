"""Exported files answer as the ensemble does, say what they are, and need neither covey nor torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

import covey
from covey.calibration import Conformal, Intervals, Margin, Temperature
from covey.deploy import DeployedEnsemble, seals
from covey.deploy.joining import named
from covey.errors import MissingExtraError
from law_networks import NETWORKS, call
from test_laws import CASES, ensemble_of

SPREAD = [("batch-ensemble", "convnet"), ("hypernetwork", "mlp")]
GRID = [case for case in CASES if case not in SPREAD and case[0] != "mc-dropout"]


def assert_close(found: dict[str, np.ndarray], expected: dict[str, Tensor]) -> None:
    for key, array in found.items():
        wanted = expected[key].numpy()
        scale = max(np.abs(wanted).max(), 1)
        np.testing.assert_allclose(array, wanted, rtol=0, atol=1e-4 * scale)


def check(method: str, name: str, path: Path, **options: Any) -> None:
    ensemble = ensemble_of(method, name).eval()  # in float64; the file is in float32
    ensemble.run = "loop"
    covey.export(ensemble, path, NETWORKS[name].x(4), members=True, **options)
    for samples in (1, 3):
        x = NETWORKS[name].x(samples)
        arrays = [value.numpy() for value in (x.values() if isinstance(x, dict) else [x])]
        assert_close(DeployedEnsemble(path)(*arrays), named(call(ensemble.predict, x)))


@pytest.mark.parametrize(("method", "name"), SPREAD)
def test_onnx_answers_as_the_ensemble(method: str, name: str, tmp_path: Path) -> None:
    check(method, name, tmp_path / "a.onnx")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "name"), GRID)
def test_onnx_of_every_method_and_network(method: str, name: str, tmp_path: Path) -> None:
    check(method, name, tmp_path / "a.onnx", weights="made" if len(name) % 2 else "stored")


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> tuple[covey.Ensemble, Path, Tensor]:
    """A calibrated classifier with a record of its data, and its file."""
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    network = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 3))
    ensemble = covey.convert(network, covey.BatchEnsemble(members=4), example=x).eval()
    ensemble.temperature = covey.scores.Temperature("pooled", (1.7,))
    ensemble.conformal = covey.scores.Conformal("threshold", 0.1, 0.6)
    record = {
        "task": "classification", "classes": ["ash", "elm", "oak"], "shape": [4], "columns": [],
        "normalisation": None, "target_normalisation": None,
    }  # fmt: skip
    path = tmp_path_factory.mktemp("deployed") / "trees.onnx"
    written = covey.export(ensemble, path, x, record=record)
    assert written.outputs == ("probs", "entropy", "mutual_information", "sets")
    assert written.difference is not None
    assert written.difference < 1e-5
    assert "within" in str(written)
    return ensemble, path, x


def test_adaptive_sets(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4)
    ensemble = covey.convert(nn.Linear(4, 5), covey.DeepEnsemble(members=2), example=x).eval()
    ensemble.conformal = covey.scores.Conformal("aps", 0.1, 0.7)
    covey.export(ensemble, tmp_path / "a.onnx", x)
    found = DeployedEnsemble(tmp_path / "a.onnx")
    other = torch.randn(9, 4)
    assert torch.equal(torch.from_numpy(found(other.numpy())["sets"]), ensemble.predict(other).sets)
    equal = torch.zeros(3, 4)  # classes of equal probability come in their order, in both
    for member in ensemble.parameters():
        member.data.zero_()
    covey.export(ensemble, tmp_path / "b.onnx", equal)
    sets = torch.from_numpy(DeployedEnsemble(tmp_path / "b.onnx")(equal.numpy())["sets"])
    assert sets.tolist() == [[True, True, True, False, False]] * 3


def test_the_file_says_what_it_is(deployed: tuple[covey.Ensemble, Path, Tensor]) -> None:
    ensemble, path, _ = deployed
    about = DeployedEnsemble(path).about
    assert about["labels"] == ["ash", "elm", "oak"]
    assert about["task"] == "classification"
    assert about["members"] == 4
    assert about["inputs"] == {"x": {"shape": ["batch", 4], "dtype": "float32"}}
    assert about["versions"]["covey"] == covey.__version__
    assert about["calibration"]["temperature"]["values"] == [1.7]
    assert about["coverage"]["parameters"] == sum(p.numel() for p in ensemble.parameters())
    content = path.read_bytes()
    for secret in (b"/home", str(Path(__file__).parent).encode(), b"site-packages"):
        assert secret not in content, "no path of whoever wrote it"


STRANGER = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "covey", "onnx", "onnxscript"):
            raise ImportError("a stranger does not have " + name)
sys.meta_path.insert(0, Refuse())
import json
import math
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
about = json.loads(session.get_modelmeta().custom_metadata_map["covey"])
x = numpy.load(sys.argv[2])
answer = dict(zip(about["outputs"], session.run(list(about["outputs"]), {"x": x})))
labels = [about["labels"][i] for i in answer["probs"].argmax(-1)]
print(json.dumps({"labels": labels, **{name: array.tolist() for name, array in answer.items()}}))
"""


def test_a_stranger_with_onnxruntime_and_numpy(
    deployed: tuple[covey.Ensemble, Path, Tensor], tmp_path: Path
) -> None:
    ensemble, path, x = deployed
    np.save(tmp_path / "x.npy", x.numpy())
    done = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, path, tmp_path / "x.npy"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)
    expected = ensemble.predict(x)
    np.testing.assert_allclose(told["probs"], expected.probs.numpy(), atol=1e-5)
    np.testing.assert_allclose(told["mutual_information"], expected.mutual_information.numpy(), atol=1e-5)
    assert told["sets"] == expected.sets.tolist()
    assert told["labels"] == [("ash", "elm", "oak")[i] for i in expected.label]


def test_shared_weights_are_stored_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 32)
    network = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 3))
    size = 4 * sum(p.numel() for p in network.parameters())
    ensemble = covey.convert(network, covey.BatchEnsemble(members=4), example=x).eval()
    small = covey.export(ensemble, tmp_path / "small.onnx", x, weights="stored")
    assert small.bytes < 1.1 * size
    assert_close(DeployedEnsemble(small.path)(x[:1].numpy()), named(ensemble.predict(x[:1])))


def test_pt2(tmp_path: Path) -> None:
    ensemble = ensemble_of("multi-head", "mlp").float().eval()
    x = torch.randn(4, 6)
    covey.export(ensemble, tmp_path / "a.pt2", x)
    extra = {"covey.json": ""}
    program = torch.export.load(tmp_path / "a.pt2", extra_files=extra)
    assert json.loads(extra["covey.json"])["members"] == 3
    torch.testing.assert_close(program.module()(x[:1])["probs"], ensemble.predict(x[:1]).probs)


@pytest.mark.parametrize(
    ("task", "calibration"),
    [
        ("classification", Temperature("members", (0.5, 2.0))),
        ("classification", Conformal("aps", 0.1, 0.9)),
        ("gaussian", Intervals("normalised", 0.1, (2.0, 1.0))),
        ("regression", Intervals("absolute", 0.1, (2.0, 1.0, 0.5, 3.0))),
        ("quantiles(0.1, 0.3, 0.5, 0.9)", Margin(0.1, 0.5)),
    ],
)
def test_pt2_with_what_was_fitted(task: str, calibration: Any, tmp_path: Path) -> None:
    """A tensor of fitted numbers is made in the code; torch could not run what it had traced of it."""
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    ensemble = covey.convert(nn.Sequential(nn.Linear(8, 4)), covey.DeepEnsemble(members=2), example=x).eval()
    ensemble.task = task
    setattr(ensemble, "temperature" if isinstance(calibration, Temperature) else "conformal", calibration)
    covey.export(ensemble, tmp_path / "a.pt2", x, members=True)
    found = torch.export.load(tmp_path / "a.pt2").module()(x[:3])
    wanted = named(ensemble.predict(x[:3]))
    assert found.keys() == wanted.keys()
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name])


def test_a_difference_is_found_and_leaves_no_file(tmp_path: Path) -> None:
    ensemble = ensemble_of("multi-head", "convnet").eval()
    x = NETWORKS["convnet"].x(4)
    with pytest.raises(covey.CoveyError, match=r"was not kept: \w+ differs by .*; it begins at \w+"):
        covey.export(ensemble, tmp_path / "a.onnx", x, tolerance=1e-12)
    assert not list(tmp_path.iterdir())


def test_what_onnx_cannot_say(tmp_path: Path) -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.view_as_real(x).flatten(1))

    x = torch.randn(3, 4, dtype=torch.complex64)
    ensemble = covey.convert(Complex(), covey.DeepEnsemble(members=2), example=x).eval()
    with pytest.raises(covey.CoveyError, match="ONNX has no words for this network: .*complex.*to='pt2'"):
        covey.export(ensemble, tmp_path / "a.onnx", x)
    assert not list(tmp_path.iterdir())


def test_bad_input(
    deployed: tuple[covey.Ensemble, Path, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble, path, x = deployed
    with pytest.raises(covey.CoveyError, match=r"ends with neither .onnx nor .pt2"):
        covey.export(ensemble, tmp_path / "a.bin", x)
    with pytest.raises(covey.CoveyError, match="there is no folder"):
        covey.export(ensemble, tmp_path / "no" / "a.onnx", x)
    with pytest.raises(covey.CoveyError, match=r"has shape \(2, 5\); the file takes \(batch, 4\)"):
        DeployedEnsemble(path)(np.zeros((2, 5), np.float32))
    with pytest.raises(covey.CoveyError, match="takes 1 inputs; got 2"):
        DeployedEnsemble(path)(x, x)
    for options, said in {
        ("tolerance", math.nan): "tolerance is at least 0",
        ("int8_limit", -1): "int8_limit is at least 0",
        ("seed", "a"): "seed is a whole number",
        ("int8", torch.zeros(3, 4, dtype=torch.int64)): "hold int64 and the example float32 for 'x'",
        ("to", "pt2"): "a.onnx ends in .onnx, and to= says 'pt2'",
    }.items():
        with pytest.raises(covey.CoveyError, match=said):
            covey.export(ensemble, tmp_path / "a.onnx", x, **dict([options]))  # type: ignore[arg-type]
    with pytest.raises(covey.CoveyError, match="it is a folder"):
        covey.export(ensemble, tmp_path, x, to="onnx")
    with pytest.raises(covey.CoveyError, match="export takes an ensemble, .* got a Linear"):
        covey.export(nn.Linear(4, 3), tmp_path / "a.onnx", x)  # type: ignore[arg-type]
    # No sample can be compared: before, this was taken for random members.
    with pytest.raises(covey.CoveyError, match="answer to the example is NaN"):
        covey.export(ensemble, tmp_path / "a.onnx", x * math.nan)
    assert not list(tmp_path.iterdir())
    damaged = tmp_path / "damaged.onnx"
    content = path.read_bytes()
    damaged.write_bytes(content[: len(content) // 2])
    with pytest.raises(covey.CoveyError, match="no ONNX file that ONNX Runtime can run, or is damaged"):
        DeployedEnsemble(damaged)
    with pytest.raises(covey.CoveyError, match="missing, or no ordinary file"):
        DeployedEnsemble(tmp_path)
    damaged.write_bytes(content.replace(b'"format": 1', b'"format": 7'))
    with pytest.raises(covey.CoveyError, match="has format 7"):
        DeployedEnsemble(damaged)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'covey\[export\]'"):
        covey.export(ensemble, tmp_path / "a.onnx", x)


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (
            {"inputs": {"x": {"shape": ["batch", 5], "dtype": "float32"}}},
            "contradicts itself: it takes x of shape",
        ),
        ({"inputs": {"y": {"shape": ["batch", 4], "dtype": "float32"}}}, "its metadata say y of shape"),
        ({"inputs": {"x": {"shape": 4, "dtype": "float32"}}}, "inputs.x.shape"),
        ({"outputs": {"probs": "", "entropy": ""}}, "its metadata say probs, entropy"),
        ({"task": "regression"}, "it answers probs"),
        ({"labels": ["a", "b", "c", "d"]}, "has 3 classes, and its metadata name 4"),
        ({"members": 0}, "members should be"),
        (
            {"calibration": {"conformal": {"calibration": "conformal", "alpha": "none"}}},
            "calibration.conformal",
        ),
    ],
)
def test_metadata_that_lie(
    deployed: tuple[covey.Ensemble, Path, Tensor], tmp_path: Path, lie: dict[str, Any], said: str
) -> None:
    model = onnx.load(str(deployed[1]))
    (entry,) = (each for each in model.metadata_props if each.key == "covey")
    entry.value = json.dumps({**json.loads(entry.value), **lie})
    onnx.save(model, str(tmp_path / "lie.onnx"))
    with pytest.raises(covey.CoveyError, match=said):
        DeployedEnsemble(tmp_path / "lie.onnx")


def test_a_file_that_is_not_coveys(deployed: tuple[covey.Ensemble, Path, Tensor], tmp_path: Path) -> None:
    model = onnx.load(str(deployed[1]))
    del model.metadata_props[:]
    onnx.save(model, str(tmp_path / "other.onnx"))
    with pytest.raises(covey.CoveyError, match="was not written by covey"):
        DeployedEnsemble(tmp_path / "other.onnx")


def test_metadata_that_are_no_text(deployed: tuple[covey.Ensemble, Path, Tensor], tmp_path: Path) -> None:
    content = deployed[1].read_bytes()
    (tmp_path / "damaged.onnx").write_bytes(content.replace(b'"format"', b'"form\xbat"'))
    with pytest.raises(covey.CoveyError, match="is damaged: its metadata are no text"):
        DeployedEnsemble(tmp_path / "damaged.onnx")


def test_a_weight_that_changed(deployed: tuple[covey.Ensemble, Path, Tensor], tmp_path: Path) -> None:
    content = bytearray(deployed[1].read_bytes())
    model = onnx.load(deployed[1])
    weights = max(model.graph.initializer, key=lambda each: len(each.raw_data)).raw_data
    content[bytes(content).find(weights) + 2] ^= 4  # one bit, in the fraction of a float
    (tmp_path / "damaged.onnx").write_bytes(content)
    with pytest.raises(covey.CoveyError, match="is damaged, or was changed after it was written"):
        DeployedEnsemble(tmp_path / "damaged.onnx")


def test_a_file_without_a_seal_is_an_older_one(
    deployed: tuple[covey.Ensemble, Path, Tensor], tmp_path: Path
) -> None:
    model = onnx.load(deployed[1])
    (entry,) = (entry for entry in model.metadata_props if entry.key == seals.KEY)
    assert entry.value != seals.EMPTY
    model.metadata_props.remove(entry)
    onnx.save(model, tmp_path / "older.onnx")
    assert DeployedEnsemble(tmp_path / "older.onnx").about == DeployedEnsemble(deployed[1]).about


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"shape": [5]}, r"shape \(5,\), and the example's have \(4,\)"),
        ({"classes": list("abcd")}, "names 4 classes"),
    ],
)
def test_the_record_of_other_data(
    deployed: tuple[covey.Ensemble, Path, Tensor], other: dict[str, Any], said: str, tmp_path: Path
) -> None:
    ensemble, path, x = deployed
    record = {**DeployedEnsemble(path).about["data"], **other}
    with pytest.raises(covey.CoveyError, match=said):
        covey.export(ensemble, tmp_path / "a.onnx", x, record=record)
    assert not (tmp_path / "a.onnx").exists()


def test_the_file_says_how_inputs_are_prepared(tmp_path: Path) -> None:
    """Rows and images that are prepared as the metadata say, by NumPy, are the data's own."""
    for name, network in (
        ("iris", nn.Linear(4, 3)),
        ("digits", nn.Sequential(nn.Flatten(), nn.Linear(64, 10))),
    ):
        data = covey.data.load(name)
        x = data.prepare(data.test.inputs[:4])
        ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example=x).eval()
        covey.export(ensemble, tmp_path / f"{name}.onnx", x, record=data.record)
    about = DeployedEnsemble(tmp_path / "iris.onnx").about
    assert "a number as (value - mean) / std" in about["preparation"]
    about = DeployedEnsemble(tmp_path / "digits.onnx").about
    assert "8-bit values / 255, then (x - mean) / std" in about["preparation"]
    scale = about["data"]["normalisation"]
    by_hand = (data.test.inputs[:4].numpy() / 255 - scale["mean"]) / scale["std"]
    np.testing.assert_allclose(by_hand, x.numpy(), atol=1e-5)


class Recurrent(nn.Module):
    """Answers from the last state of a layer that reads a sequence."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


@pytest.mark.slow
@pytest.mark.parametrize("layer", [nn.RNN, nn.LSTM])
def test_recurrent_layers(layer: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5)
    network = Recurrent(layer(5, 8, batch_first=True))
    ensemble = covey.convert(network, covey.BatchEnsemble(members=2), example=x).eval()
    written = covey.export(ensemble, tmp_path / "a.onnx", x)
    found = DeployedEnsemble(tmp_path / "a.onnx")
    assert_close(found(x[:2].numpy()), named(ensemble.predict(x[:2])))
    longer = torch.randn(3, 7, 5)
    if written.lengths == "any":  # torch's exporter unrolls an RNN, and has a word for an LSTM
        assert layer is nn.LSTM
        assert_close(found(longer.numpy()), named(ensemble.predict(longer)))
        return
    with pytest.raises(covey.CoveyError, match=r"has shape \(3, 7, 5\); the file takes \(batch, 4, 5\)"):
        found(longer.numpy())


def test_a_bfloat16_ensemble_is_written_in_float32_and_says_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 4)
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example=x).to(torch.bfloat16)
    written = covey.export(ensemble, tmp_path / "a.onnx", x.bfloat16())
    assert "answers in float32, where the ensemble itself is bfloat16" in str(written)
    found = DeployedEnsemble(tmp_path / "a.onnx")(x.bfloat16().float().numpy())
    assert_close(found, named(ensemble.float().predict(x.bfloat16().float())))


class Casts(nn.Module):
    """Names a precision in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.head = nn.Linear(4, 8).bfloat16(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.low(x.bfloat16()).float())


def test_a_precision_that_is_named_in_the_network_is_refused(tmp_path: Path) -> None:
    x = torch.randn(4, 4)
    ensemble = covey.convert(Casts(), covey.DeepEnsemble(members=2), example=x)
    with pytest.raises(
        covey.CoveyError, match="in float32 the network fails: .*name a precision in its forward"
    ):
        covey.export(ensemble, tmp_path / "a.onnx", x)
    assert not list(tmp_path.iterdir())


class OwnMean(nn.Module):
    """A network with operations, and arguments, that are called as a regression's outputs are."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(2, 4, 3)
        self.head = nn.Linear(4, 2)

    def forward(self, mean: Tensor, std: Tensor) -> Tensor:
        features = self.convolution(mean)
        return self.head(features.mean(2) + std[:, None] * features.std(2))


@pytest.mark.parametrize("task", ["regression", "gaussian"])
def test_names_of_outputs_inside_the_network(task: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, scale = torch.randn(4, 2, 8), torch.rand(4)
    ensemble = covey.convert(OwnMean(), covey.BatchEnsemble(members=2), example=(x, scale), task=task).eval()
    covey.export(ensemble, tmp_path / "a.onnx", (x, scale), members=True)
    deployed = DeployedEnsemble(tmp_path / "a.onnx")
    assert list(deployed.about["inputs"]) == ["input_mean", "input_std"]
    with torch.no_grad():
        assert_close(deployed(x.numpy(), scale.numpy()), named(ensemble.predict(x, scale)))
