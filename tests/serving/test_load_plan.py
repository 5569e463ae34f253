"""Loads are planned: arrivals, lengths, prompts and traces."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from joulelab.core.errors import ConfigError
from joulelab.serving.commands import _make_load_words, choose_exit_code
from joulelab.serving.load_plan import (
    Arrival,
    LoadLevel,
    PromptSource,
    TokenLengths,
    make_rng,
    parse_levels,
    read_prompts,
    read_trace,
)
from joulelab.serving.load_steps import LoadSummary

if TYPE_CHECKING:
    from pathlib import Path


def draw(level: LoadLevel, count: int, seed: int = 0) -> list[float]:
    return [arrival.at_s for arrival in itertools.islice(level.list_arrivals(make_rng(seed, level)), count)]


def test_arrivals_have_their_rate_and_repeat_with_their_seed() -> None:
    fixed, poisson = LoadLevel("rate", 4.0, "fixed"), LoadLevel("rate", 4.0)
    assert draw(fixed, 3) == [0.25, 0.5, 0.75]
    times = draw(poisson, 4000)
    assert times[-1] == pytest.approx(1000, rel=0.06)  # four standard errors
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)
    assert draw(poisson, 20) == times[:20] != draw(poisson, 20, seed=1)


def test_random_prompts_have_one_word_per_token_and_begin_differently() -> None:
    source, rng = PromptSource(lengths=(TokenLengths(200, 50), TokenLengths(10))), make_rng(0, LoadLevel("rate", 1.0))
    prompts = [source.next_prompt(rng, Arrival(0.0)) for _ in range(300)]
    lengths = [len(prompt.text.split()) for prompt in prompts]
    assert sum(lengths) / 300 == pytest.approx(200, abs=12)
    assert 30 < (sum((n - 200) ** 2 for n in lengths) / 300) ** 0.5 < 70
    assert {prompt.output_tokens for prompt in prompts} == {10}
    assert len({prompt.text[:20] for prompt in prompts}) == 300
    traced = source.next_prompt(rng, Arrival(0.0, 7, 3))
    assert (len(traced.text) / 4, traced.output_tokens) == (7, 3)


def test_prompts_and_traces_are_read(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(
        '{"prompt": "a", "output_tokens": 5, "user": "u", "labels": {"team": "x"}, "id": "q1"}\n\n'
        '{"messages": [{"role": "user", "content": "b"}]}\n"c"\n'
    )
    first, chat, text = read_prompts(tmp_path / "p.jsonl", "chat")
    assert first.make_body("completions") == {"prompt": "a", "max_tokens": 5, "user": "u"}
    assert first.list_labels() == {"user": "u", "team": "x"}
    assert chat.make_body("chat") == {"messages": [{"role": "user", "content": "b"}]}
    assert text.make_body("chat") == {"messages": [{"role": "user", "content": "c"}]}
    own, azure, mooncake = (tmp_path / name for name in ("own.jsonl", "azure.csv", "mooncake.jsonl"))
    own.write_text('{"t": 5.5, "prompt_tokens": 10}\n{"t": 5, "output_tokens": 3}\n')
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    mooncake.write_text('{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [1]}\n')
    assert read_trace(own).trace == (Arrival(0.0, None, 3), Arrival(0.5, 10, None))
    assert read_trace(azure).trace[1].at_s == pytest.approx(4.314579)
    assert read_trace(azure).trace[0].prompt_tokens == 374
    assert read_trace(mooncake).trace == (Arrival(0.0, 6955, 52),)


def test_wrong_plans_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    rows: list[tuple[Any, str, str]] = [
        (lambda: parse_levels("rate", "1,x"), "", "config.load-level"),
        (lambda: parse_levels("concurrency", "1.5"), "", "config.load-level"),
        (lambda: parse_levels("rate", "0"), "", "config.load-level"),
        (lambda: TokenLengths.parse("5:x", "here"), "", "config.token-lengths"),
        (lambda: TokenLengths.parse("0", "here"), "", "config.token-lengths"),
        (lambda: read_prompts(file, "chat"), "", "config.no-prompts"),
        (lambda: read_prompts(file, "chat"), "{", "config.not-json"),
        (lambda: read_prompts(file, "chat"), "3", "config.no-prompt"),
        (lambda: read_prompts(file, "chat"), "{}", "config.no-prompt"),
        (lambda: read_prompts(file, "chat"), '{"prompt": "a", "output_tokens": 0}', "config.no-prompt"),
        (lambda: read_prompts(file, "chat"), '{"prompt": "a", "labels": 3}', "config.no-prompt"),
        (lambda: read_prompts(file, "completions"), '{"messages": [{"role": "user"}]}', "config.no-prompt"),
        (lambda: read_prompts(tmp_path / "no", "chat"), "", "config.unreadable"),
        (lambda: read_trace(file), "", "config.no-trace"),
        (lambda: read_trace(file), '{"prompt_tokens": 3}', "config.no-arrival"),
        (lambda: read_trace(file), '{"t": "soon"}', "config.no-arrival"),
        (lambda: read_trace(file), '{"t": 1, "prompt_tokens": -3}', "config.no-arrival"),
        (lambda: read_trace(file), "[1]", "config.no-arrival"),
    ]
    wrong = []
    for call, text, code in rows:
        file.write_text(text)
        try:
            wrong.append((text, call()))
        except ConfigError as error:
            if error.code != code:
                wrong.append((text, error.code))
    assert not wrong


def test_a_failed_request_is_exit_code_1_unless_it_is_allowed() -> None:
    rows = [
        (LoadSummary(ok=5), False, 0),
        (LoadSummary(ok=5, failed={"refused": 1}), False, 1),
        (LoadSummary(ok=5, failed={"refused": 1}), True, 0),
        (LoadSummary(failed={"refused": 5}), True, 1),
        (LoadSummary(ok=5, stopped="server-gone"), True, 1),
        (LoadSummary(ok=5, failed={"cancelled": 2}, stopped="interrupted"), False, 130),
    ]
    assert [choose_exit_code(summary, is_allowed=allowed) for summary, allowed, _ in rows] == [r[2] for r in rows]
    given = {"url": "http://s", "rate": "2", "allow_failed": True, "headers": (("a", "b"),), "seed": 0}
    words = _make_load_words(given)
    assert words[-7:] == ("--rate", "2", "--header", "a=b", "--seed", "0", "--allow-failed")
    assert "--allow-failed" not in _make_load_words(given | {"allow_failed": False})
