"""Give the quantile of Student's t that makes intervals of few repeats cover 95 %, and the tail of F. Pure."""

from __future__ import annotations

import math

# t(0.975) for 1 to 11 degrees of freedom; from there on the expansion below is right to five digits.
FEW = (12.70620, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139, 2.200985)
NORMAL = 1.9599640  # the same quantile of the normal distribution
PRECISION = 1e-12  # a term of a series below this share of its sum ends it


def t_975(freedom: int) -> float:
    """Return t(0.975) for that many degrees of freedom (n - 1 for n repeats)."""
    if freedom < 1:
        raise ValueError("a spread needs two repeats")
    if freedom <= len(FEW):
        return FEW[freedom - 1]
    z = NORMAL
    # Cornish and Fisher's expansion in 1 / degrees of freedom.
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(each / float(freedom) ** (k + 1) for k, each in enumerate(terms))


def f_tail(f: float, above: int, below: int) -> float:
    """Return how probable a ratio of two variances of one spread is at least f, by their degrees of freedom."""
    x = below / (below + above * f)
    return _beta_share(x, below / 2, above / 2)


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the incomplete beta function, as a share of the whole, by its power series (all terms positive)."""
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta_share(1.0 - x, b, a)  # from the side where the series falls quickly
    if x <= 0:
        return 0.0
    whole = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    term = math.exp(a * math.log(x) + b * math.log1p(-x) - whole) / a
    total, k = term, 0
    while term > PRECISION * total:
        term *= x * (a + b + k) / (a + 1 + k)
        total += term
        k += 1
    return total
