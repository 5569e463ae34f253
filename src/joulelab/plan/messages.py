"""The messages of `joulelab plan`; each question has its own in its folder, those about runs are here."""

from joulelab.plan.cooling.messages import MESSAGES as COOLING
from joulelab.plan.cost.messages import MESSAGES as COST
from joulelab.plan.queue.messages import MESSAGES as QUEUE
from joulelab.plan.rack.messages import MESSAGES as RACK
from joulelab.plan.rates.messages import MESSAGES as RATES
from joulelab.plan.when.messages import MESSAGES as WHEN

RUNS = {
    "runs.even-spread": (
        "note",
        "{runs}: only the total energy is known, from the accounting of a cluster; it is spread evenly over the time.",
        "",
    ),
    "runs.idle-drifted": (
        "warning",
        "The idle power of run {run} is not certain: {check}.",
        "Measure again with a longer idle time, or give --idle.",
    ),
}

MESSAGES = {**RUNS, **RACK, **COST, **RATES, **WHEN, **QUEUE, **COOLING}
