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
    from sklearn.utils import check_array, check_random_state
    from sklearn.utils.class_weight import compute_sample_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
    raise explained(error) from None

from covey import registry, zoo
from covey.data import Data, Split
from covey.data.container import Task
from covey.quantiles import QuantileAnswer
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

    def _train(
        self,
        X: np.ndarray,
        targets: torch.Tensor,
        weights: np.ndarray,
        task: Task,
        classes: tuple[str, ...] = (),
        quantiles: tuple[float, ...] = (),
    ) -> None:
        """Train on rows with weights above 0."""
        method = _method(self.method)
        self._mean, self._scale = _moments(X, weights)
        self._scale[self._scale < 1e-12 * np.maximum(1, np.abs(self._mean))] = 1.0
        inputs = self._inputs(X)
        rest = Split(inputs[:0], targets[:0])
        shape = (inputs.shape[1],)
        data = Data(
            Split(inputs, targets),
            rest,
            rest,
            task=task,
            classes=classes,
            shape=shape,
            sample_weights=_mean_one(weights),
        )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        recipe = Recipe(
            epochs=self.epochs,
            batch=min(self.batch_size, len(inputs)),
            optimizer="adamw",
            lr=self.lr,
            decay=self.weight_decay,
            schedule=Schedule(kind="cosine"),
            seed=seed,
            quantiles=quantiles,
        )
        with random_state_kept(seed=seed):
            outputs = len(classes) or recipe.outputs_of_a_number
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
        class_weight: factor of the weight of each class's rows: a dict by label, or "balanced" for
            rows / (classes x rows of the class).

    Attributes:
        classes_: the class labels.
        ensemble_: the trained `covey.Ensemble`, on standardised columns.
    """

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
        class_weight: Any = None,
    ) -> None:
        super().__init__(
            method,
            hidden=hidden,
            dropout=dropout,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            random_state=random_state,
        )
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> EnsembleClassifier:
        """Train on rows X (N, D) and labels y (N,), the rows' losses times `sample_weight` (N,).

        Only the weights' ratios count, and a row of weight 0 is left out.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        weights = _weights(sample_weight, X)
        encoder = LabelEncoder().fit(y)
        self.classes_ = encoder.classes_
        X, y, weights = X[weights > 0], y[weights > 0], weights[weights > 0]
        if len(np.unique(y)) < 2:
            raise ValueError("EnsembleClassifier needs at least 2 classes; the data contains only one class.")
        weights = weights * compute_sample_weight(self.class_weight, y)
        targets = torch.from_numpy(encoder.transform(y).astype(np.int64))
        self._train(X, targets, weights, "classification", tuple(map(str, self.classes_)))
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

    Members answer with a mean and a variance, and the ensemble's answer is the mixture of their Gaussians; or, with
    `quantiles`, with these quantiles, and the ensemble's are the means of theirs.

    Args:
        method: see `EnsembleClassifier`, as for all arguments but the last.
        hidden: see there.
        dropout: see there.
        epochs: see there.
        batch_size: see there.
        lr: see there.
        weight_decay: see there.
        random_state: see there.
        quantiles: levels between 0 and 1 that rise, such as (0.05, 0.5, 0.95).
    """

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
        quantiles: tuple[float, ...] = (),
    ) -> None:
        super().__init__(
            method,
            hidden=hidden,
            dropout=dropout,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            weight_decay=weight_decay,
            random_state=random_state,
        )
        self.quantiles = quantiles

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> EnsembleRegressor:
        """Train on rows X (N, D) and numbers y (N,), the rows' losses times `sample_weight` (N,).

        Only the weights' ratios count, and a row of weight 0 is left out.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        weights = _weights(sample_weight, X)
        X, y, weights = X[weights > 0], y[weights > 0], weights[weights > 0]
        shift, unit = _moments(y, weights)
        self._shift, self._unit = float(shift), float(unit) or 1.0
        targets = torch.from_numpy(((y - self._shift) / self._unit).astype(np.float64))
        self._train(X, targets, weights, "regression", quantiles=tuple(self.quantiles))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of each row (N,), and with `return_std` its standard deviation (N,) too.

        With quantiles it is the level nearest to the median, and there is no deviation.
        """
        answer = self._answer(X)
        if isinstance(answer, QuantileAnswer):
            if return_std:
                raise ValueError("quantiles have no standard deviation: leave out return_std, or quantiles.")
            return self._in_units(answer.centre)
        mean = self._in_units(answer.mean[:, 0])
        return (mean, answer.std[:, 0].numpy() * self._unit) if return_std else mean

    def predict_quantiles(self, X: Any) -> np.ndarray:
        """The quantiles of each row, in order, (N, levels)."""
        answer = self._answer(X)
        if not isinstance(answer, QuantileAnswer):
            raise ValueError("there are no quantiles: make the estimator with quantiles=(0.05, 0.5, 0.95).")
        return self._in_units(answer.quantiles)

    def _in_units(self, numbers: torch.Tensor) -> np.ndarray:
        """Numbers on the targets' own scale."""
        return numbers.numpy() * self._unit + self._shift


def _method(given: Any) -> Any:
    """A method by name, with its defaults, or as it is."""
    if not isinstance(given, str):
        return given
    return registry.parsed(given)


def _weights(given: Any, X: np.ndarray) -> np.ndarray:
    """The weight of each row, (N,), at least 0 and not all 0."""
    if given is None:
        return np.ones(len(X))
    # scikit-learn's own validation of columns, whose messages its users know
    weights = check_array(given, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weights.ndim == 0:
        weights = np.full(len(X), float(weights))
    if weights.shape != (len(X),):
        raise ValueError(
            f"sample_weight has shape {weights.shape}; expected one number for each of {len(X)} rows."
        )
    if (weights < 0).any() or not weights.any():
        raise ValueError("sample_weight is at least 0 for each row, and not zero for all of them.")
    return weights


def _moments(values: np.ndarray, weights: np.ndarray) -> tuple[Any, Any]:
    """Mean and standard deviation over the rows, each as often as its weight says."""
    if (weights == weights[0]).all():
        return values.mean(0), values.std(0)
    mean = np.average(values, axis=0, weights=weights)
    return mean, np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))


def _mean_one(weights: np.ndarray) -> torch.Tensor | None:
    """Weights as training takes them; None where they do not differ."""
    if (weights == weights[0]).all():
        return None
    return torch.from_numpy(weights / weights.mean())
