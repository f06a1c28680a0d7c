"""Densities and distribution functions that the posterior weighs worlds by."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def heavy_tail(z: Floats) -> Floats:
    """Student's t with 4 degrees of freedom, up to a constant: one bad reading does not rule every world out."""
    return (1 + z * z / 4) ** -2.5


def normal_cdf(z: Floats) -> Floats:
    """Normal distribution function by Abramowitz and Stegun 7.1.26 (error < 2e-7)."""
    x = np.abs(z) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    half = 0.5 * poly * np.exp(-x * x)
    return np.where(z >= 0, 1 - half, half)
