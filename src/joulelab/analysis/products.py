"""Multiply and compare quantities to first order; terms of one source stay one source. Pure."""

from __future__ import annotations

from joulelab.core.quantity import Quantity

ONE = Quantity(1.0)


def product(a: Quantity, b: Quantity) -> Quantity:
    """Return a x b; what both share adds linearly, so a covariance carried by a common source counts twice."""
    terms = {s: u * b.value for s, u in a.terms.items()}
    for source, u in b.terms.items():
        terms[source] = terms.get(source, 0.0) + a.value * u
    return Quantity(a.value * b.value, terms, a.known and b.known)


def surely_more(difference: Quantity) -> bool | None:
    """Return whether a difference is above zero beyond its expanded uncertainty; None where that is not known."""
    return None if difference.expanded is None else difference.value > difference.expanded
