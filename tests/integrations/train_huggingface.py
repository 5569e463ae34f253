"""Trainings by Hugging Face's Trainer, as the tests start them: in a run, alone and failing; or one of two ranks."""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import tempfile
from pathlib import Path

import torch
from covered import wait_for_readings
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from joulelab.integrations.huggingface import JoulelabCallback
from joulelab.run import marking

LENGTH = 6


class Texts(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(LENGTH) % 7 + k % 3
        return {"input_ids": ids, "labels": ids}


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        if state.global_step == 3:
            raise ValueError("on purpose")


def trainer(callback: JoulelabCallback, *more: TrainerCallback, first=(), **options) -> Trainer:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32, num_key_value_heads=2, **shape))
    given = {"num_train_epochs": 2, "per_device_train_batch_size": 4, "per_device_eval_batch_size": 4}
    given |= {"logging_strategy": "no"} | options
    folder = tempfile.mkdtemp(dir=os.environ["SCRATCH"])
    arguments = TrainingArguments(folder, use_cpu=True, report_to=[], disable_tqdm=True, seed=1, **given)
    callbacks = [*first, callback, *more]
    return Trainer(model, arguments, train_dataset=Texts(10), eval_dataset=Texts(6), callbacks=callbacks)


class Tracker(TrainerCallback):
    """Stand in for a tracker of `report_to`, whose callback the Trainer lists before those of the user."""

    def __init__(self) -> None:
        self.rows: list[dict[str, float]] = []

    def on_log(self, args, state, control, logs=None, **_):
        self.rows.append(dict(logs))


class Wait(TrainerCallback):
    def on_epoch_end(self, args, state, control, **_):
        wait_for_readings()


def one_process() -> None:
    told = []
    logging.getLogger("joulelab").addHandler(logging.NullHandler(0))
    logging.getLogger("joulelab").handlers[-1].handle = lambda record: told.append(record.getMessage())

    # In the run of `joulelab run`: 10 samples are batches of 4, 4 and 2, in steps of two batches.
    callback, tracker = JoulelabCallback(), Tracker()
    more = {"gradient_accumulation_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
    joined = trainer(callback, Wait(), logging_strategy="epoch", first=[tracker], **more)
    metrics = joined.train().metrics
    joined.predict(Texts(5))
    assert callback.measurement is not None
    assert callback.measurement.run == Path(os.environ["JOULELAB_RUN"])
    found = {"rows": tracker.rows, "history": joined.state.log_history, "metrics": metrics}

    # By itself, as if nobody recorded; one that fails is closed by `with`.
    marking.detach_writer()
    del os.environ["JOULELAB_RUN"], os.environ["JOULELAB_HOST"]
    failing = JoulelabCallback("failing", meters=["nvml"])
    try:
        with failing:
            trainer(failing, Stop(), save_strategy="no", include_num_input_tokens_seen="all").train()
    except ValueError as error:
        found["error"] = str(error)
    found["failing"] = str(failing.measurement.run)
    found["told"] = told
    (Path(os.environ["SCRATCH"]) / "found.json").write_text(json.dumps(found))


def ranks() -> None:
    """Train as one of two ranks: in the run of `joulelab run`, then as if nobody recorded."""
    first = os.environ["LOCAL_RANK"] == "0"
    how = {"ddp_backend": "gloo", "save_strategy": "no", "include_num_input_tokens_seen": "all"}
    trainer(JoulelabCallback(), eval_strategy="epoch", **how).train()
    marking.detach_writer()
    del os.environ["JOULELAB_RUN"], os.environ["JOULELAB_HOST"]
    alone = JoulelabCallback("alone", meters=["nvml"])
    last = trainer(alone, **how)
    last.train()
    assert (alone.measurement is not None) == first
    assert bool(last.model._forward_pre_hooks) is False
    if first:
        found = {"alone": str(alone.measurement.run)}
        (Path(os.environ["SCRATCH"]) / "found.json").write_text(json.dumps(found))
    # Models go first: one that still holds the group when it is destroyed may wait for ever, for a thread that
    # waits for Python's lock.
    del last
    gc.collect()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    ranks() if sys.argv[1:] == ["ranks"] else one_process()
