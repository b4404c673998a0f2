"""Shifts of images against what photons and turns are known to do."""

import numpy as np
import pytest
from scipy.stats import poisson

import pp_testbed as pt
from pp_testbed.problems.shifts import PHOTONS, rotation, shot_noise


@pytest.mark.parametrize("severity", [1, 5])
def test_shot_noise_has_the_mean_and_the_variance_of_photons(severity):
    """At a quarter of full brightness, where few counts are cut: Poisson's, of 40,960 pixels."""
    x = np.full((40, 32, 32), 64, np.uint8)
    made = shot_noise(x, seed=1, severity=severity) / 255.0
    share, photons, num = 64 / 255.0, PHOTONS[severity], made.size
    counts = np.arange(400)
    weights = poisson.pmf(counts, share * photons)
    values = np.floor(np.minimum(counts / photons, 1.0) * 255.0) / 255.0  # cut, and made bytes
    mean = weights @ values
    sd = np.sqrt(weights @ (values - mean) ** 2)
    assert abs(made.mean() - mean) < 4 * sd / np.sqrt(num)
    assert made.std() == pytest.approx(sd, rel=4 * 1.5 / np.sqrt(num))


def test_rotation_turns_about_the_middle_and_back():
    x = np.random.default_rng(0).integers(256, size=(3, 8, 8), dtype=np.uint8)
    np.testing.assert_array_equal(rotation(x, 90.0), np.rot90(x, axes=(1, 2)))
    np.testing.assert_array_equal(rotation(rotation(x, 90.0), -90.0), x)
    colours = np.stack([x] * 3, axis=-1)
    np.testing.assert_array_equal(rotation(colours, 180.0)[..., 1], np.rot90(x, 2, axes=(1, 2)))


@pytest.mark.parametrize("shift", [lambda x: shot_noise(x, 0), lambda x: rotation(x, 10.0)])
def test_what_is_no_image_is_said(shift):
    with pytest.raises(pt.UsageError, match=r"expected images of bytes"):
        shift(np.zeros((3, 64)))
