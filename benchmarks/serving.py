"""Judge the energy that is attributed to requests against the truth of simulated servers in virtual time.

    python -m benchmarks serving                        100 drawn scenarios: loads, engines, caps, meters
    python -m benchmarks serving --scenarios 20 --each  fewer, with one line for each

Each scenario is a run folder with meters that have flaws; `joulelab serving requests` reads it as any other run. Beside
its error per request stand those of dividing the same energy by tokens alone and by time alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from joulelab.serving.energy_shares import split_by_time, split_by_tokens
from joulelab.serving.request_energy import attribute_run
from joulelab.store.run_reader import open_run
from joulelab.twin.llm_run import GPU, WALL, draw_scenario, write_llm_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.core.quantity import Quantity

SCENARIOS, REQUESTS, FIRST_SEED = 100, 600, 1000
LEAST_INSIDE, MOST_DECODE_U, MOST_ERROR_SHARE = 0.95, 0.10, 0.5
# At the wall, fans and power supplies do not follow the GPUs in proportion: a prefill token's own part of that is known
# less well. Reached on 18 November 2026 with seeds from 6000: 97 % of 35 scenarios.
LEAST_WALL_PREFILL = 0.9
SCOPES = {"gpu": GPU, "wall": WALL}


@dataclass(frozen=True, slots=True)
class Judgement:
    """Hold one scenario: errors (relative) and expanded uncertainties (relative) of its figures at one scope.

    `request_*` are medians over its requests, `inside` is the share of requests whose truth is in their interval.
    """

    seed: int
    scope: str
    requests: int
    prefill_error: float
    prefill_u: float
    decode_error: float
    decode_u: float
    inside: float
    request_u: float
    request_error: float
    tokens_error: float
    time_error: float
    sum_error: float

    @property
    def is_prefill_inside(self) -> bool:
        """Return whether the truth of a prefill token is in its interval."""
        return abs(self.prefill_error) <= self.prefill_u

    @property
    def is_decode_inside(self) -> bool:
        """Return whether the truth of a decode token is in its interval."""
        return abs(self.decode_error) <= self.decode_u


def judge_scenario(seed: int, requests: int = REQUESTS) -> list[Judgement]:
    """Write the run of a drawn scenario, attribute its energy at each metered scope, and compare with the truth."""
    scenario = draw_scenario(seed, requests=requests)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        truth = write_llm_run(Path(folder), scenario)
        for scope in ("gpu", "wall") if len(scenario.meters) > 1 else ("gpu",):
            with open_run(truth.run) as run:
                shares = attribute_run(run, scope=scope)
            point = SCOPES[scope]
            by_id = {one.id: one.find_energy_j(point) for one in truth.requests}
            members = [one for one in shares.requests if by_id[one.request.id] > 0]
            true = np.array([by_id[one.request.id] for one in members])
            given = np.array([one.energy.value for one in members])
            u = np.array([one.energy.expanded or np.inf for one in members])
            active_j = sum(one.energy.value for one in shares.requests)
            plain = [one.request for one in members]
            whole = sum(o.energy.value for o in shares.requests) + shares.idle.value + shares.unassigned_j
            divided = given, split_by_tokens(active_j, plain), split_by_time(active_j, plain)
            model, tokens, time = (float(np.median(np.abs(each / true - 1))) for each in divided)
            prefill_error, prefill_u = _compare(shares.prefill_token, truth.find_prefill_j(point))
            decode_error, decode_u = _compare(shares.decode_token, truth.find_decode_j(point))
            found.append(
                Judgement(
                    seed=seed,
                    scope=scope,
                    requests=len(members),
                    prefill_error=prefill_error,
                    prefill_u=prefill_u,
                    decode_error=decode_error,
                    decode_u=decode_u,
                    inside=float(np.mean(np.abs(given - true) <= u)),
                    request_u=float(np.median(u / given)),
                    request_error=model,
                    tokens_error=tokens,
                    time_error=time,
                    sum_error=abs(whole / shares.measured.value - 1),
                )
            )
    return found


def _compare(quantity: Quantity | None, true: float) -> tuple[float, float]:
    if quantity is None or not quantity.value:
        return 0.0, np.inf
    return quantity.value / true - 1, (quantity.expanded or np.inf) / true


def summarise_scope(rows: Sequence[Judgement]) -> dict[str, float]:
    """Return shares inside and medians of the scenarios of one scope; requests of all scenarios count alike."""

    def take_median(read: Callable[[Judgement], float]) -> float:
        return float(np.median([read(row) for row in rows]))

    pooled = sum(row.inside * row.requests for row in rows) / sum(row.requests for row in rows)
    return {
        "scenarios": len(rows),
        "prefill inside": float(np.mean([row.is_prefill_inside for row in rows])),
        "prefill U": take_median(lambda row: row.prefill_u),
        "prefill error": take_median(lambda row: abs(row.prefill_error)),
        "decode inside": float(np.mean([row.is_decode_inside for row in rows])),
        "decode U": take_median(lambda row: row.decode_u),
        "decode error": take_median(lambda row: abs(row.decode_error)),
        "requests inside": pooled,
        "request U": take_median(lambda row: row.request_u),
        "error by model": take_median(lambda row: row.request_error),
        "error by tokens": take_median(lambda row: row.tokens_error),
        "error by time": take_median(lambda row: row.time_error),
        "worst sum": max(row.sum_error for row in rows),
    }


def print_scope(scope: str, rows: Sequence[Judgement]) -> bool:
    """Print the table of one scope; return whether the promises hold."""
    found = summarise_scope(rows)
    print(f"{scope}: {len(rows)} scenarios, {sum(row.requests for row in rows)} requests")
    print(f"  {'':14s} {'inside':>8s} {'median U':>9s} {'median error':>13s}")
    for name in ("prefill", "decode"):
        inside, u, error = (found[f"{name} {column}"] for column in ("inside", "U", "error"))
        print(f"  J/{name + ' token':12s} {inside:8.1%} {u:9.1%} {error:13.1%}")
    print(
        f"  {'J/request':14s} {found['requests inside']:8.1%} {found['request U']:9.1%} {found['error by model']:13.1%}"
    )
    print(f"  by tokens alone {found['error by tokens']:30.1%}\n  by time alone {found['error by time']:32.1%}")
    print(f"  largest error of a sum of shares: {found['worst sum']:.1e}", flush=True)
    holds = min(found["decode inside"], found["requests inside"]) >= LEAST_INSIDE
    holds &= found["prefill inside"] >= (LEAST_INSIDE if scope == "gpu" else LEAST_WALL_PREFILL)
    holds &= found["decode U"] <= MOST_DECODE_U and found["worst sum"] < 1e-9
    return holds and found["error by model"] <= MOST_ERROR_SHARE * found["error by tokens"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the scenarios; the exit code is 1 if a promise does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks serving", description=__doc__)
    parser.add_argument("--scenarios", type=int, default=SCENARIOS)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--each", action="store_true")
    asked = parser.parse_args(arguments)
    seeds = range(asked.seed, asked.seed + asked.scenarios)
    with ProcessPoolExecutor(asked.workers) as pool:
        rows = [row for rows in pool.map(partial(judge_scenario, requests=asked.requests), seeds) for row in rows]
    if asked.each:
        for row in rows:
            parts = f"{row.prefill_error:+7.1%} ±{row.prefill_u:6.1%}  {row.decode_error:+7.1%} ±{row.decode_u:6.1%}"
            print(f"{row.seed} {row.scope:4s} {row.requests:5d}  {parts}  {row.inside:6.1%} {row.request_error:6.1%}")
    scopes = dict.fromkeys(row.scope for row in rows)
    held = [print_scope(scope, [row for row in rows if row.scope == scope]) for scope in scopes]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
