"""Give quantiles and tails of Student's t, for fractional degrees of freedom too, and the tail of F. Pure."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

# t(0.975) for 1 to 11 degrees of freedom; from there on the expansion below is right to five digits.
T_975_TABLE = (
    12.70620,
    4.302653,
    3.182446,
    2.776445,
    2.570582,
    2.446912,
    2.364624,
    2.306004,
    2.262157,
    2.228139,
    2.200985,
)
NORMAL_975 = 1.9599640  # the same quantile of the normal distribution
SERIES_PRECISION = 1e-12  # a term of a series below this share of its sum ends it
NORMAL_FREEDOM = (
    200  # degrees of freedom from which on a normal deviate of the same tail is near enough, and the series slow
)
QUANTILE_NODES = 14  # so many nodes in 1 / freedom carry the quantile to seven digits, to five where the level is 1e-5


def t_975(freedom: int) -> float:
    """Return t(0.975) for that many degrees of freedom (n - 1 for n repeats)."""
    if freedom < 1:
        raise ValueError("a spread needs two repeats")
    if freedom <= len(T_975_TABLE):
        return T_975_TABLE[freedom - 1]
    z = NORMAL_975
    # Cornish and Fisher's expansion in 1 / degrees of freedom.
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(each / float(freedom) ** (k + 1) for k, each in enumerate(terms))


def t_tail(t: float, freedom: float) -> float:
    """Return how probable it is that t is at least so far from zero, to either side (two-sided p)."""
    if math.isinf(freedom):
        return math.erfc(abs(t) / math.sqrt(2))
    if freedom > NORMAL_FREEDOM:
        # Wallace's transformation to a normal deviate: p of one per cent is right to four digits.
        normal = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
        return math.erfc(normal / math.sqrt(2))
    return f_tail(t * t, 1, freedom)


def t_quantile(level: float, freedom: float) -> float:
    """Return the t that is passed, to either side, with the probability `level`; from one degree of freedom on.

    It is smooth in 1 / freedom, so it is worked out at a few nodes once per level, and interpolated.
    """
    if freedom < 1:
        raise ValueError("a spread needs two repeats")
    u, log = 1.0 / freedom, 0.0
    for place, coefficient in _nodes(level):
        log = log * (u - place) + coefficient
    return math.exp(log)


@lru_cache(maxsize=256)
def _nodes(level: float) -> tuple[tuple[float, float], ...]:
    """Return nodes in 1 / freedom from 0 to 1, denser at the ends, each with Newton's coefficient, the last first."""
    places = [(1 - math.cos(math.pi * k / (QUANTILE_NODES - 1))) / 2 for k in range(QUANTILE_NODES)]
    rest = [math.log(_solved(level, math.inf if u == 0 else 1 / u)) for u in places]
    for step in range(1, QUANTILE_NODES):
        for k in range(QUANTILE_NODES - 1, step - 1, -1):
            rest[k] = (rest[k] - rest[k - 1]) / (places[k] - places[k - step])
    return tuple(reversed(list(zip(places, rest, strict=True))))


def _solved(level: float, freedom: float) -> float:
    """Return the quantile by halving: exact and slow."""
    if math.isinf(freedom):
        return -NormalDist().inv_cdf(level / 2)
    low, high = 0.0, 1.0
    while t_tail(high, freedom) > level:
        low, high = high, high * 2
    while high - low > SERIES_PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, freedom) > level else (low, middle)
    return (low + high) / 2


def f_tail(f: float, above: float, below: float) -> float:
    """Return how probable a ratio of two variances of one spread is at least f, by their degrees of freedom."""
    x = below / (below + above * f)
    return _beta_share(x, below / 2, above / 2)


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the incomplete beta function, as a share of the whole, by its continued fraction."""
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta_share(1.0 - x, b, a)  # from the side where the fraction converges quickly
    if x <= 0:
        return 0.0
    whole = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    d = 1.0 / (1.0 - x * (a + b) / (a + 1))
    c, value, k, change = 1.0, d, 1, math.inf
    while abs(change - 1.0) > SERIES_PRECISION:
        even = x * k * (b - k) / ((a + 2 * k - 1) * (a + 2 * k))
        odd = -x * (a + k) * (a + b + k) / ((a + 2 * k) * (a + 2 * k + 1))
        d, c = 1.0 / (1.0 + even * d), 1.0 + even / c
        value *= d * c
        d, c = 1.0 / (1.0 + odd * d), 1.0 + odd / c
        change = d * c
        value *= change
        k += 1
    return math.exp(a * math.log(x) + b * math.log1p(-x) - whole) / a * value
