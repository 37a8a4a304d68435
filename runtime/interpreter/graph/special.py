"""Functions that NumPy lacks, vectorised, in the element type of their argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Coefficients of fdlibm's s_erf.c, by interval of |x|, from the highest power down.
_NEAR = (  # below 0.84375: erf(x) = x + x * P(x^2) / Q(x^2)
    (
        -2.37630166566501626084e-05,
        -5.77027029648944159157e-03,
        -2.84817495755985104766e-02,
        -3.25042107247001499370e-01,
        1.28379167095512558561e-01,
    ),
    (
        -3.96022827877536812320e-06,
        1.32494738004321644526e-04,
        5.08130628187576562776e-03,
        6.50222499887672944485e-02,
        3.97917223959155352819e-01,
        1.0,
    ),
)
_MIDDLE_VALUE = 8.45062911510467529297e-01
_MIDDLE = (  # below 1.25: erf(x) = _MIDDLE_VALUE + P(x - 1) / Q(x - 1)
    (
        -2.16637559486879084300e-03,
        3.54783043256182359371e-02,
        -1.10894694282396677476e-01,
        3.18346619901161753674e-01,
        -3.72207876035701323847e-01,
        4.14856118683748331666e-01,
        -2.36211856075265944077e-03,
    ),
    (
        1.19844998467991074170e-02,
        1.36370839120290507362e-02,
        1.26171219808761642112e-01,
        7.18286544141962662868e-02,
        5.40397917702171048937e-01,
        1.06420880400844228286e-01,
        1.0,
    ),
)
_FAR = (  # below 1 / 0.35: erfc(x) = exp(-x^2 - 0.5625 + P(1/x^2) / Q(1/x^2)) / x
    (
        -9.81432934416914548592e00,
        -8.12874355063065934246e01,
        -1.84605092906711035994e02,
        -1.62396669462573470355e02,
        -6.23753324503260060396e01,
        -1.05586262253232909814e01,
        -6.93858572707181764372e-01,
        -9.86494403484714822705e-03,
    ),
    (
        -6.04244152148580987438e-02,
        6.57024977031928170135e00,
        1.08635005541779435134e02,
        4.29008140027567833386e02,
        6.45387271733267880336e02,
        4.34565877475229228821e02,
        1.37657754143519042600e02,
        1.96512716674392571292e01,
        1.0,
    ),
)
_FARTHEST = (  # below 6: the same formula
    (
        -4.83519191608651397019e02,
        -1.02509513161107724954e03,
        -6.37566443368389627722e02,
        -1.60636384855821916062e02,
        -1.77579549177547519889e01,
        -7.99283237680523006574e-01,
        -9.86494292470009928597e-03,
    ),
    (
        -2.24409524465858183362e01,
        4.74528541206955367215e02,
        2.55305040643316442583e03,
        3.19985821950859553908e03,
        1.53672958608443695994e03,
        3.25792512996573918826e02,
        3.03380607434824582924e01,
        1.0,
    ),
)


def _polynomial(x: Array, coefficients: Sequence[float]) -> Array:
    """A polynomial at `x`, coefficients from the highest power down (Horner's rule)."""
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total *= x
        total += x.dtype.type(coefficient)
    return total


def _ratio(x: Array, coefficients: tuple[Sequence[float], Sequence[float]]) -> Array:
    return _polynomial(x, coefficients[0]) / _polynomial(x, coefficients[1])


def _erf_near(x: Array) -> Array:
    return x + x * _ratio(x * x, _NEAR)


def _erf_middle(x: Array) -> Array:
    return x.dtype.type(_MIDDLE_VALUE) + _ratio(x - 1, _MIDDLE)


def _erf_beyond(x: Array, coefficients: tuple[Sequence[float], Sequence[float]]) -> Array:
    exponent = _ratio(1 / (x * x), coefficients)
    # exp(-x^2) as exp(-s^2) * exp(-(x - s)(x + s)), s being x cut to sixteenths: s^2 is exact.
    cut = np.trunc(x * 16) / 16
    decay = np.exp(-cut * cut - x.dtype.type(0.5625))
    return 1 - decay * np.exp((cut - x) * (cut + x) + exponent) / x


def _erf_far(x: Array) -> Array:
    return _erf_beyond(x, _FAR)


def _erf_farthest(x: Array) -> Array:
    return _erf_beyond(x, _FARTHEST)


_ERF_BY_INTERVAL: tuple[tuple[float, Callable[[Array], Array]], ...] = (
    (0.84375, _erf_near),
    (1.25, _erf_middle),
    (1 / 0.35, _erf_far),
    (6.0, _erf_farthest),
)
"""Upper end of an interval of |x| -> erf of positive numbers in it."""


def erf(x: Array) -> Array:
    """
    The error function, elementwise, for float32 and float64 in their own arithmetic.

    The rational approximations of Sun's fdlibm, `s_erf.c` (1993), whose error in float64 is below 1 unit in
    the last place; here at most 2 units, in float32 too.
    """
    flat = np.ravel(x)
    size = np.abs(flat)
    result = np.where(np.isnan(size), size, size.dtype.type(1))  # from 6 on, 1 is the nearest number
    interval = np.digitize(size, [end for end, _ in _ERF_BY_INTERVAL])
    for index, (_, function) in enumerate(_ERF_BY_INTERVAL):
        chosen = interval == index
        if chosen.any():
            result[chosen] = function(size[chosen])
    return np.copysign(result, flat).reshape(x.shape)
