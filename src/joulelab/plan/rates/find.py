"""Old name of a module: use `joulelab.plan.rates.find_rate`. To be deleted when others have switched."""

from joulelab.plan.rates.find_rate import rate_of

__all__ = ["rate_of"]
