"""Make power over time as pages hold it, of any length, without a run: a node with GPUs that works in epochs."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from joulelab.report.html import tag
from joulelab.report.page.document import Page, Section, write_profile_figure


def profile(
    duration_s: float = 600.0,
    finest_s: float = 0.1,
    *,
    gpus: int = 8,
    epochs: int = 5,
    raw_s: float = 0.1,
    whole: bool = True,
    gap: bool = True,
    scale: float = 1.0,
    noise: int = 0,
) -> dict[str, Any]:
    """Return a profile with a stack, the whole, one trace per GPU, loads and a temperature."""
    start, stop = -0.08 * duration_s, 1.05 * duration_s
    n = round((stop - start) / finest_s)
    t = start + (np.arange(n) + 0.5) * finest_s
    random = np.random.default_rng(noise)
    busy = (t > 0) & (t < duration_s)
    beat = 0.82 + 0.18 * np.clip(np.sin(2 * np.pi * t / (duration_s / epochs) * 3), -0.6, 1)
    share = np.where(busy, beat * (1 - np.exp(-np.clip(t, 0, None) / (0.01 * duration_s))), 0.0)
    load = share + np.where(busy, 0.03 * random.standard_normal(n), 0.0)
    gpu = gpus * (70.0 + 560.0 * scale * load.clip(0))
    cpu = 180.0 + 160.0 * share + 8 * random.standard_normal(n)
    dram = 40.0 + 22.0 * share
    rest = 420.0 + 0.09 * gpu + 10 * random.standard_normal(n)
    series = [
        _series("gpu", f"gpu ({gpus})", "stack", gpu, 0.05 * gpu, True),
        _series("cpu", "cpu (2)", "stack", cpu, 0.06 * cpu, True),
        _series("dram", "dram (2)", "stack", dram, 0.02 * dram, True),
        _series("rest", "rest", "stack", rest, 0.02 * rest, True),
    ]
    if whole:
        everything = gpu + cpu + dram + rest
        if gap:
            everything[(t > 0.4 * duration_s) & (t < 0.42 * duration_s)] = np.nan
        series.append(_series("node.ac", "node.ac: the wall", "whole", everything, 0.06 * everything, True))
    series += [
        _series(f"gpu:{k}", f"gpu:{k}", "scope", gpu / gpus * (0.97 + 0.01 * k), 20 + 0 * t, False) for k in range(gpus)
    ]
    series += [
        _series("load.gpu", "GPU load", "load", 100 * load.clip(0, 1), 4 + 0 * t, True, "%"),
        _series("load.cpu", "CPU load", "load", 18 + 30 * share, 6 + 0 * t, True, "%"),
        _series("temperature.gpu", "GPU temperature", "temperature", 35 + 40 * share, 1 + 0 * t, False, "degC"),
    ]
    levels = _levels(series, finest_s)
    length = duration_s / epochs
    phases = [
        {"title": "idle", "from_s": start, "to_s": 0.0, "depth": 0},
        {"title": "warm-up", "from_s": 0.0, "to_s": 0.03 * duration_s, "depth": 0},
        {"title": "train", "from_s": 0.03 * duration_s, "to_s": 0.9 * duration_s, "depth": 0},
        {"title": "predict", "from_s": 0.9 * duration_s, "to_s": duration_s, "depth": 0},
    ]
    phases += [
        {
            "title": f"epoch {k}",
            "from_s": max(0.03 * duration_s, k * length),
            "to_s": min(0.9 * duration_s, (k + 1) * length),
            "depth": 1,
        }
        for k in range(epochs)
    ]
    gaps = [{"label": "pdu: no answer", "from_s": 0.4 * duration_s, "to_s": 0.42 * duration_s}] if gap and whole else []
    return {
        "start_utc": "2026-11-16T10:00:00Z",
        "duration_s": duration_s,
        "from_s": start,
        "to_s": start + n * finest_s,
        "finest_s": finest_s,
        "raw_s": raw_s,
        "steps_s": [step for step, _ in levels],
        "counts": [count for _, count in levels],
        "series": [{k: v for k, v in one.items() if k != "now"} for one in series],
        "lines": [
            {"label": f"rated: {gpus} x 700 W", "w": gpus * 700.0, "kind": "rated"},
            {"label": "idle: 1.28 kW", "w": 1280.0, "kind": "idle"},
        ],
        "phases": phases,
        "gaps": gaps,
    }


def _series(
    ident: str, label: str, role: str, mean: np.ndarray, spread: np.ndarray, shown: bool, unit: str = "W"
) -> dict[str, Any]:
    now = (mean, mean - spread, mean + spread)
    return {
        "id": ident,
        "label": label,
        "role": role,
        "unit": unit,
        "shown": shown,
        "mean": [],
        "low": [],
        "high": [],
        "now": now,
    }


def _levels(series: list[dict[str, Any]], finest_s: float) -> list[tuple[float, int]]:
    """Write every level of all series: steps of four, until few are left."""
    levels = []
    step = finest_s
    while True:
        count = len(series[0]["now"][0])
        levels.append((step, count))
        for one in series:
            for kind, values in zip(("mean", "low", "high"), one["now"], strict=True):
                one[kind].append(base64.b64encode(values.astype("<f4").tobytes()).decode())
        if count < 500:
            return levels
        for one in series:
            parts = [np.concatenate([v, np.full(-len(v) % 4, v[-1])]).reshape(-1, 4) for v in one["now"]]
            one["now"] = (parts[0].mean(axis=1), parts[1].min(axis=1), parts[2].max(axis=1))
        step *= 4


def day() -> dict[str, Any]:
    """Return a day at 9.2 s, 13 series: about 3 MB as text."""
    return profile(86400.0, 9.2, gpus=5, epochs=40, raw_s=0.1)


def page_of(
    data: dict[str, Any], *, title: str = "llama2-13b on node07", overlay: bool = False, **addresses: str
) -> Page:
    """Return a page with one chart and something around it."""
    figure = write_profile_figure(
        "power-data", "Mean 4.1 kW over 10 min; the GPUs drew 78 % of it.", overlay=overlay, **addresses
    )
    words = tag("p", "The energy of the run from the GPU to the wall, and how far to trust it.")
    sections = (
        Section("power", "Power over time", figure),
        Section("energy", "Energy by scope", words),
        Section("checks", "Checks", tag("p", "Nothing to object.")),
    )
    return Page(title, "2026-11-16 10:00 UTC, 10 min, simulated", sections, {"power-data": data})
