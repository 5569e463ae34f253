"""Give what jobs cost or emit as plain data, units in the names of keys. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulelab.plan.cost.work import Planned

if TYPE_CHECKING:
    from joulelab.core.quantity import Quantity
    from joulelab.plan.cost.entries import Books, Entry
    from joulelab.plan.cost.statement import Statement


def books_data(books: Books) -> dict[str, Any]:
    """Return the whole answer; amounts are in `unit` (g of CO2e, or a currency)."""
    return {
        "purpose": books.purpose,
        "unit": books.unit,
        "kind": books.entries[0].account.label.kind,
        "simulated": bool(books.twins),
        "twins": books.twins,
        "entries": [_entry(books, entry) for entry in books.entries],
        "total": {site: amount.to_json() for site, amount in books.total.items()},
        "equal": [
            {
                "site": even.site,
                "a": even.a,
                "b": even.b,
                "rate": _plain(even.rate),
                "saver": even.saver,
                "ahead": even.ahead,
            }
            for even in books.evens
        ],
        "notes": list(books.notes),
    }


def _entry(books: Books, entry: Entry) -> dict[str, Any]:
    job, account, against, hours = entry.job, entry.account, books.against(entry), entry.job.node_hours
    return {
        **_job(entry),
        "energy_kwh": account.energy_kwh.to_json(),
        "pue": entry.site.overhead.to_json() if entry.site.pue is not None else None,
        "moved_kwh": _plain(entry.moved_kwh),
        "site_kwh": account.site_kwh.to_json(),
        "amount": account.amount.to_json(),
        "rate": account.label.to_json(),
        "mean_rate": account.mean_rate,
        "rate_uncertainty_included": account.rate_known,
        "rated": _rated(entry),
        "purchase": _share(entry),
        "charges": dict(entry.charges),
        "whole": entry.whole.to_json(),
        "per": {kind: entry.per(kind).to_json() for kind in job.done},
        "per_node_hour": (entry.whole / hours).to_json() if hours is not None and hours.value > 0 else None,
        "planned": _planned(job.profile) if isinstance(job.profile, Planned) else None,
        "against_first_site": None
        if against is None
        else {"difference": against[0].to_json(), "ratio": _plain(against[1])},
        "slots": [
            {"since_utc_s": s.since_s, "until_utc_s": s.until_s, "energy_j": s.energy.value, "rate": s.rate}
            for s in account.slots
        ],
        "notes": list(entry.notes),
    }


def _job(entry: Entry) -> dict[str, Any]:
    job = entry.job
    return {
        "name": job.name,
        "site": entry.site.name,
        "node": None if job.kind is None else job.kind.name,
        "runs": list(job.runs),
        "twins": list(job.twins),
        "simulated": bool(job.twins),
        "measured_at": job.side,
        "scopes": list(job.scopes),
        "meters": list(job.meters),
        "nodes": job.nodes,
        "spread_evenly": job.even,
        "accounted": job.covers,
        "start_utc_s": entry.account.start_utc_s,
        "duration_s": job.profile.duration_s,
    }


def _rated(entry: Entry) -> dict[str, Any] | None:
    plate, account = entry.job.profile.nameplate, entry.account
    if plate is None:
        return None
    return {
        "rated_w": plate.watts,
        "of": plate.of,
        "source": plate.source,
        "energy_kwh": account.rated_kwh,
        "amount": account.rated_amount,
        "ratio": _plain(plate.ratio),
    }


def _share(entry: Entry) -> dict[str, Any] | None:
    share = entry.share
    if share is None:
        return None
    return {
        "amount": share.amount.to_json(),
        "per_node_hour": share.per_node_hour,
        "node_hours": share.node_hours.to_json(),
        "said": share.said,
    }


def _planned(planned: Planned) -> dict[str, Any]:
    return {
        "unit": planned.work.unit,
        "amount": planned.work.amount,
        "nodes": planned.nodes,
        "time_s": planned.time.to_json(),
        "highest_w": planned.highest_w,
        "steps": [
            {
                "axis": step.axis,
                "from": step.since,
                "to": step.until,
                "time": step.time.to_json(),
                "energy": step.energy.to_json(),
                "how": step.how,
                "said": step.said,
            }
            for step in planned.steps
        ],
        "how": _how(planned),
    }


def _how(planned: Planned) -> str:
    """Return the weakest of what its steps are: measured, interpolated or assumed."""
    hows = {step.how for step in planned.steps}
    return "assumed" if "assumed" in hows else "interpolated" if "interpolated" in hows else "measured"


def statement_data(statement: Statement, text: str, latex: str) -> dict[str, Any]:
    """Return a statement: its wording, and its figures."""
    return {
        "site": statement.site.name,
        "text": text,
        "latex": latex,
        "nodes": None if statement.nodes is None else list(statement.nodes),
        "energy_kwh": statement.energy_kwh.to_json(),
        "site_kwh": statement.site_kwh.to_json(),
        "amount": statement.amount.to_json(),
        "purchase": _plain(statement.share),
        "not_included": list(statement.excluded),
        "simulated": bool(statement.twins),
        "sci": None
        if statement.sci is None
        else {
            "g_per_unit": statement.sci.value.to_json(),
            "unit": statement.sci.unit,
            "embodied_included": statement.sci.embodied,
        },
    }


def _plain(q: Quantity | None) -> dict[str, Any] | None:
    return None if q is None else q.to_json()
