"""fit takes data of every usual kind; the same samples in the same order train to the same weights."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from small import mlp
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import covey
from covey.data import adapt
from covey.errors import DataError, OptionError
from covey.train import Machine, Recipe

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0.5).long()
QUIET = Machine(accelerator="cpu", progress=False)
RECIPE = Recipe(epochs=2, batch=16, shuffle=False, run="loop")


class Pairs(Dataset):
    """Samples one at a time, counted."""

    def __init__(self, inputs: Tensor = X, targets: Tensor = Y) -> None:
        self.inputs, self.targets, self.read = inputs, targets, 0

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        self.read += 1
        return self.inputs[index].double().numpy(), int(self.targets[index])


class Flow(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X, Y, strict=True))


class Named(nn.Module):
    """Takes two inputs by keyword."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 8), nn.Linear(3, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(torch.relu(self.first(left) + self.second(right)))}


def hugging_face() -> Any:
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict(
        {"left": X[:, :3].numpy(), "right": X[:, 3:].numpy(), "label": Y.numpy()}
    )


def trained(
    data: Any, network: nn.Module | None = None, recipe: Recipe = RECIPE, **options: Any
) -> covey.History:
    return covey.fit(
        network or mlp(), data, recipe, method=covey.BatchEnsemble(members=2), machine=QUIET, **options
    )


def same_weights(one: covey.History, other: covey.History) -> None:
    theirs = other.ensemble.state_dict()
    for name, tensor in one.ensemble.state_dict().items():
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=0)


KINDS = {
    "arrays": lambda: (X.double().numpy(), Y.numpy()),
    "lists": lambda: (X.tolist(), Y.tolist()),
    "tensor dataset": lambda: TensorDataset(X, Y),
    "dataset": Pairs,
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=16),
    "iterable": Flow,
    "loader of an iterable": lambda: DataLoader(Flow(), batch_size=16),
    "parts": lambda: {"train": Pairs()},
}


@pytest.fixture(scope="module")
def reference() -> covey.History:
    return trained(adapt((X, Y), validation=0))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_trains_to_the_same_weights(kind: str, reference: covey.History) -> None:
    steps = 3 if "iterable" in kind else None
    found = trained(adapt(KINDS[kind](), validation=0, steps_per_epoch=steps))
    same_weights(found, reference)


def test_columns_go_to_the_network_by_keyword() -> None:
    batch = {"left": X[:, :3], "right": X[:, 3:], "labels": Y}
    expected = trained(adapt(batch, validation=0), Named())
    loader = DataLoader(
        [{name: column[i] for name, column in batch.items()} for i in range(40)], batch_size=16
    )
    same_weights(trained(loader, Named()), expected)
    same_weights(trained(adapt(hugging_face(), validation=0), Named()), expected)
    pair = ({"left": X[:, :3], "right": X[:, 3:]}, Y)
    same_weights(trained(adapt(pair, validation=0), Named()), expected)
    same_weights(trained(adapt(((X[:, :3], X[:, 3:]), Y), validation=0), Named()), expected)


def test_a_split_of_hugging_face_parts_and_one_column() -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"x": X.numpy(), "sentence": ["a"] * 40, "label": Y.numpy()})
    whole = whole.cast_column("label", datasets.ClassLabel(names=["low", "middle", "high"]))
    parts = datasets.DatasetDict({"train": whole, "test": whole.select(range(10))})
    data = adapt(parts, inputs="x", validation=0.25)
    assert (data.classes, len(data.train), len(data.validation), len(data.test)) == (
        ("low", "middle", "high"), 30, 10, 10,
    )  # fmt: skip
    tensors = adapt((X, Y), validation=0.25)
    same_weights(trained(data), trained(tensors))
    with pytest.raises(DataError, match=r"'sentence'.*words, such as 'a'.*inputs="):
        trained(parts)


@pytest.mark.parametrize("kind", ["arrays", "dataset", "iterable"])
def test_members_get_minibatches_of_their_own_from_every_kind(kind: str) -> None:
    recipe = Recipe(epochs=2, batch=8, shuffle=False, plan="independent", run="loop")
    expected = trained(adapt((X, Y), validation=0), recipe=recipe)
    same_weights(trained(adapt(KINDS[kind](), validation=0, steps_per_epoch=5), recipe=recipe), expected)


def test_a_data_set_is_read_by_number_and_only_as_needed() -> None:
    data = Pairs()
    history = trained(adapt(data, validation=0.25))
    # two epochs of 30 and 10, and what is tried on a few samples before the first step
    assert 2 * 40 <= data.read <= 2 * 40 + 100
    assert history.last["accuracy"] is not None
    expected = trained(adapt((X, Y), validation=0.25))
    same_weights(history, expected)
    assert history["accuracy"] == expected["accuracy"]


def test_a_loader_s_own_shuffling_repeats_with_the_seed_and_differs_by_epoch() -> None:
    seen: list[list[int]] = []

    def collate(samples: list[Any]) -> Any:
        seen.append([int(10 * x[0]) for x, _ in samples])
        return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])

    def run() -> covey.History:
        seen.clear()
        return trained(DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True, collate_fn=collate))

    torch.manual_seed(1)
    first, order = run(), [*seen]
    torch.manual_seed(2)
    same_weights(run(), first)
    assert seen == order
    assert seen[-3:] != seen[-6:-3]


class Noisy(Pairs):
    """Draws from NumPy's and Python's global random numbers, as many people's transforms do."""

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        inputs, target = super().__getitem__(index)
        return inputs + np.random.randn(*inputs.shape) + random.gauss(0, 1), target


RESUMED = {
    "dataset": Pairs,
    "noisy": Noisy,
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True),
    "seeded": lambda: DataLoader(TensorDataset(X, Y), 16, shuffle=True, generator=torch.Generator().manual_seed(3)),
    "iterable": Flow,
}  # fmt: skip


@pytest.mark.parametrize("kind", RESUMED)
def test_a_run_that_was_interrupted_ends_with_the_same_weights(kind: str, tmp_path: Any) -> None:
    class Stop(covey.train.Callback):
        def on_step(self, view: covey.train.View) -> None:
            if view.step == 4:
                raise KeyboardInterrupt

    recipe = Recipe(epochs=3, batch=16, checkpoint=1, run="loop")

    def data() -> Any:
        return adapt(RESUMED[kind](), validation=0, steps_per_epoch=3 if kind == "iterable" else None)

    expected = trained(data(), recipe=recipe)
    with pytest.raises(KeyboardInterrupt):
        trained(data(), recipe=recipe, folder=tmp_path, callbacks=[Stop()])
    random.seed(7)
    np.random.seed(7)
    found = trained(data(), recipe=recipe, folder=tmp_path, resume=True)
    assert found.resumed is not None
    same_weights(found, expected)


def test_words_are_classes_and_floats_are_regressed_on() -> None:
    words = np.array(["low", "middle", "high"])[Y.numpy()]
    data = adapt((X, words))
    assert data.classes == ("high", "low", "middle")
    assert data.train.targets.dtype == torch.int64
    assert trained(data).ensemble.task == "classification"
    numbers = trained((X, X[:, :1]), mlp(outputs=1))
    assert numbers.ensemble.task == "regression"
    assert trained((X, X[:, 0]), mlp(outputs=2)).ensemble.task == "gaussian"
    loader = DataLoader(TensorDataset(X, X[:, :1]), batch_size=16)
    same_weights(trained(loader, mlp(outputs=1)), trained(adapt((X, X[:, 0]), validation=0), mlp(outputs=1)))


def test_a_name_is_data_too() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    history = covey.fit(network, "digits", Recipe(epochs=1, run="loop"), machine=QUIET)
    assert history.last["accuracy"] > 0.5


def test_random_transforms_repeat_and_touch_training_only() -> None:
    shapes = []

    def noisy(inputs: Tensor) -> Tensor:
        shapes.append(len(inputs))
        return inputs + torch.randn_like(inputs)

    data = adapt((X, Y), transform=noisy, validation=0.25)
    torch.manual_seed(5)
    first = trained(data)
    assert set(shapes) == {16, 14}
    torch.manual_seed(6)
    same_weights(trained(data), first)
    with pytest.raises(AssertionError):
        same_weights(trained(adapt((X, Y), validation=0.25)), first)


class Iterated:
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X, Y, strict=True))


def pandas_frame() -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(X.numpy()).assign(label=Y.numpy())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: (X, Y[:30]), r"40 inputs but 30 targets"),
        (lambda: (X[:0], Y[:0]), r"the train data: there are no samples"),
        (lambda: TensorDataset(X[:0], Y[:0]), r"no samples"),
        (lambda: DataLoader(Flow(), batch_size=16), r"no length.*steps_per_epoch"),
        (lambda: Flow(), r"no length.*steps_per_epoch"),
        (lambda: iter([(X, Y)]), r"expected a pair.*got list_iterator"),
        (lambda: X, r"expected a pair.*got Tensor"),
        (lambda: {"train": (X, Y), "extra": (X, Y)}, r"'train', 'validation' and 'test'.*Leave 'extra' out"),
        (lambda: {"x": X, "answer": Y}, r"none of the columns is called as.*'x', 'answer'.*label="),
        (lambda: {"x": X, "label": Y, "labels": Y}, r"'labels' and 'label' could be"),
        (lambda: (X, Y.float()), r"floats, but all of them whole.*task="),
        (lambda: (X, (torch.rand(40, 3) > 0.5).float()), r"3 for each sample: labels.*task='multilabel'"),
        (lambda: (X, Y - 5), r"labels go from -5|the training labels"),
        (lambda: (X, torch.rand(40, 3, 2)), r"one number for each sample.*\(40, 3, 2\)"),
        (lambda: DataLoader([(X[i], "cat") for i in range(9)]), r"words, such as 'cat'.*classes="),
        (lambda: DataLoader([(X[i], X[i], 1) for i in range(9)]), r"expected a pair.*list of 3"),
        (lambda: [(X[i][: 2 + i % 3], 1) for i in range(9)], r"list"),
        (lambda: (X, Y + 2), r"network has 3 outputs and the data need 5"),
        (lambda: Pairs(X, Y + 2), r"labels reach beyond the classes"),
        (lambda: pandas_frame(), r"a DataFrame alone does not say what its label is"),
        (lambda: Iterated(), r"Iterated can be iterated over, but does not say whether"),
        (lambda: (np.ma.masked_array(X.numpy(), X.numpy() > 1), Y), r"inputs: some values are masked"),
        (lambda: (X, nn.functional.one_hot(Y)), r"labels have shape \(N, 3\).*argmax"),
        (lambda: Pairs(X[:, :4]), r"does not take the data's inputs.*\(2, 4\)"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_trained_on_are_refused(given: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        trained(given())


def test_a_transform_returns_the_inputs() -> None:
    with pytest.raises(OptionError, match="transform returned None"):
        trained(adapt((X, Y), transform=lambda inputs: None))


def test_a_trained_ensemble_s_task_and_inputs_are_checked() -> None:
    made = covey.convert(mlp(), covey.BatchEnsemble(members=2), example=X[:2])
    soft = DataLoader(TensorDataset(X, nn.functional.one_hot(Y).float()), batch_size=16)
    with pytest.raises(
        DataError, match=r"task is 'classification', and it would be trained for 'regression'"
    ):
        covey.fit(made, soft, RECIPE, machine=QUIET)
    for wrong in (X[:, :4], X.double(), X.half(), (X * 9).long()):
        shape = str(tuple(wrong[:2].shape)).replace("(", r"\(").replace(")", r"\)")
        with pytest.raises(
            DataError, match=f"does not take the data's inputs. It was given {shape} {wrong.dtype}"
        ):
            covey.fit(made, (wrong, Y), RECIPE, machine=QUIET)
        with pytest.raises(DataError, match="does not take the data's inputs"):
            covey.evaluate(made, (wrong, Y))


def test_named_inputs_are_split_for_validation() -> None:
    left, right = X[:, :3], X[:, 3:]
    found = trained(({"left": left, "right": right}, Y), Named())
    columns = trained({"left": left, "right": right, "label": Y}, Named())
    same_weights(found, columns)
    same_weights(trained((X.numpy().astype(">f4"), Y.numpy().astype(">i8"))), trained((X, Y)))


def test_samples_of_different_lengths_need_a_collate_function() -> None:
    class Ragged(Pairs):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return X[index][: 4 + index % 3], int(Y[index])

    def padded(samples: list[Any]) -> tuple[Tensor, Tensor]:
        rows = [nn.functional.pad(x, (0, 6 - len(x))) for x, _ in samples]
        return torch.stack(rows), torch.tensor([y for _, y in samples])

    with pytest.raises(DataError, match=r"samples \d+ to \d+ cannot become one batch.*collate="):
        trained(Ragged())
    assert trained(adapt(Ragged(), collate=padded)).last["accuracy"] is not None


def test_an_iterable_that_ends_too_early_or_cannot_start_again_is_refused() -> None:
    class Once(IterableDataset):
        def __init__(self) -> None:
            self.left = iter(zip(X, Y, strict=True))

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return self.left

    with pytest.raises(DataError, match=r"gave no batch when they were read again"):
        trained(adapt(Once(), steps_per_epoch=4))

    class Liar(Flow):
        def __len__(self) -> int:
            return 100

    with pytest.raises(DataError, match=r"gave 3 batches in a pass, and their length says 7"):
        trained(Liar())


def test_a_stream_refuses_what_needs_samples_with_numbers() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=16)
    with pytest.raises(OptionError, match=r"plan 'shuffled'.*in one order"):
        trained(loader, recipe=Recipe(epochs=1, plan="shuffled"))
    with pytest.raises(OptionError, match=r"streams of batches"):
        trained(loader, recipe=Recipe(epochs=1, augment=covey.data.Augment(mixup=0.2)))
    with pytest.raises(OptionError, match=r"sample_weight needs samples with numbers"):
        adapt(loader, sample_weight=torch.ones(40))
    with pytest.raises(OptionError, match="no validation samples"):
        trained(loader, recipe=Recipe(epochs=1, keep="best"))
