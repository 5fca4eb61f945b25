r"""The adapter to PyOD, by every assertion that PyOD makes of its own nearest neighbors."""

import numpy as np
import pytest
import warnings

from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fokker.tables.pyod import EnergyDetector
    from pyod.utils.data import generate_data

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def data():
    return generate_data(n_train=200, n_test=100, contamination=0.1, random_state=42)


@pytest.fixture(scope="module")
def detector(data):
    return EnergyDetector(contamination=0.1).fit(data[0])


@pytest.mark.parametrize("name", ["decision_scores_", "labels_", "threshold_", "_mu", "_sigma"])
def test_it_has_the_attributes_of_a_detector(detector, name):
    assert getattr(detector, name) is not None


def test_every_training_row_has_a_score(detector, data):
    assert len(detector.decision_scores_) == len(data[0])


def test_scores_are_high_for_outliers(detector, data):
    _, test, _, odd = data
    scores = detector.decision_function(test)
    assert scores.shape[0] == test.shape[0]
    assert roc_auc_score(odd, scores) >= 0.8


def test_labels(detector, data):
    assert detector.predict(data[1]).shape == data[3].shape
    assert detector.labels_.sum() == 20


@pytest.mark.parametrize("options", [{}, {"method": "linear"}, {"method": "unify"}])
def test_probabilities(detector, data, options):
    found = detector.predict_proba(data[1], **options)
    assert found.min() >= 0 and found.max() <= 1


def test_an_unknown_probability(detector, data):
    with pytest.raises(ValueError):
        detector.predict_proba(data[1], method="something")


def test_confidence(detector, data):
    for found, shape in (
        (detector.predict(data[1], return_confidence=True), data[3].shape),
        (detector.predict_proba(data[1], "linear", return_confidence=True), (100, 2)),
    ):
        value, confidence = found
        assert value.shape == shape and confidence.shape == data[3].shape
        assert confidence.min() >= 0 and confidence.max() <= 1
        assert value.min() >= 0 and value.max() <= 1


def test_rejection(detector, data):
    assert detector.predict_with_rejection(data[1], return_stats=False).shape == data[3].shape
    _, (expected, bound, cost) = detector.predict_with_rejection(data[1], return_stats=True)
    assert 0 <= expected <= 1 and 0 <= bound <= 1 and cost >= 0


def test_fit_predict(detector, data):
    assert clone(detector).fit_predict(data[0]).shape == data[2].shape


def test_fit_predict_score(detector, data):
    _, test, _, odd = data
    for options in ({}, {"scoring": "roc_auc_score"}, {"scoring": "prc_n_score"}):
        clone(detector).fit_predict_score(test, odd, **options)
    with pytest.raises(NotImplementedError):
        clone(detector).fit_predict_score(test, odd, scoring="something")


@pytest.mark.parametrize(("normalized", "most"), [(False, 201), (True, 1.01)])
def test_ranks(detector, data, normalized, most):
    scores = detector.decision_function(data[1])
    ranks = detector._predict_rank(data[1], normalized=normalized)
    np.testing.assert_allclose(rankdata(ranks), rankdata(scores), atol=2)
    assert (ranks < most).all() and (ranks > -0.1).all()


def test_clone(detector):
    assert clone(detector).get_params() == detector.get_params()
    assert detector.get_params()["contamination"] == pytest.approx(0.1)
