"""A training ends cleanly at the limit of its run: after a step, saved, and the script goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.cli.entry import JOULELAB
from tests.cli.test_run_limit import METER

from joulelab.integrations import training
from joulelab.integrations.training import LimitStop, TrainingMeasurement
from joulelab.run.energy_limit import FILE, RemainingLimit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LEFT = RemainingLimit("2 kWh", 0.5, 1.0, "kWh", 3.6e6)


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file in which the guard of a run publishes what is left; the handler of SIGTERM is restored."""
    monkeypatch.setenv("JOULELAB_RUN", str(tmp_path))
    monkeypatch.setattr("joulelab.run.energy_limit.FRESH_S", 0.0)
    monkeypatch.setattr(training, "ASK_RANKS_EVERY", 2)
    before = signal.getsignal(signal.SIGTERM)
    publish(tmp_path / FILE)
    yield tmp_path / FILE
    signal.signal(signal.SIGTERM, before)


def publish(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(asdict(LEFT) | changes))


def test_the_signal_of_the_limit_ends_the_training_after_its_step(limit: Path) -> None:
    others: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: others.append(number))
    mine = signal.getsignal(signal.SIGTERM)
    stop = LimitStop()
    assert not stop.is_reached()
    os.kill(os.getpid(), signal.SIGTERM)  # of somebody else
    assert (others, stop.is_reached()) == ([signal.SIGTERM], False)
    publish(limit, is_reached=True)
    os.kill(os.getpid(), signal.SIGTERM)
    assert (len(others), stop.is_reached()) == (1, True)
    os.kill(os.getpid(), signal.SIGTERM)  # a second one is not of the limit
    assert len(others) == 2
    stop.close()
    assert signal.getsignal(signal.SIGTERM) == mine


def test_a_signal_that_comes_after_the_training_is_taken_too(limit: Path) -> None:
    others: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: others.append(number))
    mine = signal.getsignal(signal.SIGTERM)
    stop = LimitStop()
    publish(limit, is_reached=True)
    assert stop.is_reached()  # it asked before the signal came
    stop.close()
    os.kill(os.getpid(), signal.SIGTERM)
    assert not others
    assert signal.getsignal(signal.SIGTERM) == mine


def test_with_another_action_the_handler_stays(limit: Path) -> None:
    publish(limit, then="touch stop")
    before = signal.getsignal(signal.SIGTERM)
    stop = LimitStop()
    assert signal.getsignal(signal.SIGTERM) == before
    publish(limit, then="touch stop", is_reached=True)
    assert stop.is_reached()
    stop.close()


def test_ranks_stop_at_the_same_step(limit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of the others counts, and only at every second step here."""
    flags: list[list[int]] = []

    def all_reduce(flag: Any, **_: str) -> None:
        flags.append(flag.values)
        flag.values = [1]

    def make_tensor(values: list[int], device: str) -> Any:
        tensor = SimpleNamespace(values=values, device=device)
        tensor.item = lambda: tensor.values[0]
        return tensor

    fake = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 2, get_backend=lambda: "gloo",
        all_reduce=all_reduce, ReduceOp=SimpleNamespace(MAX="max"),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch.distributed", fake)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(tensor=make_tensor))  # type: ignore[arg-type]
    stop = LimitStop()
    assert [stop.is_reached() for _ in range(4)] == [False, True, False, True]
    assert flags == [[0], [0]]
    fake.get_world_size = lambda: 1
    assert not stop.is_reached()
    stop.close()


def test_a_training_without_a_limit_never_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOULELAB_RUN", raising=False)
    assert not TrainingMeasurement(log="none", summary=False).has_reached_limit()


SCRIPTS = {
    "huggingface": """
import os, torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from joulelab.integrations.huggingface import JoulelabCallback
class Texts(torch.utils.data.Dataset):
    def __len__(self): return 10**6
    def __getitem__(self, k): return {"input_ids": torch.arange(6), "labels": torch.arange(6)}
shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=2, **shape))
given = TrainingArguments("out", use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no")
trainer = Trainer(model, given, train_dataset=Texts(), callbacks=[JoulelabCallback()])
trainer.train()
assert 0 < trainer.state.global_step < 10**5
print("saved", any(name.startswith("checkpoint-") for name in os.listdir("out")))
""",
    "lightning": """
import os, torch, lightning.pytorch as pl
from joulelab.integrations.lightning import JoulelabCallback
class Net(pl.LightningModule):
    def __init__(self): super().__init__(); self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _): return self.layer(batch).mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.01)
off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
trainer = pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[JoulelabCallback()], **off)
trainer.fit(Net(), torch.utils.data.DataLoader(torch.ones(10**6, 4)))
assert 0 < trainer.global_step < 10**6
print("saved", os.path.exists("stopped-at-limit.ckpt"))
""",
    "keras": """
import os; os.environ["KERAS_BACKEND"] = "torch"
import numpy as np, keras
from joulelab.integrations.keras import JoulelabCallback
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)]); model.compile("sgd", "mse")
model.fit(np.ones((10**6, 4)), np.ones((10**6, 1)), batch_size=1, verbose=0, callbacks=[JoulelabCallback()])
print("saved", os.path.exists("stopped-at-limit.keras"))
""",
}


@pytest.mark.campaign
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_framework_saves_and_stops(name: str, tmp_path: Path) -> None:
    (tmp_path / "steady.py").write_text(METER)
    (tmp_path / "joulelab.toml").write_text(f'[meters.steady]\nmeter = "{tmp_path / "steady.py"}"\n')
    environ = os.environ | {"JOULELAB_RUNS": str(tmp_path / "runs"), "JOULELAB_CONFIG": str(tmp_path / "joulelab.toml")}
    command = [
        *JOULELAB,
        "run",
        "--meter",
        "steady",
        "--stop-at",
        "train=3kJ",
        "--",
        sys.executable,
        "-c",
        SCRIPTS[name],
    ]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert "saved True" in done.stdout
    assert "is reached: the training saves its state and stops" in done.stderr
