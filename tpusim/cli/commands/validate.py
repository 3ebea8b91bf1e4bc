"""The command `tpusim validate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.console import Console

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.files import probe
from tpusim.cli.commands.plot import write_pictures
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.options import FormatOption
from tpusim.cli.screen import Meter
from tpusim.cli.terminal import errors_reported, interruption_told, say, show
from tpusim.report.plots.formats import known_formats
from tpusim.report.tables import validation_tables as tables
from tpusim.study.validation.cases import SET_NAMES, NumberSet, number_sets
from tpusim.study.validation.compare import Comparison, compare

EXAMPLE = "Example: tpusim validate --set-of-numbers vgg16"


def validate(
    sets: Annotated[
        list[str] | None,
        typer.Option("--set-of-numbers", metavar="NAME", help=f"One of {', '.join(SET_NAMES)}. Repeatable."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Change a field of the machine first. Repeatable."),
    ] = None,
    json: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Write every row as JSON; - is stdout, tables go to stderr.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Draw parity and errors.")] = None,
    formats: FormatOption = None,
) -> None:
    """Compare cycles with what is known of the chip: estimates of Google's compiler, and measurements.

    A single set is shown row by row.
    """
    with errors_reported(), interruption_told():
        chosen, kinds = _chosen(sets or []), known_formats(formats)
        output = JsonOutput(json)
        output.check()
        for stem in dict.fromkeys(each.picture for each in chosen) if out else ():
            probe(Path(str(out)) / f"{stem}.png", make_folder=True)
        comparisons = _compared(chosen, changes or [])
        output.put(tables.to_json(comparisons))
        _report(comparisons, output.words_to)
        if out:
            _draw(comparisons, out, kinds, output.words_to)


def _chosen(names: Sequence[str]) -> list[NumberSet]:
    known = number_sets()
    for name in names:
        if name not in known:
            raise InputError(
                f"--set-of-numbers: no set {name!r}{did_you_mean(name, known) or ';'} there is {', '.join(known)}"
            )
    return [known[name] for name in dict.fromkeys(names)] or [*known.values()]


def _compared(chosen: Sequence[NumberSet], changes: Sequence[str]) -> list[Comparison]:
    with Meter(sum(len(each.cases) for each in chosen)) as meter:
        return compare(chosen, changes, meter.show)


def _report(comparisons: Sequence[Comparison], stream: TextIO) -> None:
    for comparison in comparisons if len(comparisons) == 1 else ():
        show(stream, tables.rows_table(comparison), "")
    console = Console(file=stream)
    width = console.width if console.is_terminal else None
    show(stream, tables.summary_table(comparisons, width), "", tables.LEGEND)


def _draw(comparisons: Sequence[Comparison], out: Path, kinds: Sequence[str], stream: TextIO) -> None:
    # Here, because matplotlib takes longer to import than a comparison of one set.
    from tpusim.report.plots.validation_plots import plots

    for path in write_pictures(out, plots(comparisons), kinds):
        say(stream, str(path))
