"""The messages of `joulelab plan`; each question has its own in its folder."""

from joulelab.plan.cooling.messages import MESSAGES as COOLING
from joulelab.plan.cost.messages import MESSAGES as COST
from joulelab.plan.queue.messages import MESSAGES as QUEUE
from joulelab.plan.rack.messages import MESSAGES as RACK
from joulelab.plan.rates.messages import MESSAGES as RATES
from joulelab.plan.when.messages import MESSAGES as WHEN

MESSAGES = {**RACK, **COST, **RATES, **WHEN, **QUEUE, **COOLING}
