"""What may be evaluated, on what: every kind of data gives the same scores, every kind of mistake its own words."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import covey
from covey.data import Data, Split
from covey.errors import CoveyError, DataError, EvaluationError
from covey.scores import evaluate
from covey.scores.held_out import held_out

_SEEDED = torch.Generator().manual_seed(0)
X, Y = torch.randn(30, 4, generator=_SEEDED), torch.randint(3, (30,), generator=_SEEDED)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


class Arrays(Dataset):
    """What many people write: float64 arrays and Python integers, one sample at a time."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return X[index].double().numpy(), int(Y[index])


class Listed(Dataset):
    """A data set of these samples, whatever they are."""

    def __init__(self, *samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        while True:
            yield X[0], 0


class Flow(IterableDataset):
    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


def hugging_face() -> Any:
    if importlib.util.find_spec("datasets") is None:
        return (X, Y)
    datasets = importlib.import_module("datasets")
    return datasets.Dataset.from_dict({"input": X.numpy(), "label": Y.numpy()})


def container() -> Data:
    nothing = Split(X[:0], Y[:0])
    return Data(
        train=nothing,
        validation=nothing,
        test=Split(X, Y),
        task="classification",
        classes=("a", "b", "c"),
        shape=(4,),
    )


KINDS = {
    "covey's data": container(),
    "a split": Split(X, Y),
    "tensors": (X, Y),
    "a list of tensors": [X, Y],
    "arrays": (X.numpy(), Y.numpy()),
    "arrays of float64 and int32": (X.double().numpy(), Y.numpy().astype(np.int32)),
    "read-only arrays": (np.broadcast_to(X.numpy(), X.shape), Y.numpy()),
    "mirrored arrays": (X.flip(1).numpy()[:, ::-1], Y.numpy()),
    "a data set": TensorDataset(X, Y),
    "a data set of arrays": Arrays(),
    "a loader": DataLoader(TensorDataset(X, Y), batch_size=30),
    "a streamed data set": Flow(),
    "columns": {"input": X, "label": Y},
    "parts": {"test": (X, Y), "train": TensorDataset(X, Y)},
    "a Hugging Face data set": hugging_face(),
    "a loader of arrays": DataLoader(Arrays(), batch_size=30, collate_fn=lambda rows: [X.numpy(), Y.numpy()]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_data_gives_the_same_scores(kind: str) -> None:
    net = network()
    expected = evaluate(net, (X, Y), ood={"far": 9 * X}, validation=(X, Y))
    found = evaluate(
        net,
        KINDS[kind],
        ood={"far": 9 * X},
        validation=KINDS[kind] if kind not in ("covey's data", "parts") else (X, Y),
    )
    assert found.scores == expected.scores
    assert torch.equal(found.record.outputs, expected.record.outputs)  # type: ignore[union-attr]


def test_a_shuffling_loader_keeps_inputs_and_targets_together() -> None:
    net = network()
    shuffled = DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True)
    accuracy = evaluate(net, (X, Y)).headline["accuracy"]
    assert evaluate(net, shuffled).headline["accuracy"] == pytest.approx(accuracy)


@pytest.mark.parametrize(
    "ood",
    [X, X.numpy(), TensorDataset(X), TensorDataset(X, Y), DataLoader(TensorDataset(X, Y), 4), Split(X, Y)],
)
def test_targets_of_out_of_distribution_sets_are_left_aside(ood: Any) -> None:
    found = held_out((X, Y), ood={"far": ood})
    assert torch.equal(torch.cat([inputs for inputs, _ in found.batches(found.ood["far"], 8)]), X)


@pytest.mark.parametrize(
    "data", [(X, Y), TensorDataset(X, Y), DataLoader(TensorDataset(X, Y), 4), container()]
)
def test_limit_takes_the_first_samples_of_each_set(data: Any) -> None:
    found = held_out(data, ood={"far": X}, validation=(X, Y), limit=5)
    assert found.validation is not None
    for part in (found.test, found.validation, found.ood["far"]):
        inputs, targets = zip(*found.batches(part, 3), strict=True)
        assert torch.equal(torch.cat(inputs), X[:5])
        assert len(torch.cat(targets)) == 5


def test_an_endless_loader_ends_at_the_limit() -> None:
    for endless in (DataLoader(Endless(), batch_size=4), Endless()):
        found = held_out(endless, limit=6)
        assert [len(targets) for _, targets in found.batches(found.test, 4)] == [4, 2]


class Nested(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": x}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (X, r"expected a pair .*got Tensor"),
        ((X, Y, Y), r"expected a pair .*got tuple"),
        ({"x": X, "answer": Y}, r"the label; there are 'x', 'answer'"),
        ({"train": (X, Y)}, "the set is empty"),
        (Listed({"x": X[0], "answer": 1}), "the label; there are 'x', 'answer'"),
        (Listed((X[0], 1), (X[0], 1, 2)), r"cannot become one batch|expected a pair"),
        (Listed((X[0], 1), ("a.png", 1)), "cannot become one batch|expected numbers"),
        (Listed((X[0], 1), (X[0, :3], 1)), "cannot become one batch.*collate="),
        (Listed(), "no samples"),
        ((X[:0], Y[:0]), "there are no samples"),
        ((X, Y[:3]), "30 inputs but 3 targets"),
        ((X, Y[0]), "a single number"),
        ((np.array(["a", "b"]), Y[:2]), "words, such as 'a'"),
        ((X, np.array(["a", "b", "c"])[Y.numpy()]), r"words, such as .*Name the classes"),
        ((X, Y.float()), "labels of an integer type, got torch.float32"),
    ],
)
def test_other_data_are_refused(data: Any, words: str) -> None:
    with pytest.raises(CoveyError, match=words):
        evaluate(network(), data)


def test_inputs_of_several_tensors() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.inner(torch.cat((left, right), 1))

    net = Two()
    expected = evaluate(net.inner, (X, Y), ood={"far": 9 * X}).scores
    columns = {"left": X[:, :1], "right": X[:, 1:]}
    far = {"left": 9 * X[:, :1], "right": 9 * X[:, 1:]}
    ensemble = covey.convert(net, covey.DeepEnsemble(members=2), example=columns)
    for data in (({**columns, "labels": Y}), (columns, Y), ((X[:, :1], X[:, 1:]), Y)):
        assert evaluate(net, data, ood={"far": far}).scores == expected
        assert evaluate(ensemble, data).about["members"] == 2


def test_bad_options() -> None:
    with pytest.raises(EvaluationError, match="ood: expected a dict of inputs .* got Tensor"):
        evaluate(network(), (X, Y), ood=X)  # type: ignore[arg-type]
    with pytest.raises(EvaluationError, match="limit: expected 1 sample or more, got 0"):
        evaluate(network(), (X, Y), limit=0)
    with pytest.raises(EvaluationError, match=r"task: expected one of .*, got 'ranking'"):
        evaluate(network(), (X, Y), task="ranking")  # type: ignore[arg-type]
    with pytest.raises(EvaluationError, match=r"targets of shape \(30, 3\), got \(30,\)"):
        evaluate(network(), (X, Y), task="regression")


def test_other_models_are_refused() -> None:
    with pytest.raises(EvaluationError, match=r"expected an ensemble or a network .*got function"):
        evaluate(lambda x: x, (X, Y))  # type: ignore[arg-type]
    with pytest.raises(EvaluationError, match=r"answers with dict, .*convert it with output="):
        evaluate(Nested(), (X, Y))
    ensemble = covey.convert(network(), covey.DeepEnsemble(members=2), example=X[:2])
    with pytest.raises(EvaluationError, match=r"for regression, but the ensemble's task is 'classification'"):
        evaluate(ensemble, (X, Y), task="regression")


class Predicting(nn.Linear):
    """A network with a method `predict` of its own, which is no ensemble's."""

    def predict(self, x: Tensor) -> str:
        return "cat"


def test_a_network_with_its_own_predict_is_a_plain_network() -> None:
    net = Predicting(4, 3)
    found = evaluate(net, (X, Y))
    assert torch.equal(found.record.outputs[0], net(X))  # type: ignore[union-attr]


def test_a_wrapped_ensemble_is_still_an_ensemble() -> None:
    ensemble = covey.convert(network(), covey.DeepEnsemble(members=3), example=X[:2])
    for wrapped in (torch.compile(ensemble, backend="eager"), nn.DataParallel(ensemble)):
        assert evaluate(wrapped, (X, Y)).about["members"] == 3


@pytest.mark.parametrize("frozen", [True, False])
def test_evaluating_leaves_every_layer_in_its_mode(frozen: bool) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)).train()
    if frozen:
        net[1].eval()  # as one does with the norms of a pretrained body
    before = net[1].running_mean.clone()
    evaluate(net, (X, Y))
    assert (net.training, net[1].training, net[2].training) == (True, not frozen, True)
    assert torch.equal(net[1].running_mean, before)
    with pytest.raises(DataError, match="the network does not take the data's inputs"):
        evaluate(net, (X[:, :3], Y))
    assert (net.training, net[1].training) == (True, not frozen), (
        "an error leaves the modes as they were, too"
    )
