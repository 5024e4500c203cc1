"""The distributions the gate needs: normal, Student t and the beta function behind it.

Pure functions of numbers, standard library only; checked against scipy in tests/test_stats.py.
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, lgamma, log, sqrt
from statistics import NormalDist

_NORMAL = NormalDist()
_FRACTION_STEPS = 100_000
_TINY = 1e-300


def normal_sf(z: float) -> float:
    """Probability that a standard normal exceeds z."""
    return _NORMAL.cdf(-z)


def normal_quantile(p: float) -> float:
    """The z that a standard normal stays below with probability p, 0 < p < 1 (ValueError otherwise)."""
    return _NORMAL.inv_cdf(p)


def beta_cdf(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b), for a, b > 0 and x cut to 0..1.

    Continued fraction by the modified Lentz method (Numerical Recipes, 6.4); about 12 digits
    for a and b up to a thousand, 9 up to a million.
    """
    return _beta_cdf(a, b, min(max(x, 0.0), 1.0), min(max(1.0 - x, 0.0), 1.0))


def _beta_cdf(a: float, b: float, x: float, rest: float) -> float:
    """beta_cdf with 1 - x given too, for a caller who knows it to more digits."""
    if x == 0.0 or rest == 0.0:
        return 0.0 if x == 0.0 else 1.0
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(rest))
    # The fraction converges fast on this side of the mean only; the other side is its mirror image.
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, rest) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    c = 1.0
    d = 1.0 / _apart_from_zero(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _FRACTION_STEPS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 / _apart_from_zero(1.0 + numerator * d)
            c = _apart_from_zero(1.0 + numerator / c)
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def _apart_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def t_sf(t: float, df: float) -> float:
    """Probability that Student's t with df > 0 degrees of freedom exceeds t (infinities allowed)."""
    square = t * t
    whole = df + square
    tail = 0.0 if square == inf else 0.5 * _beta_cdf(df / 2.0, 0.5, df / whole, square / whole)
    return tail if t > 0.0 else 1.0 - tail


@lru_cache(maxsize=1024)
def t_isf(p: float, df: float) -> float:
    """The t that Student's t with df > 0 degrees of freedom exceeds with probability p.

    Inverse of t_sf by bisection, about 12 digits. p <= 0 gives inf and p >= 1 -inf.
    """
    if p <= 0.0:
        return inf
    if p >= 1.0:
        return -inf
    if p > 0.5:
        return -t_isf(1.0 - p, df)
    low, high = 0.0, 1.0
    while t_sf(high, df) > p:
        low, high = high, high * 2.0
        if high == inf:
            return inf
    for _ in range(100):
        middle = low + (high - low) / 2.0
        if middle in (low, high):
            break
        if t_sf(middle, df) > p:
            low = middle
        else:
            high = middle
    return high


def wilson(k: int, n: int, confidence: float = 0.95) -> tuple[float, float] | None:
    """Wilson score interval of a share: k of n. None when n = 0: nothing was measured.

    Two-sided, confidence in 0..1. Keeps sensible ends at 0 and n, where the plain interval has
    no width (Wilson 1927; Brown, Cai and DasGupta 2001). ValueError unless 0 <= k <= n.
    """
    if not 0 <= k <= n:
        raise ValueError(f"not a share: {k} of {n}")
    if n == 0:
        return None
    z = normal_quantile(0.5 + confidence / 2.0)
    share, square = k / n, z * z
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = z / (1 + square / n) * sqrt(share * (1 - share) / n + square / (4.0 * n * n))
    return (0.0 if k == 0 else max(0.0, centre - half), 1.0 if k == n else min(1.0, centre + half))
