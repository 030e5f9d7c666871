"""Threefry against the published answers and another implementation, and what is made of its words."""

import numpy as np
import pytest
from scipy import stats

from moespec import spec

PI = ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3))
ANSWERS = {
    ((0, 0), (0, 0)): (0x6B200159, 0x99BA4EFE),
    ((2**32 - 1,) * 2, (2**32 - 1,) * 2): (0x1CB996FC, 0xBB002BE7),
    PI: (0xC4923A9C, 0x483DF7A0),
}
"""Key and counter, and the answer: DEShawResearch/random123, tests/kat_vectors, threefry2x32 of 20 rounds."""


def unsigned(words):
    return np.asarray(words).astype(np.int64) & (2**32 - 1)


@pytest.mark.parametrize("question", ANSWERS)
def test_published_answers(question):
    key, counter = (np.array(words) for words in question)
    assert tuple(unsigned(spec.threefry(key, counter))) == ANSWERS[question]
    signed = (words.astype(np.uint32).view(np.int32) for words in (key, counter))
    assert tuple(unsigned(spec.threefry(*signed))) == ANSWERS[question], "the bits count, not the sign"


def test_words_are_those_of_their_row_and_column_however_many_are_drawn():
    def words(seed=7, high=0, step=3, first=0, stream=1, rows=6, columns=5):
        return spec.random_words([seed, high, step, first], stream=stream, rows=rows, columns=columns)

    np.testing.assert_array_equal(words(first=2, rows=3), words()[2:5])
    np.testing.assert_array_equal(words(columns=2), words()[:, :2])
    key = spec.threefry([7, 0], [3, 1])
    for row, column in ((0, 0), (4, 3), (5, 4)):
        assert words()[row, column] == spec.threefry(key, [row, column // 2])[column % 2]
    others = [words(), words(seed=8), words(high=1), words(step=4), words(stream=2), words(first=6)]
    assert len(np.unique(others)) == 6 * 30, "no number comes twice"


def test_uniform_numbers_have_24_bits():
    words = spec.random_words([1, 0, 0, 0], stream=0, rows=1000, columns=10)
    uniform = spec.unit_interval(words)
    np.testing.assert_array_equal(uniform, (unsigned(words) >> 8) / 2**24)
    np.testing.assert_array_equal(uniform, uniform.astype(np.float32))
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 0.01
    assert spec.unit_interval(np.array([-1])) == 1 - 2**-24


def test_normal_numbers():
    uniform = spec.unit_interval(spec.random_words([2, 0, 0, 0], stream=0, rows=5000, columns=4)).reshape(-1, 2)
    normal = spec.box_muller(uniform)
    assert stats.kstest(normal.ravel(), "norm").pvalue > 0.01
    assert abs(np.corrcoef(normal.T)[0, 1]) < 0.05
    np.testing.assert_allclose(np.sum(normal**2, axis=-1), -2 * np.log1p(-uniform[:, 0]), rtol=1e-9)
    largest = spec.box_muller([1 - 2**-24, 0.5])[0]
    assert largest == pytest.approx(np.sqrt(48 * np.log(2)), rel=1e-12)
    assert np.abs(spec.box_muller([[0.0, 0.3]])).max() == 0
