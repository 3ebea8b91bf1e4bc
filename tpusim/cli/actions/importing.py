"""What `tpusim import` does."""

from __future__ import annotations

import sys
from pathlib import Path

from tpusim.base.errors import InputError, did_you_mean
from tpusim.base.files import probe, write
from tpusim.base.words import counted
from tpusim.cli.actions.inputs import tell_left_out
from tpusim.cli.terminal import say
from tpusim.network.formats import FORMATS, is_foreign
from tpusim.network.formats.asked import ModelOptions
from tpusim.network.workload_file import images_of, open_workload, workload_of, yaml_of
from tpusim.report.text import quantity
from tpusim.result.vocabulary.figures import COUNTS

YAML = (".yaml", ".yml")


def import_and_report(file: Path, out: Path | None, batch: int, asked: ModelOptions) -> None:
    """Write the workload that a file of another tool holds into `out`, or here, and say on stderr what it is."""
    images = images_of(batch)
    if not is_foreign(file):
        hint = did_you_mean(file.suffix, FORMATS) or ";"
        raise InputError(f"{file}: its name says nothing of a format{hint} files that are read: {', '.join(FORMATS)}")
    if out is not None:
        if out.suffix.lower() not in YAML:
            raise InputError(f"{out}: a workload is written as {' or '.join(YAML)}, not as {out.suffix or 'no suffix'}")
        probe(out)
    document = open_workload(file, asked)
    work = workload_of(document, images, asked.ops)
    text = yaml_of(document)
    if out is None:
        say(sys.stdout, *text.splitlines())
    else:
        write(out, text.encode())
    macs = quantity(sum(layer.macs(images) for layer in work.layers), COUNTS)
    say(sys.stderr, f"{out or work.name}: {counted(len(work.layers), 'layer')}, {macs}MAC at batch {images}")
    say(sys.stderr, *(f"Note: {note}" for note in document.notes))
    tell_left_out(work)
