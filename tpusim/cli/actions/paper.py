"""The action of `tpusim paper`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.api.pictures import write_captions
from tpusim.base.files import make_folder, write
from tpusim.cli.actions.sweep import metered
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import present, say, show
from tpusim.report.tables import paper as tables
from tpusim.study.paper.design import unverified
from tpusim.study.paper.exhibit import Exhibit
from tpusim.study.paper.run import FILE, MAKERS, PointPlan, chosen
from tpusim.study.sweep.parcels import simulated
from tpusim.study.sweep.store import Store, model_version, sources_digest
from tpusim.study.worker_processes import Processes

if TYPE_CHECKING:
    from tpusim.report.plots.figure import Picture

PAGE, SOME = "paper.html", "figures.html"
"""The page of all exhibits, and the page of some exhibits, which leaves the other as it is."""


def make_and_report(keys: Sequence[str], out: Path, workers: int, json: str | None, kinds: Sequence[str]) -> None:
    """Simulate what is missing of these exhibits, show their claims, and write pictures and page into `out`.

    Raises:
        InputError: an unknown exhibit, or something cannot be written.
        TpusimError: a simulation failed.
    """
    figures = chosen(keys)
    output = JsonOutput(json, made=out)
    make_folder(out)
    plan = PointPlan.of(figures)
    with closing(Store(out / FILE)) as store:
        kept = f"finished points are in {out}; the same command continues"
        with Processes(simulated, workers) as executor, metered(plan.left(store), out / FILE, kept) as meter:
            plan.run(store, executor, meter.show)
        made = plan.made(store)
        output.put(tables.to_json(made))
        stream = output.words_to
        present(stream, ([tables.claim_table(made)], [tables.summary(made)]))
        say(stream, "")
        # Files are written again only if something in them may have changed.
        sources = sources_digest("report/**/*.*", "result/**/*.py", "study/**/*.py"), model_version()
        inputs = sources, [point.key for point in plan.points], tables.to_json(made), unverified(), kinds
        try:
            names = store.kept_files(inputs, _written(made, out, kinds, workers))
        except KeyboardInterrupt:
            say(sys.stderr, f"Interrupted while drawing; all points are in {out}; the same command continues.")
            raise
    show(stream, f"In {out}: {', '.join([FILE, *names])}")


def _files(kinds: Sequence[str], picture: Picture) -> dict[str, bytes]:
    """Names and contents of a picture in every format."""
    return dict(picture.files(kinds))


def _written(made: Sequence[Exhibit], out: Path, kinds: Sequence[str], workers: int) -> Iterator[str]:
    # Imported here, because matplotlib takes longer to import than finished points take to be looked up.
    from tpusim.report.page.paper_page import paper_page
    from tpusim.report.plots.paper import pictures

    drawn, images = [*pictures(made)], {}
    names = [f"{picture.name}.{kind}" for picture in drawn for kind in kinds]
    # The page holds PNGs, whatever files are asked for.
    draw = partial(_files, tuple(dict.fromkeys([*kinds, "png"])))
    with Meter(len(drawn)) as meter, Processes(draw, workers) as processes:
        for done, (picture, files) in enumerate(processes.outcomes(drawn), 1):
            for name in {*files}.intersection(names):
                write(out / name, files[name])
            images[picture.name] = files[f"{picture.name}.png"]
            meter.show(done, picture.name)
    yield from names
    yield write_captions(out, drawn).name
    page = PAGE if len(made) == len(MAKERS) else SOME
    write(out / page, paper_page(made, images, unverified()))
    yield page
