"""Train LLaVA-1.5-13B on conversations on images: `python -m joulelab.workloads.llava15_13b ranks=8`."""

from __future__ import annotations

import functools
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.run.workload_registry import read_number, read_whole_number
from joulelab.workloads.training.launch import run_training
from joulelab.workloads.training.training_parameters import (
    COMMON,
    YES_NO,
    make_preparation,
    make_training_command,
    read_choice,
)
from joulelab.workloads.training.training_task import describe_training

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulelab.workloads.training.training_task import Task

SUMMARY = "LLaVA-1.5 with Llama2-13b on 665k conversations on images, divided over the GPUs"
STUDY = "BNL 2024"
NAME = "llava15-13b"
RANDOM, AUTO = "random", "auto"
PARAMETERS = {
    **COMMON,
    "data": (
        "auto",
        "a folder with llava_v1_5_mix665k.json, synthetic-files or synthetic-memory; auto: $JOULELAB_DATA, else files",
    ),
    "precision": ("bf16", "fp32, tf32 or bf16 (autocast); the optimizer has fp32 always"),
    "workers": ("4", "processes of each rank that load data"),
    "save": ("no", "the file to save the model to (53 GB); temporary: deleted afterwards; no: it is not saved"),
    "model": ("13b", "13b, 7b or tiny"),
    "weights": (RANDOM, "a folder with a LLaVA of that size in safetensors files; random: none are read"),
    "tokenizer": (AUTO, "a folder with a tokenizer; auto: that of the weights, else a stand-in"),
    "epochs": ("1", "how often the data is seen"),
    "batch": ("128", "samples in a step, of all ranks together"),
    "rate": ("2e-5", "learning rate of AdamW after its warm-up; it falls as a cosine"),
    "warmup_ratio": ("0.03", "share of all steps in which the rate rises"),
    "decay": ("0", "weight decay"),
    "clip": ("1.0", "norm to which gradients are clipped; 0: they are not"),
    "recompute": ("yes", "yes: the inside of a layer is computed again in the backward pass, which saves memory"),
    "text": ("300", "tokens of a text without its image: the mean of synthetic ones, and what FLOP are counted for"),
    "longest": ("2048", "tokens of a sample at most, those of its image among them; the rest is cut off"),
    "samples": ("665298", "synthetic samples"),
    "held_out": ("0", "samples at the end that are not trained on but predicted; 0: train without predicting"),
}
PRESETS = {
    "paper": {},
    "smoke": {
        "data": "synthetic-memory", "precision": "fp32", "workers": "0", "threads": "1", "save": "temporary",
        "model": "tiny", "batch": "4", "rate": "0.005", "text": "112", "samples": "96", "held_out": "8",
        "warmup_steps": "1", "max_steps": "12", "max_seconds": "15",
    },
}  # fmt: skip
PROGRAM = describe_training("samples", predict=("held_out", 1.0))
NOTES = (
    "The tower and the projector stay as they are, as the paper states: 13.017 of 13.351 B parameters are trained.",
    "The paper states DDP. AdamW for 13 B parameters needs 208 GB: fully sharded training (FSDP) stands for it.",
    "The paper does not print epochs: one, as in LLaVA's recipe. It is 5,197 steps.",
    "The paper took 8 hours; the twin bnl-h100, by public rates for this model, takes 8.5.",
    "The paper's table calls its batch tokens; its text calls it pairs of image and question, as here.",
    "AdamW, no weight decay, gradients clipped at 1, recomputing and 2048 tokens are assumed, as in LLaVA's recipe.",
    "Conversations have the format of LLaVA-1.5 (version v1); only answers and the ends after them are learned.",
    "Each rank reads its own rows of the weights from mapped files: no process ever holds the whole model.",
    "FLOP are those of a sample of 576 tokens of image and 300 of text, whatever its length; 300 is an assumption.",
    "Recomputation (a third more) and padding in a batch are not counted as FLOP.",
    "A token is an input of the decoder: parts of images are counted, padding is not.",
    "Batches are drawn from all lengths; LLaVA's recipe puts samples of like length together, which fills up less.",
    "One published record in sixteen has no image; a black one goes through the tower for it.",
    "Records whose image is missing are left out, and counted (images_missing); OCR-VQA's are hard to get.",
    "synthetic-files writes 8,000 records on 2,000 JPEG files of 640 x 480, which come again and again.",
    "Without a tokenizer's folder, texts are cut into pieces of four letters: about as many tokens, but not Llama's.",
)


def command(parameters: Mapping[str, str]) -> list[str]:
    """Return the words that start it. Raises ConfigError for a wrong value."""
    images = () if parameters["data"] == "synthetic-memory" else ("PIL",)
    needs = ("torch", "transformers", *images)
    return make_training_command("joulelab.workloads.llava15_13b", PARAMETERS, parameters, check=read, needs=needs)


def prepare(parameters: Mapping[str, str]) -> list[str] | None:
    """Return the command that writes the stand-in's files, None without them. Raises ConfigError."""
    return make_preparation("joulelab.workloads.llava15_13b", parameters, "llava")


def read(parameters: Mapping[str, str]) -> None:
    """Check what is not common to all trainings. Raises ConfigError."""
    read_choice(parameters, "model", ("13b", "7b", "tiny"))
    read_choice(parameters, "recompute", YES_NO)
    for key, least in (("epochs", 1), ("batch", 1), ("samples", 1), ("held_out", 0)):
        read_whole_number(parameters, key, least=least, most=10**9)
    for key in ("text", "longest"):
        read_whole_number(parameters, key, least=2, most=4096)
    for key, most in (("rate", 1000.0), ("decay", 1000.0), ("clip", 1000.0), ("warmup_ratio", 1.0)):
        read_number(parameters, key, least=0, most=most)
    folder(parameters, "weights", RANDOM)
    folder(parameters, "tokenizer", AUTO)


def folder(parameters: Mapping[str, str], key: str, none: str) -> Path | None:
    """Return a parameter that names a folder, None where it has the word for none. Raises ConfigError."""
    if parameters[key] == none:
        return None
    path = Path(parameters[key]).expanduser()
    if not path.is_dir():
        raise ConfigError(f"{key} is {parameters[key]!r}", why="there is no such folder", next=f"name one, or {none}")
    return path


def share(step: int, steps: int, warmup_ratio: float) -> float:
    """Return the share of the rate at a step: it rises from almost none to all, then falls to none as half a cosine."""
    rising = math.ceil(steps * warmup_ratio)
    if step < rising:
        return (step + 1) / rising
    return (1 + math.cos(math.pi * min((step - rising) / max(steps - rising, 1), 1))) / 2


def quality(sums: Mapping[str, float]) -> dict[str, float]:
    """Return how well tokens were told beforehand, of those that were not trained on."""
    if not sums.get("learned"):
        return {}
    mean = sums["loss"] / sums["learned"]
    return {"perplexity": math.exp(min(mean, 700.0)), "token_accuracy": sums["right"] / sums["learned"]}


def task(given: Mapping[str, str]) -> Task:
    """Describe the training."""
    from joulelab.workloads.data import llava_mix as data
    from joulelab.workloads.models import llava
    from joulelab.workloads.training.training_task import Task

    read(given)
    size, text = llava.SIZES[given["model"]], int(given["text"])
    weights = folder(given, "weights", RANDOM)
    shape = data.Shape(size.pixels, size.image_tokens, size.decoder.vocabulary, text, int(given["longest"]))
    found, facts = data.open_conversations(
        given["data"],
        shape,
        samples=int(given["samples"]),
        tokenizer=_tokenizer(given, weights),
        held_out=int(given["held_out"]),
    )
    _tell_missing(facts)
    return Task(
        model=lambda: llava.build(size, recomputes=given["recompute"] == "yes"),
        data=found,
        loss=llava.loss,
        optimizer=functools.partial(_optimizer, given),
        example=functools.partial(_example, size.image_tokens + text, size.pixels),
        amounts=lambda batch: {"samples": len(batch["ids"]), "tokens": batch["tokens"]},
        forward=llava.forward,
        score=llava.score,
        quality=quality,
        batch=int(given["batch"]),
        epochs=int(given["epochs"]),
        predict_times=1 if int(given["held_out"]) else 0,
        sharded=llava.PARTS,
        fill=lambda model: llava.fill_weights(model, weights, int(given["seed"])),
        clip=float(given["clip"]),
        drop_last=True,
        collate=functools.partial(data.collate_conversations, padding=shape.image_token + 1),
        facts={
            "model": given["model"],
            "weights": given["weights"],
            "recompute": given["recompute"],
            "clip": float(given["clip"]),
            "flop_tokens": size.image_tokens + text,
            **facts,
        },
    )


def _example(tokens: int, pixels: int, device: Any) -> dict[str, Any]:
    """Return a batch of one image with so many pixels a side, and so many tokens with its own."""
    import torch

    ids = torch.zeros(1, tokens, dtype=torch.long, device=device)
    return {
        "ids": ids,
        "labels": ids,
        "pixels": torch.zeros(1, 3, pixels, pixels, dtype=torch.uint8, device=device),
    }


def _tokenizer(given: Mapping[str, str], weights: Path | None) -> Path | None:
    """Return the folder of the tokenizer, None where a stand-in has to do."""
    asked = folder(given, "tokenizer", AUTO)
    if asked is None and weights is not None:
        its_own = any((weights / name).is_file() for name in ("tokenizer.json", "tokenizer.model"))
        return weights if its_own else None
    return asked


def _tell_missing(facts: Mapping[str, str | float]) -> None:
    if facts.get("images_missing") and os.environ.get("RANK", "0") == "0":
        sys.stderr.write(f"joulelab: {NAME}: {facts['images_missing']} records are left out: their image is missing\n")


def _optimizer(given: Mapping[str, str], model: Any, steps: int) -> tuple[Any, Any]:
    import torch

    trained = [p for p in model.parameters() if p.requires_grad]
    found = torch.optim.AdamW(trained, lr=float(given["rate"]), weight_decay=float(given["decay"]))
    ratio: Callable[[int], float] = functools.partial(share, steps=steps, warmup_ratio=float(given["warmup_ratio"]))
    return found, torch.optim.lr_scheduler.LambdaLR(found, ratio)


if __name__ == "__main__":
    sys.exit(run_training(NAME, PARAMETERS, task, PRESETS))
