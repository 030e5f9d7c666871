"""Classifiers of frozen features: what the formulas say, on features that are made up."""

import numpy as np
import pytest
import scipy.linalg

from moespec.models.evaluation.few_shot import best_l2, few_shot, ridge
from moespec.models.evaluation.neighbours import nearest_neighbours
from moespec.spec.errors import ConfigError


def made_up(images: int, width: int, classes: int, *, noise: float = 1.0, seed: int = 0):  # type: ignore[no-untyped-def]
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, images)
    centres = np.random.default_rng(99).standard_normal((classes, width))
    return (centres[labels] + noise * random.standard_normal((images, width))).astype(np.float32), labels


@pytest.mark.parametrize("width", [5, 40])
def test_ridge_solves_the_normal_equations(width: int) -> None:
    """With more images than features and with fewer; features of different sizes, one of them constant."""
    features, labels = made_up(20, width, 3)
    features = features * np.linspace(0.1, 30, width, dtype=np.float32) + 7
    features[:, 0] = 2.0
    held, _ = made_up(200, width, 3, seed=1)
    found = ridge(features, labels, held, classes=3, l2=(0.5, 1024.0))
    mean, deviation = features.mean(0, np.float64), features.astype(np.float64).std(0) + 1e-5
    x, z = (np.c_[(part - mean) / deviation, np.full(len(part), 100.0)] for part in (features, held))
    y = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
    for l2, predictions in zip((0.5, 1024.0), found, strict=True):
        w = scipy.linalg.solve(x.T @ x + l2 * np.eye(width + 1), x.T @ y, assume_a="pos")
        np.testing.assert_array_equal(predictions, (z @ w).argmax(axis=1))
    assert (found[0] != found[1]).any(), "the regularisation changes nothing here"


def test_the_images_of_a_seed() -> None:
    """Those that `numpy.random.default_rng(seed)` puts first, class by class, as the public code has it."""
    train, test = made_up(200, 8, 4, noise=1.5), made_up(300, 8, 4, noise=1.5, seed=1)
    results = few_shot(train, test, classes=4, shots=(1, 5, 500), l2=(1024.0,), seeds=3)
    assert list(results) == ["shots_1", "shots_5", "shots_500"]
    for shots in (1, 5, 500):
        accuracies = []
        for seed in range(3):
            random = np.random.default_rng(seed)
            indices = [random.permutation(np.where(train[1] == label)[0]) for label in range(4)]
            chosen = np.concatenate([own[:shots] for own in indices])
            (predictions,) = ridge(train[0][chosen], train[1][chosen], test[0], classes=4, l2=(1024.0,))
            accuracies.append((predictions == test[1]).mean())
        assert results[f"shots_{shots}"]["by_seed"] == pytest.approx(accuracies, abs=0)
        assert results[f"shots_{shots}"]["accuracy"] == pytest.approx(np.mean(accuracies))
    assert len(set(results["shots_1"]["by_seed"])) > 1
    assert results["shots_500"]["by_seed"] == pytest.approx(results["shots_500"]["by_seed"][:1] * 3), "all are taken"
    assert results["shots_1"]["accuracy"] < results["shots_5"]["accuracy"] < results["shots_500"]["accuracy"]


def test_of_several_l2_the_best_mean_rank() -> None:
    """Not the best mean, which the last column has thanks to one seed."""
    accuracies = np.array([[0.3, 0.4, 0.2], [0.3, 0.4, 0.2], [0.2, 0.3, 0.9]])
    assert accuracies.mean(axis=0).argmax() == 2
    assert best_l2(accuracies) == 1
    train, test = made_up(100, 30, 3, noise=2.0), made_up(300, 30, 3, noise=2.0, seed=1)
    one = {l2: few_shot(train, test, classes=3, shots=(5,), l2=(l2,), seeds=2)["shots_5"] for l2 in (1e-3, 1e3)}
    both = few_shot(train, test, classes=3, shots=(5,), l2=(1e-3, 1e3), seeds=2)["shots_5"]
    assert both == one[both["l2"]]


def test_neighbours_vote_by_their_cosine() -> None:
    train, test = made_up(50, 6, 3, noise=2.0), made_up(40, 6, 3, noise=2.0, seed=1)
    scale = np.linspace(0.1, 9, 50, dtype=np.float32)[:, None]  # lengths do not count
    results = nearest_neighbours((train[0] * scale, train[1]), test, classes=3, neighbours=(1, 7, 50), temperature=0.07)
    for count in (1, 7, 50):
        right = 0
        for feature, label in zip(*test, strict=True):
            cosines = train[0] @ feature / np.linalg.norm(train[0], axis=1) / np.linalg.norm(feature)
            votes = np.zeros(3)
            for index in np.argsort(-cosines)[:count]:
                votes[train[1][index]] += np.exp(cosines[index] / 0.07)
            right += votes.argmax() == label
        assert results[f"neighbours_{count}"] == {"accuracy": right / 40}
    plain = nearest_neighbours(train, test, classes=3, neighbours=(50,), temperature=1e6)["neighbours_50"]
    assert (
        plain["accuracy"] == (test[1] == np.bincount(train[1]).argmax()).mean() != results["neighbours_50"]["accuracy"]
    )
    with pytest.raises(ConfigError, match=r"neighbours=\[51\]: there are 50"):
        nearest_neighbours(train, test, classes=3, neighbours=(51,), temperature=0.07)
