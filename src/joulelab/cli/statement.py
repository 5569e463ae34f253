"""State energy and CO2e of runs as others ask for it: `joulelab statement RUN...|STUDY --format hf|boamps|sci|text`."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import click

from joulelab.cli.output import load_current_site, print_blocks, print_json
from joulelab.cli.parameters import GroupedCommand, format_examples, json_option, runs_option, studies_option

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.report.energy_statement import StatedFields, StatementFacts

FORMATS = ("text", "hf", "boamps", "sci")
INFRASTRUCTURES = ("publicCloud", "privateCloud", "onPremise", "other")
INFRASTRUCTURE_HELP = f"Infrastructure: {', '.join(INFRASTRUCTURES)}."
POSITIVE = click.FloatRange(min=0, min_open=True)
LABEL_WIDTH = 10
GROUPS = {
    "Hugging Face model card (--format hf)": ("training_type", "location"),
    "BoAmps (--format boamps)": ("stage", "family", "algorithm", "model", "data", "infrastructure"),
    "Software Carbon Intensity (--format sci)": ("per", "embodied_kg", "lifetime_years"),
    "Options": ("form",),
}
EXAMPLES = format_examples(
    "joulelab statement last",
    "joulelab statement last --format hf --training-type fine-tuning",
    "joulelab statement --format sci --per tokens --embodied 1500 --lifetime 5",
    "joulelab statement last --format boamps --stage training \\",
    '    --family "image classification" --algorithm cnn \\',
    "    --data input:image --infra onPremise",
)


@click.command("statement", epilog=EXAMPLES, cls=GroupedCommand, groups=GROUPS)
@click.argument("targets", nargs=-1, metavar="[TARGET]...")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="Plain text, Hugging Face model card, BoAmps report, or SCI.",
)
@click.option("--training-type", default="", metavar="TEXT", help="Pre-training or fine-tuning.")
@click.option("--location", default="", metavar="TEXT", help="Place of the computers.  [default: that of the site]")
@click.option("--stage", default="", metavar="TEXT", help="Stage: training, finetuning, inference, ...")
@click.option("--family", default="", metavar="TEXT", help="Task, such as text classification.")
@click.option("--algorithm", default="", metavar="TEXT", help="Algorithm, such as cnn.")
@click.option("--model", default="", metavar="TEXT", help="Foundation model, such as llama3.1-8b.")
@click.option("--data", multiple=True, metavar="USE:TYPE", help="Data: input:text, output:image, ...; repeatable.")
@click.option("--infra", "infrastructure", type=click.Choice(INFRASTRUCTURES), metavar="KIND", help=INFRASTRUCTURE_HELP)
@click.option("--per", default="", metavar="KIND", help="Unit of work.  [default: the work of the runs]")
@click.option(
    "--embodied", "embodied_kg", type=POSITIVE, metavar="KG", help="CO2e of making all used nodes together, in kg."
)
@click.option("--lifetime", "lifetime_years", type=POSITIVE, metavar="YEARS", help="Lifetime of the nodes.")
@json_option
@runs_option
@studies_option
def command(targets: tuple[str, ...], form: str, as_json: bool, runs: Path, studies: Path, **given: Any) -> None:
    """State energy and CO2e of runs: model card, BoAmps, SCI or text.

    TARGET is a run (an id, a name or a path; by default the last run), several runs, or a study. Energies of several
    runs are added. The text names the measured and the unmeasured parts, and answers Annex XI of the EU AI Act. Nothing
    is guessed: a required field that is not known is an error that names its option.
    """
    from joulelab.cli.cite import gather_named_runs
    from joulelab.report.energy_statement import (
        StatedFields,
        describe_statement,
        gather_statement,
        make_boamps_report,
        make_model_card,
        write_model_card,
    )

    stated = StatedFields(**given | {"infrastructure": given["infrastructure"] or ""})
    results, methods, metas = gather_named_runs(targets or ("last",), runs, studies)
    site = load_current_site()
    facts = gather_statement([result.with_site(site) for result in results], methods, metas)
    if form == "boamps":
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M:%S")
        print_json(make_boamps_report(facts, stated, now))
    elif form == "hf":
        if as_json:
            print_json({"co2_eq_emissions": make_model_card(facts, stated)})
        else:
            click.echo(write_model_card(facts, stated), nl=False)
    elif as_json:
        print_json(describe_statement(facts, stated))
    else:
        _print_text(facts, stated, form)


def _print_text(facts: StatementFacts, stated: StatedFields, form: str) -> None:
    from joulelab.report.energy_statement import AI_ACT, list_ai_act_facts, list_sci_facts, list_text_facts
    from joulelab.report.tables import make_table
    from joulelab.report.terminal import BLANK_LINE, TextLine, list_facts

    if form == "sci":
        print_blocks([list_facts(list_sci_facts(facts, stated), label_width=LABEL_WIDTH)])
        return
    table = make_table(("", "asks for", "answer"), list_ai_act_facts(facts), left=(0, 1, 2))
    lines = list_facts(list_text_facts(facts), label_width=LABEL_WIDTH)
    print_blocks([lines, BLANK_LINE, TextLine(f"{AI_ACT}:"), table])
