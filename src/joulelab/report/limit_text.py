"""Word the limits of a run: messages while it runs, and the line of its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.quantity import Quantity, add_quantities
from joulelab.report import format as fmt

if TYPE_CHECKING:
    from joulelab.analysis.result import Check, Result
    from joulelab.run.energy_limit import LimitAction, LimitNews

REACHED = "limit.reached"
MOST_ACTION = 40  # letters of a command that runs at the limit


def word_limit_news(news: LimitNews, action: LimitAction) -> str:
    """Return the sentence of one event of a limit."""
    limit = f"limit of {news.limit.name}{f' in {news.limit.phase}' if news.limit.phase else ''}"
    used, energy = format_used(news.used_j, news.limit.name, news.limit.joules)
    after = f"{used}{f', {energy}' if energy else ''} after {fmt.format_duration(news.elapsed_s)}"
    then = fmt.shorten_end(action.name, MOST_ACTION)
    act = f"{then} is sent" if action.signal is not None else f"running: {then}"
    match news.code:
        case "watching":
            counted = f"counted: {fmt.join_scopes(news.covers)}, middle values" if news.covers else "nothing is counted"
            return f"{limit}: {act} when it is reached ({counted})"
        case "near":
            left = "" if news.left_s is None else f"; about {fmt.format_rough_duration(news.left_s)} left"
            share = fmt.format_percent(news.used_j / news.limit.joules, signed=False)
            return f"{share} of the {limit} is used ({after}){left}"
        case "reached":
            return f"the {limit} is reached ({after}): {act}"
        case "lost" if not news.used_j:
            return f"the {limit} cannot be watched: no meter gives readings; the command goes on"
        case "lost":
            return f"the {limit} can no longer be watched: a meter gives no readings; the command goes on"
        case "found":
            return f"the {limit} is watched again ({after})"
        case "killed":
            grace = fmt.format_duration(action.grace_s or 0.0)
            return f"SIGKILL is sent: the command still ran {grace} after its limit"


def list_limit_facts(result: Result) -> list[tuple[str, str]]:
    """Return the line of a limit that was reached: the energy that was used in the end, and how much that is above."""
    check = next((check for check in result.checks if check.code == REACHED), None)
    return [] if check is None else [("limit", _word_reached(check, result))]


def _word_reached(check: Check, result: Result) -> str:
    phase, then = check.texts.get("phase", ""), fmt.shorten_end(check.texts.get("then", ""), MOST_ACTION)
    reached_s, limit_j = float(check.numbers["reached_s"]), float(check.numbers["limit_j"])
    name = f"{check.texts['limit']}{f' in {phase}' if phase else ''}"
    text = f"{name} reached after {fmt.format_duration(reached_s)}, {then}"
    later_s = max(result.duration_s - reached_s, 0.0)
    used = find_used_energy(result, phase)
    if result.state == "live":
        return f"{text}; the command still runs"
    text += f"; it ended {fmt.format_duration(later_s)} later"
    if used is None or limit_j <= 0:
        return text
    over = used - limit_j
    amount, energy = format_used(used.value, check.texts["limit"], limit_j)
    excess, _ = format_used(abs(over.value), check.texts["limit"], limit_j)
    share = fmt.format_percent(abs(over.value) / limit_j, signed=False)
    text += f" with {amount}{f' ({energy})' if energy else ''}"
    return f"{text}, {excess} ({share}) {'above' if over.value >= 0 else 'below'} the limit"


def find_used_energy(result: Result, phase: str = "") -> Quantity | None:
    """Return the energy (J) that counts for a limit: of the run, or of the outermost phases of this name."""
    if not phase:
        return result.energy
    named = {each.number: each for each in result.phases if each.name == phase}
    parents = {each.number: each.parent for each in result.phases}

    def is_inside(number: int | None) -> bool:
        while number is not None:
            if number in named:
                return True
            number = parents.get(number)
        return False

    outer = [result.phase_energy(each) for each in named.values() if not is_inside(each.parent)]
    known = [energy for energy in outer if energy is not None]
    return add_quantities(known) if known and len(known) == len(outer) else None


def format_used(joules: float, limit: str, limit_j: float) -> tuple[str, str]:
    """Return an energy (J) in the unit of a limit (`5 EUR`, `2 kWh`); of money and CO2e also the energy as a text."""
    amount, _, unit = limit.partition(" ")
    try:
        used = float(amount.replace(",", "")) * joules / limit_j
    except (ValueError, ZeroDivisionError):  # a changed file
        unit = ""
    if not unit or unit.endswith("J"):
        return fmt.format_rough(joules, "J"), ""
    if unit.endswith("Wh"):
        return f"{fmt.format_number(used)} {unit}", ""
    return f"{fmt.format_plain(used, 3)} {unit}", fmt.format_joules(joules)
