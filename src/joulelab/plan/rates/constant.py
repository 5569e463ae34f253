"""Old name of a module: use `joulelab.plan.rates.rate`. To be deleted when `plan queue` has switched."""

from joulelab.plan.rates.rate import Constant

__all__ = ["Constant"]
