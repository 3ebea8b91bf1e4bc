"""What `tpusim paper` does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from tpusim.base.errors import TpusimError
from tpusim.base.files import make_folder, write
from tpusim.cli.actions.plot import write_pictures
from tpusim.cli.actions.sweep_files import stamps
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say, show, terminal_width
from tpusim.report.tables import paper as tables
from tpusim.study.paper.design import unverified
from tpusim.study.paper.exhibit import Exhibit
from tpusim.study.paper.run import FILE, MAKERS, Plan, chosen
from tpusim.study.processes import Processes
from tpusim.study.sweep.job import simulated
from tpusim.study.sweep.keys import model_version, sources_digest
from tpusim.study.sweep.store import DamagedStore, Store

if TYPE_CHECKING:
    from tpusim.report.plots.figure import Picture

PAGE, SOME = "paper.html", "figures.html"
"""The page of all exhibits, and that of some, which leaves the other as it is."""


def make_and_report(keys: Sequence[str], out: Path, workers: int, json: str | None, kinds: Sequence[str]) -> None:
    """Simulate what is missing of these exhibits, show their claims, and write pictures and page into `out`.

    Raises:
        InputError: an unknown exhibit, or something cannot be written.
        TpusimError: a simulation failed.
    """
    figures = chosen(keys)
    output = JsonOutput(json, made=out)
    make_folder(out)
    plan = Plan.of(figures)
    with closing(Store(out / FILE)) as store:
        _simulate(plan, store, out, workers)
        made = plan.made(store)
        output.put(tables.to_json(made))
        stream = output.words_to
        show(stream, tables.claim_table(made, terminal_width(stream)), "", tables.summary(made), "")
        names = _files(made, plan, store, out, kinds)
    show(stream, f"In {out}: {', '.join([FILE, *names])}")


def _simulate(plan: Plan, store: Store, out: Path, workers: int) -> None:
    """What is missing; what ends it early says where the finished points are."""
    total = plan.left(store)
    kept = f"finished points are in {out}; the same command continues"
    with Processes(simulated, workers) as executor, Meter(total, "points") as meter:
        try:
            plan.run(store, executor, meter.show)
        except KeyboardInterrupt:
            say(sys.stderr, f"Interrupted after {meter.done:,} of {total:,} points; {kept}.")
            raise
        except TpusimError as error:
            if isinstance(error, DamagedStore):
                raise
            raise type(error)(f"{error}; {kept}") from None


def _files(made: Sequence[Exhibit], plan: Plan, store: Store, out: Path, kinds: Sequence[str]) -> list[str]:
    """Names of pictures and page; they are written again only when something in them may have changed."""
    digest = _digest(made, plan, kinds)
    before = store.files(digest)
    if before and stamps(out, before) == before:
        return [*before]
    try:
        names = [*_written(made, out, kinds)]
    except KeyboardInterrupt:
        say(sys.stderr, f"Interrupted while drawing; all points are in {out}; the same command continues.")
        raise
    store.remember_files(digest, stamps(out, names))
    return names


def _written(made: Sequence[Exhibit], out: Path, kinds: Sequence[str]) -> Iterator[str]:
    # Here, because matplotlib takes longer to import than finished points to be looked up.
    from tpusim.report.page.paper_page import paper_page
    from tpusim.report.plots.paper import pictures

    drawn = [*pictures(made)]
    with Meter(len(drawn)) as meter:

        def shown() -> Iterator[Picture]:
            for done, picture in enumerate(drawn):
                meter.show(done, picture.name)
                yield picture

        names = [path.name for path in write_pictures(out, shown(), kinds)]
    yield from names
    inside = {each.name: f"{each.name}.png" for each in drawn}
    images = {
        each.name: (out / name).read_bytes() if (name := inside[each.name]) in names else each.contents("png")
        for each in drawn
    }
    page = PAGE if len(made) == len(MAKERS) else SOME
    write(out / page, paper_page(made, images, unverified()))
    yield page


def _digest(made: Sequence[Exhibit], plan: Plan, kinds: Sequence[str]) -> str:
    """A digest of all that the files depend on."""
    sources = sources_digest("report/**/*.*", "result/**/*.py", "study/**/*.py"), model_version()
    keys = [key for _, key in plan.points]
    return sha256(repr((sources, keys, tables.to_json(made), unverified(), kinds)).encode()).hexdigest()
