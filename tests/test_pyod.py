"""The adapter to PyOD, by every assertion that PyOD makes of its own nearest neighbors.

The first part has one test for each test of `pyod/test/test_knn.py`, with its name, its data and
its bounds, in our own words: 200 rows to train, 100 to test, a tenth of them outliers, an AUROC of
0.8. PyOD repeats them for several settings of its detector; we for ours. The second part holds
what PyOD's test does not ask: signs, thresholds, labels and shares of outliers.
"""

import numpy as np
import pytest
import warnings

from scipy.stats import rankdata
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from fokker.tables.pyod import EnergyDetector
    from pyod.models.base import BaseDetector
    from pyod.utils.data import generate_data

pytestmark = pytest.mark.filterwarnings("ignore")

TRAIN, TEST, SHARE, LEAST = 200, 100, 0.1, 0.8
SETTINGS = {"as PyOD makes it": {"contamination": SHARE}, "default": {}, "clean": {"clean": True}}


@pytest.fixture(scope="module")
def data():
    return generate_data(n_train=TRAIN, n_test=TEST, contamination=SHARE, random_state=42)


@pytest.fixture(scope="module", params=SETTINGS.values(), ids=SETTINGS.keys())
def detector(request, data):
    return EnergyDetector(**request.param).fit(data[0])


# --- what PyOD's test asserts ---


@pytest.mark.parametrize("name", ["decision_scores_", "labels_", "threshold_", "_mu", "_sigma"])
def test_parameters(detector, name):
    assert hasattr(detector, name) and getattr(detector, name) is not None


def test_train_scores(detector):
    assert len(detector.decision_scores_) == TRAIN


def test_prediction_scores(detector, data):
    scores = detector.decision_function(data[1])
    assert scores.shape[0] == TEST
    assert roc_auc_score(data[3], scores) >= LEAST


def test_prediction_labels(detector, data):
    assert detector.predict(data[1]).shape == data[3].shape


@pytest.mark.parametrize("options", [{}, {"method": "linear"}, {"method": "unify"}])
def test_prediction_proba(detector, data, options):
    found = detector.predict_proba(data[1], **options)
    assert found.min() >= 0 and found.max() <= 1


def test_prediction_proba_parameter(detector, data):
    with pytest.raises(ValueError):
        detector.predict_proba(data[1], method="something")


def test_prediction_labels_confidence(detector, data):
    labels, confidence = detector.predict(data[1], return_confidence=True)
    assert labels.shape == data[3].shape and confidence.shape == data[3].shape
    assert confidence.min() >= 0 and confidence.max() <= 1


@pytest.mark.parametrize("method", ["linear", "unify"])
def test_prediction_proba_confidence(detector, data, method):
    found, confidence = detector.predict_proba(data[1], method=method, return_confidence=True)
    assert found.min() >= 0 and found.max() <= 1
    assert confidence.shape == data[3].shape
    assert confidence.min() >= 0 and confidence.max() <= 1


def test_prediction_with_rejection(detector, data):
    labels = detector.predict_with_rejection(data[1], return_stats=False)
    assert labels.shape == data[3].shape


def test_prediction_with_rejection_stats(detector, data):
    _, (expected, bound, cost) = detector.predict_with_rejection(data[1], return_stats=True)
    assert expected >= 0 and expected <= 1
    assert bound >= 0 and bound <= 1
    assert cost >= 0


def test_fit_predict(detector, data):
    again = EnergyDetector(**detector.get_params()).fit(data[0])
    assert again.fit_predict(data[0]).shape == data[2].shape  # a second fit


def test_fit_predict_score(detector, data):
    again = EnergyDetector(**detector.get_params()).fit(data[0])
    for options in ({}, {"scoring": "roc_auc_score"}, {"scoring": "prc_n_score"}):
        assert 0 <= again.fit_predict_score(data[1], data[3], **options) <= 1
    with pytest.raises(NotImplementedError):
        again.fit_predict_score(data[1], data[3], scoring="something")


@pytest.mark.parametrize(("normalized", "most"), [(False, TRAIN + 1), (True, 1.01)])
def test_predict_rank(detector, data, normalized, most):
    scores = detector.decision_function(data[1])
    ranks = detector._predict_rank(data[1], normalized=normalized)
    np.testing.assert_allclose(rankdata(ranks), rankdata(scores), atol=2)
    assert (ranks < most).all() and (ranks > -0.1).all()


def test_model_clone(detector):
    fresh = clone(detector)
    assert fresh.get_params() == detector.get_params()
    assert not hasattr(fresh, "decision_scores_")


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_fit(data, settings):
    fresh = EnergyDetector(**settings)
    assert clone(fresh).get_params() == fresh.get_params()  # before it is fitted
    assert fresh.fit(data[0]) is fresh


def test_decision_function(detector, data):
    for rows in data[:2]:
        scores = detector.decision_function(rows)
        assert scores.shape == (len(rows),) and np.isfinite(scores).all()


# --- what it does not ask ---


def test_it_is_a_detector_of_pyod(detector):
    assert isinstance(detector, BaseDetector)
    assert detector.contamination == pytest.approx(SHARE)


def test_scores_are_high_for_outliers(detector, data):
    train, test, _, odd = data
    scores = detector.decision_function(test)
    assert scores[odd == 1].mean() > scores[odd == 0].mean()
    inner = detector.detector_
    np.testing.assert_allclose(scores, -inner.score_samples(test))  # the sign of scikit-learn
    np.testing.assert_array_equal(detector.decision_function(train), detector.decision_scores_)


def test_the_threshold_leaves_a_share_above(detector, data):
    scores, share = detector.decision_scores_, detector.contamination
    assert detector.threshold_ == pytest.approx(np.percentile(scores, 100 * (1 - share)))
    assert detector.labels_.sum() == (scores > detector.threshold_).sum() == round(share * TRAIN)
    np.testing.assert_array_equal(detector.predict(data[0]), detector.labels_)
    above = detector.decision_function(data[1]) > detector.threshold_
    np.testing.assert_array_equal(detector.predict(data[1]), above.astype(int))


@pytest.mark.parametrize("method", ["linear", "unify"])
def test_probabilities_sum_to_one_and_rise_with_the_score(detector, data, method):
    found = detector.predict_proba(data[1], method=method)
    assert found.shape == (TEST, 2)
    np.testing.assert_allclose(found.sum(1), 1)
    order = np.argsort(detector.decision_function(data[1]))
    assert (np.diff(found[order, 1]) >= 0).all()


def test_confidence_is_that_of_the_labels(detector, data):
    _, confidence = detector.predict(data[1], return_confidence=True)
    np.testing.assert_array_equal(confidence, detector.predict_confidence(data[1]))


def test_rejected_rows_are_marked(detector, data):
    labels = detector.predict_with_rejection(data[1])
    assert set(labels.tolist()) <= {-2, 0, 1}
    kept = labels != -2
    np.testing.assert_array_equal(labels[kept], detector.predict(data[1])[kept])


@pytest.mark.parametrize("share", [0.0, -0.1, 0.6])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(ValueError, match=r"contamination must be in \(0, 0.5\]"):
        EnergyDetector(contamination=share)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5])
def test_the_share_is_that_of_the_labels(data, share):
    found = EnergyDetector(contamination=share, clean=True).fit(data[0])
    assert found.labels_.mean() == pytest.approx(share, abs=1 / TRAIN)


class Median:
    """Stands for a thresholder of PyThresh, which PyOD takes in the place of a share."""

    def fit(self, scores):
        self.thresh_ = float(np.median(scores))
        self.labels_ = self.predict(scores)

    def predict(self, scores):
        return (scores > self.thresh_).astype(int)


def test_a_thresholder_sets_the_threshold(data):
    found = EnergyDetector(contamination=Median()).fit(data[0])
    assert found.threshold_ == np.median(found.decision_scores_)
    assert found.labels_.sum() == TRAIN / 2
    assert found.predict(data[1]).shape == data[3].shape
    assert roc_auc_score(data[3], found.decision_function(data[1])) >= LEAST


def test_same_seed_same_scores(data):
    one, two = (EnergyDetector(random_state=3).fit(data[0]) for _ in range(2))
    np.testing.assert_array_equal(one.decision_scores_, two.decision_scores_)
