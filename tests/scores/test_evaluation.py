from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import covey
from covey.data import Data, Split
from covey.data.container import Normalisation
from covey.errors import DataError, EvaluationError
from covey.scores import Evaluation, Record, Temperature, evaluate, score


def network(inputs: int = 4, outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))


def ensemble(members: int = 3, inputs: int = 4, outputs: int = 3, **options: object) -> covey.Ensemble:
    net = network(inputs, outputs)
    method = covey.DeepEnsemble(members=members)
    return covey.convert(net, method, example=torch.zeros(2, inputs), **options)  # type: ignore[call-overload]


def container(
    test: tuple[Tensor, Tensor], validation: tuple[Tensor, Tensor] | None = None, **options: object
) -> Data:
    x, y = test
    nothing = Split(x[:0], y[:0])
    held_back = nothing if validation is None else Split(*validation)
    about: dict = {
        "task": "classification",
        "classes": ("a", "b", "c"),
        "shape": tuple(x.shape[1:]),
        **options,
    }
    return Data(train=nothing, validation=held_back, test=Split(x, y), **about)


def test_every_score_comes_back_without_the_network(tmp_path: Path) -> None:
    ens, x, y = ensemble(), torch.randn(60, 4), torch.randint(3, (60,))
    found = evaluate(
        ens, (x, y), ood={"far": torch.randn(30, 4) * 9}, validation=(x, y), batch_size=17, folder=tmp_path
    )
    again = score(Record.load(tmp_path / "outputs.npz"))
    assert again.scores == found.scores
    assert again.curves == found.curves
    stored = Evaluation.load(tmp_path)
    assert stored.scores == json.loads(json.dumps(found.scores))
    assert stored.calibration == found.calibration
    assert stored.notes == found.notes
    assert Evaluation.load(tmp_path, outputs=False).record is None
    # batches of 17 and of 60 may round differently in the last digit
    torch.testing.assert_close(found.record.outputs, ens.predict(x).logits, rtol=0, atol=1e-6)


def test_outputs_are_the_members_own_in_any_batch_size() -> None:
    ens, x, y = ensemble(), torch.randn(50, 4), torch.randint(3, (50,))
    one, many = (evaluate(ens, (x, y), batch_size=size).record.outputs for size in (1, 50))
    assert torch.allclose(one, many, atol=1e-6)
    for k in range(3):
        assert torch.allclose(many[k], ens.member(k).eval()(x), atol=1e-6)


def test_half_precision_and_its_end(tmp_path: Path) -> None:
    record = Record(torch.randn(2, 30, 3), torch.randint(3, (30,)))
    record.save(tmp_path / "full.npz")
    record.save(tmp_path / "half.npz", half=True)
    assert (tmp_path / "half.npz").stat().st_size < (tmp_path / "full.npz").stat().st_size
    assert torch.allclose(Record.load(tmp_path / "half.npz").outputs, record.outputs, atol=2e-3)
    with pytest.raises(EvaluationError, match=r"reach 1e.05, float16 ends at 65504"):
        Record(1e5 * torch.ones(1, 1, 2), torch.tensor([0])).save(tmp_path / "x.npz", half=True)


def test_data_of_raw_images_is_prepared_corrupted_and_shown() -> None:
    pictures = torch.randint(0, 256, (40, 1, 8, 8), dtype=torch.uint8)
    y = torch.randint(3, (40,))
    data = container(
        (pictures, y),
        (pictures[:20], y[:20]),
        ood={"noise": pictures[:5]},
        normalisation=Normalisation(mean=(0.0,), std=(1.0,)),
    )
    net = network(64)
    ens = covey.convert(net, covey.DeepEnsemble(members=2), example=torch.zeros(2, 1, 8, 8))
    found = evaluate(ens, data, ood={"more": pictures[:3]}, corruptions=16)
    assert torch.allclose(found.record.outputs, ens.predict(pictures / 255).logits, atol=1e-5)
    assert len(found.record.corrupted) == 75
    assert found.scores["robustness"]["samples"] == 16
    assert set(found.scores["ood"]["sets"]) == {"noise", "more"}
    assert found.about["classes"] == ["a", "b", "c"]
    kinds = [e["kind"] for e in found.examples]
    assert kinds[:16] == ["most certain"] * 8 + ["least certain"] * 8
    assert kinds[16:24] == ["confidently wrong"] * 8
    assert kinds[24:] == ["out of distribution"] * (5 + 3)
    entropies = [e["entropy"] for e in found.examples[:16]]
    assert entropies[:8] == sorted(entropies[:8])
    assert entropies[8] == pytest.approx(float(ens.predict(pictures / 255).entropy.max()), abs=1e-5)
    assert all(e["picture"].startswith("data:image/png;base64,") for e in found.examples)


@pytest.mark.parametrize("own", [Temperature("pooled", (2.0,)), Temperature("members", (0.5, 2.0, 3.0))])
def test_an_ensemble_keeps_its_mode_and_calibration(own: Temperature) -> None:
    ens, x, y = ensemble(), torch.randn(40, 4), torch.randint(3, (40,))
    raw = ens.predict(x).logits
    ens.temperature = own
    ens.train()
    found = evaluate(ens, (x, y), validation=(x, y))
    assert ens.training
    assert ens.temperature == own
    assert torch.allclose(found.record.outputs, raw), "what is stored are the members' own logits"
    assert found.scores["calibration"]["stored"]["nll"] == pytest.approx(
        float(nn.functional.nll_loss(ens.predict(x).log_probs, y)), abs=1e-5
    )
    ens.temperature = found.calibration["pooled"]
    assert found.scores["calibration"]["pooled"]["nll"] == pytest.approx(
        float(nn.functional.nll_loss(ens.predict(x).log_probs, y)), abs=1e-5
    )


def test_a_plain_network_is_an_ensemble_of_one() -> None:
    net, x, y = network(), torch.randn(20, 4), torch.randint(3, (20,))
    found = evaluate(net, (x, y))
    assert torch.allclose(found.record.outputs[0], net(x))
    assert found.scores["diversity"]["disagreement"] is None
    assert any("One member" in note for note in found.notes)
    assert found.scores["ensemble"] == found.scores["members"][0]


def test_what_was_called_disagreement_is_read_under_its_new_name() -> None:
    found = score(Record(torch.randn(3, 40, 3), torch.randint(3, (40,))))
    stored = found.to_dict()
    now = stored["scores"]["diversity"]
    old = {name: value for name, value in now.items() if "disagreement" not in name}
    old |= {"disagreement": 0.7, "disagreement_matrix": [[0.0] * 3] * 3}
    read = Evaluation.from_dict({**stored, "scores": {**stored["scores"], "diversity": old}})
    assert read.scores["diversity"]["normalised_disagreement"] == 0.7
    assert "disagreement" not in read.scores["diversity"]
    assert Evaluation.from_dict(stored).scores == found.scores


def test_regression_in_the_targets_own_unit() -> None:
    net = network(4, 2)
    ens = covey.convert(net, covey.DeepEnsemble(members=2), example=torch.zeros(2, 4))
    ens.task = "gaussian"
    x, y = torch.randn(30, 4), torch.randn(30)
    unit = Normalisation(mean=(5.0,), std=(10.0,))
    data = container((x, y), task="regression", classes=(), target_normalisation=unit)
    found = evaluate(ens, data)
    prediction = ens.predict(x)
    error = 10 * (prediction.mean[:, 0] - y)
    assert found.scores["ensemble"]["rmse"] == pytest.approx(float(error.square().mean().sqrt()), rel=1e-5)
    density = torch.distributions.Normal(10 * prediction.mean[:, 0] + 5, 10 * prediction.std[:, 0])
    assert found.scores["ensemble"]["gaussian_nll"] == pytest.approx(
        -float(density.log_prob(10 * y + 5).mean()), rel=1e-4
    )
    assert found.curves["intervals"]["expected"][-1] == 0.95


def test_regression_by_points() -> None:
    net, x, y = network(4, 1), torch.randn(30, 4), torch.randn(30)
    found = evaluate(net, (x, y), task="regression")
    assert found.scores["ensemble"]["gaussian_nll"] is None
    assert any("not defined" in note for note in found.notes)
    assert found.headline["rmse"] == pytest.approx(float((net(x).detach()[:, 0] - y).square().mean().sqrt()))


class Letters(nn.Module):
    """Logits of the next symbol at every position, (B, T, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(5, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x))


def test_language_in_bits_per_character() -> None:
    text = torch.randint(5, (6, 9), dtype=torch.uint8)
    data = container((text, text.roll(-1, 1)), task="language", classes=())
    ens = covey.convert(Letters(), covey.DeepEnsemble(members=2), example=text.long())
    found = evaluate(ens, data, batch_size=4)
    probs = torch.stack([ens.member(k)(text.long()) for k in range(2)]).softmax(-1).mean(0)
    right = probs.gather(-1, text.roll(-1, 1).long()[..., None])
    assert found.headline["bits_per_character"] == pytest.approx(
        -float(right.detach().log2().mean()), rel=1e-5
    )
    assert found.headline["perplexity"] == pytest.approx(
        math.exp(-float(right.detach().log().mean())), rel=1e-5
    )
    assert found.about["samples"] == 54


def test_nan_names_the_member() -> None:
    outputs = torch.zeros(4, 10, 3)
    outputs[2, 5, 1] = math.nan
    with pytest.raises(EvaluationError, match=r"member 2 are not finite .*member 2, sample 5"):
        Record(outputs, torch.zeros(10, dtype=torch.long))
    with pytest.raises(EvaluationError, match="OOD set 'far': outputs of member 1 are not finite"):
        Record(
            torch.zeros(2, 3, 2),
            torch.zeros(3, dtype=torch.long),
            ood={"far": torch.tensor([[[0.0, 0]], [[0, math.inf]]])},
        )


@pytest.mark.parametrize(
    ("outputs", "labels", "words"),
    [
        (torch.zeros(2, 5, 1), torch.zeros(5).long(), "one class only"),
        (
            torch.zeros(2, 5, 3),
            torch.tensor([0, 1, 3, 0, 0]),
            "expected 0 to 2 for 3 classes, got 3 at sample 2",
        ),
        (torch.zeros(2, 5, 3), torch.tensor([0, -1, 0, 0, 0]), "got -1 at sample 1"),
        (torch.zeros(2, 5, 3), torch.zeros(4).long(), r"one label per sample, shape \(5,\), got \(4,\)"),
        (torch.zeros(2, 5, 3), torch.zeros(5), "labels of an integer type, got torch.float32"),
        (torch.zeros(5, 3), torch.zeros(5).long(), r"\(members, samples, classes\), got \(5, 3\)"),
        (torch.zeros(2, 0, 3), torch.zeros(0).long(), "the test set is empty"),
    ],
)
def test_bad_outputs_and_labels(outputs: Tensor, labels: Tensor, words: str) -> None:
    with pytest.raises(EvaluationError, match=words):
        Record(outputs, labels)


def test_bad_sets() -> None:
    ens, x, y = ensemble(), torch.randn(20, 4), torch.randint(3, (20,))
    with pytest.raises(EvaluationError, match="OOD set 'none' is empty"):
        evaluate(ens, (x, y), ood={"none": x[:0]})
    with pytest.raises(DataError, match="20 inputs but 3 targets"):
        evaluate(ens, (x, y[:3]))
    with pytest.raises(DataError, match="there are no samples"):
        evaluate(ens, (x[:0], y[:0]))
    with pytest.raises(EvaluationError, match="batch_size: expected 1 or more"):
        evaluate(ens, (x, y), batch_size=0)
    zeros, labels = torch.zeros(2, 4, 3), torch.zeros(4).long()
    with pytest.raises(EvaluationError, match="2 members and 4 classes, but the test set has 2 and 3"):
        Record(zeros, labels, ood={"far": torch.zeros(2, 4, 4)})
    with pytest.raises(EvaluationError, match="5 samples, more than the test set's 4"):
        Record(zeros, labels, corrupted={"fog/1": torch.zeros(2, 5, 3)})
    with pytest.raises(EvaluationError, match=r"task: expected one of .*, got 'ranking'"):
        Record(zeros, labels, task="ranking")


def test_bad_regression() -> None:
    means = torch.zeros(2, 4, 1)
    with pytest.raises(EvaluationError, match=r"targets of shape \(4, 1\), got \(4,\)"):
        Record(means, torch.zeros(4), task="regression")
    with pytest.raises(EvaluationError, match="targets are not finite"):
        Record(means, torch.full((4, 1), math.nan), task="regression")
    with pytest.raises(EvaluationError, match="must be positive, member 0"):
        Record(means, torch.zeros(4, 1), task="regression", variance=means)


def test_few_samples_and_one_label_are_noted() -> None:
    found = score(Record(torch.randn(2, 6, 3), torch.zeros(6).long()))
    assert found.scores["ensemble"]["ece"] is None
    assert any("6 samples are fewer than the 15 bins" in note for note in found.notes)
    assert any("All test labels are class 0" in note for note in found.notes)


def test_files_of_others(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", outputs=np.array([object()], dtype=object), about=np.array("{}"))
    with pytest.raises(EvaluationError, match=r"not a whole file of members' outputs .*type object"):
        Record.load(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", outputs=np.zeros(3), about=np.array('{"format": 99}'))
    with pytest.raises(EvaluationError, match="format 99, this covey reads format 1"):
        Record.load(tmp_path / "y.npz")
    with pytest.raises(EvaluationError, match=r"no readable evaluation.json"):
        Evaluation.load(tmp_path)


def test_importing_is_light() -> None:
    code = (
        "import sys; before = set(sys.modules); import covey.scores, covey.report\n"
        "heavy = {'matplotlib', 'sklearn', 'torchmetrics', 'scipy', 'PIL'} & (set(sys.modules) - before)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("task", ["classification", "language"])
def test_labels_that_do_not_count(task: str) -> None:
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 5))
    ensemble = covey.convert(network, covey.DeepEnsemble(members=2), example=torch.zeros(2, 3, 4))
    x, y = torch.randn(40, 3, 4, generator=generator), torch.randint(5, (40, 3), generator=generator)
    counts = torch.rand(40, 3, generator=generator) > 0.3
    marked = y.masked_fill(~counts, -100)
    found = evaluate(ensemble, (x, marked), validation=(x, marked), task=task, ignore_index=-100)  # type: ignore[arg-type]
    expected = evaluate(ensemble, (x[counts], y[counts]), validation=(x[counts], y[counts]))
    assert found.about["samples"] == int(counts.sum())
    for name, value in expected.scores["ensemble"].items():
        assert found.scores["ensemble"][name] == pytest.approx(value), name
    assert found.calibration["pooled"] == expected.calibration["pooled"]
    with pytest.raises(EvaluationError, match="labels out of range"):
        evaluate(ensemble, (x, marked), task=task)  # type: ignore[arg-type]
    with pytest.raises(EvaluationError, match="nothing to score: all labels are -100"):
        evaluate(ensemble, (x, torch.full_like(y, -100)), ignore_index=-100)
    with pytest.raises(EvaluationError, match="ignore_index names a class, and the data are for regression"):
        evaluate(network, (x[:, 0], x[:, 0]), task="regression", ignore_index=-100)


def test_inputs_of_labels_that_do_not_count_are_not_shown() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    images, labels = torch.rand(30, 1, 8, 8), torch.arange(30) % 3
    labels[:10] = -100
    found = evaluate(network, (images, labels), ignore_index=-100)
    assert found.about["samples"] == 20
    assert not any("image" in each for each in found.examples)
    with pytest.raises(EvaluationError, match="corruptions are scored on all test images"):
        evaluate(network, (images, labels), ignore_index=-100, corruptions=2)
