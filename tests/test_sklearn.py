import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import covey
from covey.errors import OptionError
from covey.sklearn import EnsembleClassifier, EnsembleRegressor

QUICK = {"epochs": 12, "batch_size": 16, "lr": 2e-2, "hidden": (32,), "random_state": 0}


@parametrize_with_checks(
    [
        EnsembleClassifier(covey.DeepEnsemble(members=2), **QUICK),
        EnsembleRegressor(covey.DeepEnsemble(members=2), **QUICK),
    ]
)
@pytest.mark.filterwarnings("default")  # scikit-learn's checks warn themselves
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("method", ["single", "batch-ensemble", covey.MIMO(members=2), "snapshot"], ids=str)
def test_classifies_as_well_as_logistic_regression(method):
    X, y = load_breast_cancer(return_X_y=True)
    X, test, y, labels = train_test_split(X, y, random_state=0)
    theirs = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y).score(test, labels)
    model = EnsembleClassifier(method, epochs=12, random_state=0).fit(X, y)
    assert model.score(test, labels) > theirs - 0.03
    np.testing.assert_allclose(model.predict_proba(test).sum(1), 1)


def test_regression_gives_honest_deviations():
    X, y = load_diabetes(return_X_y=True)
    X, test, y, targets = train_test_split(X, y, random_state=0)
    model = EnsembleRegressor(epochs=20, random_state=0).fit(X, y)
    assert model.score(test, targets) > 0.3  # linear regression has 0.36
    mean, std = model.predict(test, return_std=True)
    assert mean.shape == std.shape == (len(test),)
    assert 0.5 < np.mean(np.abs(mean - targets) < std) < 0.9  # 0.68 if the Gaussians were right


def test_pandas_columns_are_remembered():
    pandas = pytest.importorskip("pandas")
    frame, y = load_breast_cancer(return_X_y=True, as_frame=True)
    model = EnsembleClassifier("single", epochs=1).fit(frame, y)
    assert list(model.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(pandas.DataFrame(frame.to_numpy(), columns=[f"c{i}" for i in range(frame.shape[1])]))


def test_labels_of_any_kind_and_cross_validation():
    X, y = load_breast_cancer(return_X_y=True)
    words = np.array(["malignant", "benign"])[y]
    model = EnsembleClassifier("batch-ensemble", epochs=4, random_state=1)
    assert set(clone(model).fit(X, words).predict(X)) == {"malignant", "benign"}
    assert cross_val_score(model, X, words, cv=2).mean() > 0.9


def test_uncertainty_is_what_members_do_not_agree_on():
    X, y = load_breast_cancer(return_X_y=True)
    model = EnsembleClassifier(epochs=4, random_state=0).fit(X, y)
    wrong = model.predict(X) != y
    assert model.uncertainty(X)[wrong].mean() > 3 * model.uncertainty(X)[~wrong].mean()
    assert EnsembleClassifier("single", epochs=1).fit(X, y).uncertainty(X).max() < 1e-6


def test_refusals():
    X, y = load_breast_cancer(return_X_y=True)
    with pytest.raises(OptionError, match=r"sample_weight is not supported.*Resample the rows"):
        EnsembleClassifier().fit(X, y, sample_weight=np.ones(len(y)))
    with pytest.raises(OptionError, match=r"there is no method 'deepensemble'.*'deep-ensemble'"):
        EnsembleClassifier("deepensemble").fit(X, y)
    with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
        EnsembleClassifier().fit(X, y, weights=1)
