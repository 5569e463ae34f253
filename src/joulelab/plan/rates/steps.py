"""Old name of a module: use `joulelab.plan.rates.rate`. To be deleted when others have switched."""

from joulelab.plan.rates.rate import Steps, check_edges
from joulelab.plan.rates.rate import format_time as shown

__all__ = ["Steps", "check_edges", "shown"]
