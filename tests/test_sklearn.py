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

# All rows of scikit-learn's checks in one minibatch: only then are weights the same as repeated rows.
QUICK = {"epochs": 40, "batch_size": 512, "lr": 2e-2, "hidden": (32,), "random_state": 0}


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


def test_quantiles_hold_the_share_that_they_promise():
    X, y = load_diabetes(return_X_y=True)
    X, test, y, targets = train_test_split(X, y, random_state=0)
    model = EnsembleRegressor(epochs=20, random_state=0, quantiles=(0.1, 0.5, 0.9)).fit(X, y)
    low, median, high = model.predict_quantiles(test).T
    assert (low <= median).all()
    assert (median <= high).all()
    np.testing.assert_array_equal(model.predict(test), median)
    assert 0.65 < np.mean((low <= targets) & (targets <= high)) < 0.95
    assert clone(model).quantiles == (0.1, 0.5, 0.9)


def test_quantiles_and_deviations_are_asked_of_whom_has_them():
    X, y = load_diabetes(return_X_y=True)
    quick = {"epochs": 1, "random_state": 0}
    with pytest.raises(ValueError, match="quantiles have no standard deviation"):
        EnsembleRegressor(quantiles=(0.5,), **quick).fit(X, y).predict(X, return_std=True)
    with pytest.raises(ValueError, match=r"make the estimator with quantiles="):
        EnsembleRegressor(**quick).fit(X, y).predict_quantiles(X)
    with pytest.raises(OptionError, match="between 0 and 1 and rise"):
        EnsembleRegressor(quantiles=(0.9, 0.1), **quick).fit(X, y)


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


def small(rows=40, seed=0):
    draw = np.random.default_rng(seed)
    X = draw.normal(size=(rows, 3))
    return X, X @ [1.0, -2.0, 0.5] + draw.normal(size=rows) * 0.1


@pytest.mark.parametrize("kind", [EnsembleClassifier, EnsembleRegressor])
def test_whole_weights_are_repeated_rows(kind):
    X, y = small()
    y = (y > 0).astype(int) if kind is EnsembleClassifier else y
    counts = np.random.default_rng(1).integers(0, 4, len(y))
    repeated = np.repeat(np.arange(len(y)), counts)
    options = {"epochs": 5, "batch_size": 500, "random_state": 0}
    weighted = kind("batch-ensemble", **options).fit(X, y, sample_weight=counts)
    plain = kind("batch-ensemble", **options).fit(X[repeated], y[repeated])
    answer = "predict_proba" if kind is EnsembleClassifier else "predict"
    np.testing.assert_allclose(getattr(weighted, answer)(X), getattr(plain, answer)(X), rtol=1e-8)
    unweighted = kind("batch-ensemble", **options).fit(X, y)
    assert not np.allclose(getattr(weighted, answer)(X), getattr(unweighted, answer)(X), rtol=1e-3)


def test_rows_of_weight_0_are_left_out_of_every_minibatch():
    X, y = small()
    keep = np.arange(len(y)) % 3 > 0
    model = EnsembleRegressor("single", epochs=3, batch_size=8, random_state=0)
    weighted = clone(model).fit(X, y, sample_weight=keep * 2.5).predict(X)
    np.testing.assert_array_equal(weighted, clone(model).fit(X[keep], y[keep]).predict(X))


def test_class_weights_are_weights_of_rows():
    X, y = small(60)
    words = np.where(y > 1.5, "rare", "common")
    model = EnsembleClassifier("single", epochs=5, batch_size=100, random_state=0)
    by_class = clone(model).set_params(class_weight={"rare": 3.0, "common": 1.0}).fit(X, words)
    by_row = clone(model).fit(X, words, sample_weight=np.where(words == "rare", 3.0, 1.0))
    np.testing.assert_allclose(by_class.predict_proba(X), by_row.predict_proba(X), rtol=1e-9)
    share = np.mean(words == "rare")
    balanced = clone(model).set_params(class_weight="balanced").fit(X, words)
    inverse = clone(model).fit(X, words, sample_weight=np.where(words == "rare", 1 / share, 1 / (1 - share)))
    np.testing.assert_allclose(balanced.predict_proba(X), inverse.predict_proba(X), rtol=1e-9)
    column = list(by_class.classes_).index("rare")
    assert (
        balanced.predict_proba(X)[:, column].mean()
        > clone(model).fit(X, words).predict_proba(X)[:, column].mean()
    )


def test_refusals():
    X, y = load_breast_cancer(return_X_y=True)
    for weights, told in (
        (np.ones(3), r"shape \(3,\); expected one number for each of 569 rows"),
        (np.zeros(len(y)), "not zero for all"),
        (-np.ones(len(y)), "at least 0"),
        (y, "only one class"),
    ):
        with pytest.raises(ValueError, match=told):
            EnsembleClassifier().fit(X, y, sample_weight=weights)
    with pytest.raises(OptionError, match=r"there is no method 'deepensemble'.*'deep-ensemble'"):
        EnsembleClassifier("deepensemble").fit(X, y)
    with pytest.raises(TypeError, match="unexpected keyword argument 'weights'"):
        EnsembleClassifier().fit(X, y, weights=1)
