"""Fit non-negative parameters to the energies of windows by least squares, with a covariance that doubts the model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
MOST_LEVERAGE = 0.9
LAGS = 6  # windows over which errors of the model may be correlated


@dataclass(frozen=True, slots=True)
class WindowFit:
    """Hold the result of least squares: parameters, covariance, and the matrix that turns energies into parameters."""

    values: Floats
    covariance: Floats
    design: Floats
    inverse: Floats

    def solve(self, target: Floats) -> Floats:
        """Return the change of the parameters by a change of the energies, to first order."""
        return np.asarray(self.inverse @ self.design.T @ target)


def fit_nonnegative(design: Floats, target: Floats) -> Floats:
    """Return the non-negative parameters with the least squares (active sets; columns may be all zero)."""
    scale = np.linalg.norm(design, axis=0)
    usable = scale > 0
    scaled = design / np.where(usable, scale, 1.0)
    values, passive = np.zeros(design.shape[1]), np.zeros(design.shape[1], dtype=bool)
    for _ in range(10 * design.shape[1]):
        gradient = scaled.T @ (target - scaled @ values)
        gradient[passive | ~usable] = -np.inf
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-9 * (np.linalg.norm(target) + 1e-30):
            break
        passive[best] = True
        values = _descend(scaled, target, values, passive)
    return np.where(usable, values / np.where(usable, scale, 1.0), 0.0)


def _descend(scaled: Floats, target: Floats, values: Floats, passive: npt.NDArray[np.bool_]) -> Floats:
    """Solve for the passive parameters; step back and fix those that would become negative."""
    while True:
        wanted = np.zeros(len(values))
        wanted[passive] = np.linalg.lstsq(scaled[:, passive], target, rcond=None)[0]
        wrong = passive & (wanted <= 0)
        if not wrong.any():
            return wanted
        step = float(np.min(values[wrong] / (values[wrong] - wanted[wrong])))
        values = values + step * (wanted - values)
        passive &= values > 1e-12
        values = np.where(passive, values, 0.0)


def estimate_covariance(design: Floats, target: Floats, values: Floats, before: Floats, sigma: float) -> WindowFit:
    """Return the fit with its covariance, robust to unequal errors and to errors correlated over LAGS windows.

    Residuals are those of windows that the fit does not know: each is divided by 1 - its leverage (HC3).
    Rows of `before` state what is known of parameters without the fit, in units of `sigma`.
    """
    residual = target - design @ values
    inverse = _invert_normal(np.vstack([design, before]))
    leverage = np.clip(np.einsum("ij,jk,ik->i", design, inverse, design), 0.0, MOST_LEVERAGE)
    scores = design * (residual / (1 - leverage))[:, None]
    middle = scores.T @ scores + before.T @ before * sigma**2
    for lag in range(1, min(LAGS, len(residual) - 1) + 1):
        product = scores[lag:].T @ scores[:-lag]
        middle += (1 - lag / (LAGS + 1)) * (product + product.T)
    return WindowFit(values, np.asarray(inverse @ middle @ inverse), design, inverse)


def _invert_normal(design: Floats) -> Floats:
    """Return the inverse of the normal matrix, with parameters at zero included: their error is that of zero."""
    scale = np.linalg.norm(design, axis=0)
    known = scale > 0
    inverse = np.zeros((design.shape[1], design.shape[1]))
    scaled = design[:, known] / scale[known]
    small = np.linalg.pinv(scaled.T @ scaled, rcond=1e-10)
    inverse[np.ix_(known, known)] = small / np.outer(scale[known], scale[known])
    return inverse
