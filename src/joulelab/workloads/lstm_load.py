"""Train an LSTM to forecast a week of electric load: `python -m joulelab.workloads.lstm_load epochs=30`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.run.workload_registry import read_number, read_whole_number
from joulelab.workloads.data.source import MEMORY
from joulelab.workloads.training.launch import run_training
from joulelab.workloads.training.training_parameters import (
    COMMON,
    JUDGED,
    YES_NO,
    check_amounts,
    make_preparation,
    make_training_command,
    read_choice,
)
from joulelab.workloads.training.training_task import describe_training

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.workloads.training.training_task import Task

SUMMARY = "LSTM of 48 units that forecasts a week of electric load from the week before"
STUDY = "HoreKa 2022"
NAME = "lstm-load"
PARAMETERS = {
    **COMMON,
    **JUDGED,
    "predictions": ("temporary", "CSV file for forecasts in MW (4.3 GB); temporary: deleted afterwards; no: none"),
    "target": ("0", "MAPE in percent of the validation at which the training ends; 0: no such end"),
    "data": (
        "auto",
        "folder of train.csv, valid.csv; victoria; synthetic-files; synthetic-memory; auto: $JOULELAB_DATA or the last",
    ),
    "workers": ("0", "processes of each rank that load data; a batch is gathered in a fraction of a millisecond"),
    "epochs": ("30", "how often the data is seen; 0: only predict, with the model of load="),
    "batch": ("64", "samples in a step, of all ranks together"),
    "rate": ("1e-3", "learning rate of Adam"),
    "model": ("lstm", "lstm: the study's; attention: two layers of self-attention over the hours of the week"),
    "units": ("48", "width of the LSTM, or of the attention layers (a multiple of 4)"),
    "cell": ("random", "how the cell state begins: random for each batch, as in the study's code, or zero"),
    "copies": ("5", "how many copies of the training data are predicted on; 0: only train"),
    "test": ("yes", "yes: after a prediction, test data is scored, too, for its MAPE; no: as in the study's job"),
    "countries": ("15", "countries of a stand-in"),
    "hours": (
        "35064",
        "hours of each country that a stand-in trains on; it validates and tests on a quarter, or a year",
    ),
}
PRESETS = {
    "paper": {},
    "victoria": {"data": "victoria", "threads": "1"},
    "smoke": {
        "data": "synthetic-memory",
        "countries": "3",
        "hours": "700",
        "epochs": "2",
        "rate": "0.005",
        "copies": "2",
        "threads": "1",
        "max_seconds": "15",
    },
}
# Windows of two weeks in four years of 15 countries to train on, and in a year to validate and to test with.
PROGRAM = describe_training(
    "windows", valid=("a_year", 1.0), predict=("windows", "copies"), test="a_year", has_loaders=False, writes=True,
    amounts={"windows": 15 * (35064 - 336), "a_year": 15 * (8760 - 336)},
)  # fmt: skip
NOTES = (
    "3.177 MFLOP forward for a sample, over 168 hours; the paper's 16.13 KFLOP are those of the last layer alone.",
    "9,841 parameters; the paper's 9.79 K leave out the last layer.",
    "The paper names 15 countries, 2014-2017 (520,920 samples). The study's notebook has 14, 2015-2017 (363,552).",
    "Load is brought to 0...1 for each country, in validation and test data by their own least and greatest value.",
    "The cell state begins at random in each batch, as in the study's code; cell=zero takes that away.",
    "MAPE is over all hours in MW but those of no load at all (fact hours_of_zero_load), of which no error is a share.",
    "A table with hours that are missing is refused: a sample is two weeks of hours without a gap.",
    "Beside MAPE it stands that of a forecast that just repeats the hour of the week before.",
    "The study trained and predicted in jobs of their own: copies=0 and save; epochs=0 and load that file.",
    "The study's prediction job writes all forecasts as CSV: most of its time. So does lstm-load, in the phase write.",
    "The paper reached a MAPE of 5.65 % on its test data, and predicted on five copies of its training data.",
    "The study's prediction job did not score test data as well; the batch job leaves it out on request.",
    "The preset victoria is the paper's training on 2,400 real hours, tested on 600 later ones.",
    "There its MAPE is 7.5 % on the test hours (seed 0; others to 8.6 %); the week before just repeated has 3.4 %.",
    "On the hours that it trains on it has 7.1 % to 8.8 %: a summer, whose weeks differ; the test hours are an autumn.",
    "Another rate or cell state does not help, nor does more training: 100 epochs, 4.4 % in summer, 13 % in autumn.",
    "On a stand-in of 15 countries and a year, three epochs give about the same as the week before: 4.25 and 4.40 %.",
    "The attention model has 64,849 parameters and 29.45 MFLOP forward; it learns the change from the week before.",
)


def command(parameters: Mapping[str, str]) -> list[str]:
    """Return the words that start it. Raises ConfigError for a wrong value, MissingDependency."""
    return make_training_command("joulelab.workloads.lstm_load", PARAMETERS, parameters, check=read)


def prepare(parameters: Mapping[str, str]) -> list[str] | None:
    """Return the command that writes the stand-in's files, None without them. Raises ConfigError."""
    return make_preparation("joulelab.workloads.lstm_load", parameters, "ai-hero-energy", otherwise=MEMORY)


def read(parameters: Mapping[str, str]) -> None:
    """Check what is not common to all trainings. Raises ConfigError."""
    for key, most in (("batch", 10**6), ("units", 65536), ("countries", 1000)):
        read_whole_number(parameters, key, least=1, most=most)
    check_amounts(parameters, "epochs", "copies")
    read_whole_number(parameters, "hours", least=337, most=10**7)
    read_number(parameters, "rate", least=0, most=1000)
    read_choice(parameters, "cell", ("random", "zero"))
    read_choice(parameters, "test", YES_NO)
    if read_choice(parameters, "model", ("lstm", "attention")) == "attention" and int(parameters["units"]) % 4:
        raise ConfigError(f"units is {parameters['units']}", why="there are four heads", next="give a multiple of 4")


def to_mw(hours: Any, batch: Any) -> Any:
    """Return normalised load (samples x hours x 1) in MW, by the scales of a batch."""
    scale = batch[2]
    return hours * scale[:, 1, None, None] + scale[:, 0, None, None]


def score(forecast: Any, batch: Any) -> dict[str, float]:
    """Return sums of relative errors in MW over the hours of a batch: the model's, and those of the week before.

    Hours of no load are left out: no error is a share of nothing.
    """
    past, future, _ = batch
    true, forecast, before = (to_mw(hours, batch) for hours in (future, forecast, past))
    some = true != 0
    relative = [((guess - true)[some] / true[some]).abs().sum() for guess in (forecast, before)]
    return {"error": float(relative[0]), "error_last_week": float(relative[1]), "hours": float(some.sum())}


def quality(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the mean errors in percent of what was scored."""
    if not sums.get("hours"):
        return {}
    names = {"mape_pct": "error", "mape_last_week_pct": "error_last_week"}
    return {name: 100 * sums[key] / sums["hours"] for name, key in names.items()}


def task(given: Mapping[str, str]) -> Task:
    """Describe the training."""
    import torch
    from torch.nn.functional import mse_loss

    from joulelab.workloads.data import load
    from joulelab.workloads.models.attention import AttentionForecaster
    from joulelab.workloads.models.lstm import LoadForecaster
    from joulelab.workloads.training.training_task import Task

    read(given)
    is_lstm, units = given["model"] == "lstm", int(given["units"])
    countries, hours, seed = (int(given[key]) for key in ("countries", "hours", "seed"))
    data = load.open_load(given["data"], countries=countries, hours=hours, seed=seed)
    zeros = sum(part.zeros for part in (data.train, data.valid, data.test) if part is not None)
    data = data if given["test"] == "yes" else replace(data, test=None)
    predicted_on = "train" if data.test is None else "test"
    return Task(
        model=lambda: LoadForecaster(units, given["cell"]) if is_lstm else AttentionForecaster(units, load.WEEK),
        data=data,
        loss=lambda model, batch: mse_loss(model(batch[0]), batch[1]),
        optimizer=lambda model, _: (torch.optim.Adam(model.parameters(), lr=float(given["rate"])), None),
        example=lambda device: tuple(torch.zeros(1, load.WEEK, 1, device=device) for _ in range(2)),
        amounts=lambda batch: {"samples": len(batch[0])},
        score=score,
        quality=quality,
        rows=lambda forecast, batch: to_mw(forecast, batch)[..., 0],
        columns=tuple(f"hour_{hour}" for hour in range(1, load.WEEK + 1)),
        is_lower_better=True,
        batch=int(given["batch"]),
        epochs=int(given["epochs"]),
        predict_on="train",
        predict_times=int(given["copies"]),
        drop_last=True,
        collate=load.collate_weeks,
        facts={
            "model": given["model"],
            "units": units,
            "cell": given["cell"],
            "hours_of_zero_load": zeros,
            "scored_on": predicted_on if int(given["copies"]) else "valid",
        },
    )


if __name__ == "__main__":
    sys.exit(run_training(NAME, PARAMETERS, task, PRESETS))
