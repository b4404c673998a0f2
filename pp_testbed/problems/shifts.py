"""What happens to images elsewhere: noise, rotation, other sizes. They are arrays [N, H, W] or [N, H, W, C].

Test inputs that are shifted ask of a method whether it knows that it is elsewhere. Which sets are shifted,
and which of their parts, is for `datasets` to say.
"""

from __future__ import annotations

import numpy as np

from pp_testbed.errors import UsageError

PHOTONS = {1: 60.0, 2: 25.0, 3: 12.0, 4: 5.0, 5: 3.0}  # at full brightness, by severity


def shot_noise(x: np.ndarray, seed: int, severity: int = 5) -> np.ndarray:
    """Images [N, ...] of bytes as few photons show them: Poisson(λ x / 255) / λ, cut at 1.

    Mu and Gilmer, 2019, "MNIST-C"; Hendrycks and Dietterich, 2019, whose severities these are. The published
    files are one draw of this noise, and these are another.

    Examples:
        >>> shot_noise(np.full((1, 2, 2), 255, np.uint8), seed=0).dtype
        dtype('uint8')
    """
    check_pixels(x)
    if severity not in PHOTONS:
        raise UsageError(f"severity is {severity!r}; expected one of {', '.join(map(str, PHOTONS))}")
    photons, generator = PHOTONS[severity], np.random.default_rng(seed)
    made = np.empty_like(x)
    for start in range(0, len(x), 1000):  # counts are of 8 bytes each
        counts = generator.poisson(x[start : start + 1000] / 255.0 * photons)
        made[start : start + 1000] = np.minimum(counts / photons, 1.0) * 255.0
    return made


def rotation(x: np.ndarray, degrees: float) -> np.ndarray:
    """Images [N, H, W, ...] of bytes turned counterclockwise about their middle; what comes in is 0.

    Pixels are interpolated between the four nearest.

    Examples:
        >>> rotation(np.eye(3, dtype=np.uint8)[None] * 255, 90.0)[0].tolist()
        [[0, 0, 255], [0, 255, 0], [255, 0, 0]]
    """
    from scipy.ndimage import affine_transform

    check_pixels(x)
    angle = np.deg2rad(degrees)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    middle = (np.array(x.shape[1:3]) - 1) / 2
    matrix = np.eye(x.ndim - 1)
    matrix[:2, :2] = turn
    offset = np.zeros(x.ndim - 1)
    offset[:2] = middle - turn @ middle
    turned = [
        affine_transform(image.astype(np.float64), matrix, offset, order=1, mode="grid-constant")
        for image in x
    ]
    return np.clip(np.round(np.stack(turned)), 0, 255).astype(x.dtype)


def resized(x: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Images [N, H, W] of bytes with so many pixels, interpolated between the four nearest.

    Examples:
        >>> resized(np.full((1, 2, 2), 7, np.uint8), (3, 3))[0].tolist()
        [[7, 7, 7], [7, 7, 7], [7, 7, 7]]
    """
    from scipy.ndimage import zoom

    check_pixels(x)
    factors = (1.0, *(new / old for new, old in zip(shape, x.shape[1:3], strict=True)))
    made = zoom(x.astype(np.float32), factors, order=1, mode="nearest", grid_mode=True)
    return np.clip(np.round(made), 0, 255).astype(x.dtype)


def check_pixels(x: np.ndarray) -> None:
    """Raise a UsageError unless these are images of bytes."""
    if x.dtype != np.uint8 or x.ndim < 3:
        raise UsageError(f"these are {x.dtype} {x.shape}; expected images of bytes (uint8) [N, H, W]")
