"""Judge the energy that is attributed to requests over HTTP: a simulated server in real time against its own truth.

    python -m benchmarks serving_http                  five drawn scenarios of about 40 s each
    python -m benchmarks serving_http --scenarios 1

Each scenario is `joulelab serving measure` of a load on `joulelab twin --llm` with drawn parameters; /twin/truth gives
the energy above idle of each request. `benchmarks/serving.py` does the same in virtual time, with many more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.serving import Judgement, _compare, summarise_scope
from joulelab.serving.energy_shares import split_by_time, split_by_tokens
from joulelab.serving.request_energy import attribute_run
from joulelab.store.run_reader import open_run
from joulelab.twin.llm_run import draw_scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

SCENARIOS, FIRST_SEED = 5, 2500
MOST_RATE = 12.0  # requests/s that client and server stand on a busy core
MODELS = ("h100", "a100", "rtx6000")
STEP_S, WARMUP_S = 14, 3
LEAST_INSIDE = 0.95


def run_scenario(seed: int, folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Load the served model of a drawn scenario; return the run's folder and the true requests."""
    scenario = draw_scenario(seed)
    settings = asdict(scenario.parameters)
    factor = min(1.0, MOST_RATE / max(scenario.rates))
    rates = ",".join(f"{rate * factor:.3g}" for rate in scenario.rates[::2])
    lengths = [
        word
        for name, length in (("prompt", scenario.prompt), ("output", scenario.output))
        for word in (f"--{name}-tokens", f"{length.median:.0f}:{length.median * min(length.sigma, 0.5):.0f}")
    ]
    joulelab = [sys.executable, "-m", "joulelab"]
    words = ["twin", "--gpus", str(settings["gpus"]), "--gpu-model", _find_model(scenario.node.gpus[0].name), "--llm"]
    words += ["--llm-set", ",".join(f"{name}={value}" for name, value in settings.items()), "--"]
    inner = [sys.executable, "-m", "benchmarks.serving_http", "--inside", str(folder), "--rate", rates, *lengths]
    inner += ["--seed", str(seed)]
    subprocess.run([*joulelab, *words, *inner], check=True, stdout=subprocess.DEVNULL)
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    (end,) = folder.glob("runs/*/end.json")
    return end.parent, truth["requests"]


def _find_model(name: str) -> str:
    return next(model for model in MODELS if model in name.lower().replace(" ", ""))


def measure_inside(folder: Path, load: Sequence[str]) -> None:
    """Measure a load within the twin, then keep its truth."""
    url = os.environ["JOULELAB_LLM_URL"]
    times = ["--warmup", f"{WARMUP_S}s", "--duration", f"{STEP_S}s", "--no-meter", "rapl"]
    words = [sys.executable, "-m", "joulelab", "serving", "measure", "--url", url, "--runs", str(folder / "runs")]
    subprocess.run([*words, *times, *load], check=True)
    with urllib.request.urlopen(f"{url}/twin/truth", timeout=30) as answer:
        (folder / "truth.json").write_bytes(answer.read())


def judge_run(seed: int, path: Path, true: Sequence[dict[str, Any]]) -> Judgement:
    """Compare the energy of the requests of a run with their truth."""
    with open_run(path) as run:
        shares = attribute_run(run, scope="gpu")
    by_id = {row["request_id"]: row for row in true}
    members = [one for one in shares.requests if one.request.id in by_id]
    rows = [by_id[one.request.id] for one in members]
    energy = np.array([row["prefill_j"] + row["decode_j"] for row in rows])
    given = np.array([one.energy.value for one in members])
    u = np.array([one.energy.expanded or np.inf for one in members])
    active_j, plain = float(given.sum()), [one.request for one in members]
    divided = given, split_by_tokens(active_j, plain), split_by_time(active_j, plain)
    model, tokens, time = (float(np.median(np.abs(each / energy - 1))) for each in divided)
    computed = sum(row["prefill_tokens"] for row in rows)
    decoded = sum(row["output_tokens"] - 1 for row in rows)
    prefill_error, prefill_u = _compare(shares.prefill_token, sum(row["prefill_j"] for row in rows) / computed)
    decode_error, decode_u = _compare(shares.decode_token, sum(row["decode_j"] for row in rows) / decoded)
    whole = sum(one.energy.value for one in shares.requests) + shares.idle.value + shares.unassigned_j
    return Judgement(
        seed=seed, scope="by time" if shares.by_time else "gpu", requests=len(members),
        prefill_error=prefill_error, prefill_u=prefill_u, decode_error=decode_error, decode_u=decode_u,
        inside=float(np.mean(np.abs(given - energy) <= u)), request_u=float(np.median(u / given)),
        request_error=model, tokens_error=tokens, time_error=time, sum_error=abs(whole / shares.measured.value - 1),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the scenarios; the exit code is 1 if fewer than 95 % of the requests are inside their intervals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks serving_http", description=__doc__)
    parser.add_argument("--scenarios", type=int, default=SCENARIOS)
    parser.add_argument("--seed", type=int, default=FIRST_SEED)
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    asked, load = parser.parse_known_args(arguments)
    if asked.inside is not None:
        measure_inside(asked.inside, [*load, "--seed", str(asked.seed)])
        return 0
    print("seed  requests  load    prefill token      decode token     inside   U  model tokens  time  sum", flush=True)
    rows = []
    for seed in range(asked.seed, asked.seed + asked.scenarios):
        with tempfile.TemporaryDirectory() as folder:
            row = judge_run(seed, *run_scenario(seed, Path(folder)))
        parts = f"{row.prefill_error:+7.1%} ±{row.prefill_u:6.1%}  {row.decode_error:+7.1%} ±{row.decode_u:6.1%}"
        errors = f"{row.request_u:5.1%} {row.request_error:5.1%} {row.tokens_error:5.1%} {row.time_error:5.1%}"
        begin = f"{seed}  {row.requests:8d} {os.getloadavg()[0]:5.1f}"
        print(f"{begin}  {parts}  {row.inside:6.1%} {errors} {row.sum_error:.0e}", flush=True)
        rows.append(row)
    found = summarise_scope(rows)
    print(", ".join(f"{name} {value:.3g}" for name, value in found.items()))
    return 0 if found["requests inside"] >= LEAST_INSIDE else 1


if __name__ == "__main__":
    sys.exit(main())
