"""scikit-learn estimators: an ensemble of multilayer perceptrons by any method.

>>> from sklearn.datasets import load_iris
>>> X, y = load_iris(return_X_y=True)
>>> model = EnsembleClassifier("batch-ensemble", epochs=20, random_state=0).fit(X, y)
>>> model.predict_proba(X[:2]).shape
(2, 3)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from covey.extras import explained

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.preprocessing import LabelEncoder
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
    raise explained(error) from None

from covey import registry, zoo
from covey.data import Data, Split
from covey.data.container import Task
from covey.errors import OptionError
from covey.seeds import random_state_kept
from covey.train import Machine, Recipe, Schedule, fit


class _Tabular(BaseEstimator):
    """What both estimators share: options, scaling of the columns, and training."""

    def __init__(
        self,
        method: Any = "deep-ensemble",
        *,
        hidden: tuple[int, ...] = (64, 64),
        dropout: float = 0.0,
        epochs: int = 60,
        batch_size: int = 32,
        lr: float = 3e-3,
        weight_decay: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.hidden = hidden
        self.dropout = dropout
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.random_state = random_state

    def _train(self, X: np.ndarray, targets: torch.Tensor, task: Task, classes: tuple[str, ...]) -> None:
        method = _method(self.method)
        self._mean, self._scale = X.mean(0), X.std(0)
        self._scale[self._scale < 1e-12 * np.maximum(1, np.abs(self._mean))] = 1.0
        inputs = self._inputs(X)
        rest = Split(inputs[:0], targets[:0])
        shape = (inputs.shape[1],)
        data = Data(Split(inputs, targets), rest, rest, task=task, classes=classes, shape=shape)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        recipe = Recipe(
            epochs=self.epochs,
            batch=min(self.batch_size, len(inputs)),
            optimizer="adamw",
            lr=self.lr,
            decay=self.weight_decay,
            schedule=Schedule(kind="cosine"),
            seed=seed,
        )
        with random_state_kept(seed=seed):
            outputs = len(classes) or 2  # a mean and a variance
            network = zoo.MLP(
                features=shape[0], hidden=tuple(self.hidden), classes=outputs, dropout=self.dropout
            ).double()
        machine = Machine(accelerator="cpu", progress=False)
        self.ensemble_ = fit(network, data, recipe, method=method, machine=machine).ensemble
        self.n_iter_ = self.epochs

    def _inputs(self, X: np.ndarray) -> torch.Tensor:
        # float64, so that an answer does not depend on which other rows are asked for
        return torch.from_numpy(np.ascontiguousarray((X - self._mean) / self._scale))

    def _answer(self, X: Any) -> Any:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        with random_state_kept(
            self.ensemble_, seed=0
        ):  # methods that draw at test answer the same every time
            return self.ensemble_.predict(self._inputs(X))


class EnsembleClassifier(ClassifierMixin, _Tabular):
    """An ensemble of multilayer perceptrons that classifies the rows of a table.

    Args:
        method: a name of `covey.METHODS`, or a method with options.
        hidden: units of each hidden layer.
        dropout: dropout probability between layers; MC-dropout needs it.
        epochs: passes over the rows.
        batch_size: rows in a minibatch.
        lr: learning rate of AdamW, which falls to 0 along a cosine.
        weight_decay: of AdamW.
        random_state: seed of initialisation, order and dropout.

    Attributes:
        classes_: the class labels.
        ensemble_: the trained `covey.Ensemble`, on standardised columns.
    """

    def fit(self, X: Any, y: Any, **unsupported: Any) -> EnsembleClassifier:
        """Train on rows X (N, D) and labels y (N,)."""
        _refuse(unsupported)
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        encoder = LabelEncoder().fit(y)
        self.classes_ = encoder.classes_
        if len(self.classes_) < 2:
            raise ValueError("EnsembleClassifier needs at least 2 classes; the data contains only one class.")
        targets = torch.from_numpy(encoder.transform(y).astype(np.int64))
        self._train(X, targets, "classification", tuple(map(str, self.classes_)))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The mean over members of their probabilities, (N, classes)."""
        probs = self._answer(X).probs.numpy()
        return probs / probs.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row, (N,)."""
        likely = self.predict_proba(X).argmax(1)
        return self.classes_[likely]

    def uncertainty(self, X: Any) -> np.ndarray:
        """What the members do not agree on: mutual information in nats, (N,)."""
        return self._answer(X).mutual_information.numpy()


class EnsembleRegressor(RegressorMixin, _Tabular):
    """An ensemble of multilayer perceptrons that predicts a number and its uncertainty for each row of a table.

    Members answer with a mean and a variance; the ensemble's answer is the mixture of their Gaussians. For the
    arguments see `EnsembleClassifier`.
    """

    def fit(self, X: Any, y: Any, **unsupported: Any) -> EnsembleRegressor:
        """Train on rows X (N, D) and numbers y (N,)."""
        _refuse(unsupported)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        self._shift, self._unit = float(np.mean(y)), float(np.std(y)) or 1.0
        targets = torch.from_numpy(((y - self._shift) / self._unit).astype(np.float64))
        self._train(X, targets, "regression", ())
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of each row (N,), and with `return_std` its standard deviation (N,) too."""
        answer = self._answer(X)
        mean = answer.mean[:, 0].numpy() * self._unit + self._shift
        return (mean, answer.std[:, 0].numpy() * self._unit) if return_std else mean


def _method(given: Any) -> Any:
    """A method by name, with its defaults, or as it is."""
    if not isinstance(given, str):
        return given
    return registry.parsed(given)


def _refuse(unsupported: dict[str, Any]) -> None:
    if unsupported.pop("sample_weight", None) is not None:
        raise OptionError(
            "sample_weight is not supported: minibatch training with adaptive steps has no exact meaning for it. "
            "Resample the rows instead."
        )
    if unsupported:
        raise TypeError(f"fit() got an unexpected keyword argument {next(iter(unsupported))!r}")
