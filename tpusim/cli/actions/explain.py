"""What `tpusim explain` does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

from tpusim.base.errors import InputError
from tpusim.base.files import probe, write
from tpusim.cli.json_output import JsonOutput
from tpusim.cli.progress import Meter
from tpusim.cli.terminal import say
from tpusim.flow.fusion import select_layers
from tpusim.flow.lowerings import asked_of, usual
from tpusim.machines.family import Machine, family_of, of_tpus_alone
from tpusim.network.ops.op import Op
from tpusim.network.workload import Workload
from tpusim.report.plots import KNOWN
from tpusim.report.tables.explain import explained, explained_elsewhere
from tpusim.study.explain.alternatives import Alternative, alternatives, overlapping, tried
from tpusim.study.explain.bottleneck import Bottleneck, find_bottleneck
from tpusim.study.explain.modelled import Asked, explain, steps
from tpusim.study.explain.relaxation import Setup, relaxations


def explain_and_report(
    work: Workload, machine: Machine, layer: str | None, lowering: str | None, json: str | None, out: Path | None
) -> None:
    """Find what bounds one layer, as JSON, in words, and of a TPU drawn into `out`."""
    chosen = _one_layer(work, layer)
    lowering = lowering or usual(family_of(machine))
    if not family_of(machine).lanes(machine):
        if out:
            raise of_tpus_alone(machine, "tpusim explain --out")
        _explain_elsewhere(work, chosen, machine, lowering, json)
        return
    setup = Setup(chosen, work.batch, machine, dict(asked_of(work, lowering))[chosen])
    output = JsonOutput(json)
    if out:
        _check_picture(out)
    steps = len(relaxations(setup))
    with Meter(steps + len(tried())) as meter:
        found = find_bottleneck(setup, meter.show)
        fit, unfit = alternatives(setup, lambda done, name: meter.show(steps + done, name))
        between = overlapping(work, chosen, machine, lowering)
    draw = [partial(_draw, found, fit, work.name, out, output.words_to)] if out else []
    output.deliver(explained(found, work, between, fit, unfit), *draw)


def _explain_elsewhere(work: Workload, layer: Op, machine: Machine, lowering: str, json: str | None) -> None:
    """Explain a layer of a machine of another family."""
    asked = Asked(layer, work.batch, machine, dict(asked_of(work, lowering, family_of(machine)))[layer])
    output = JsonOutput(json)
    with Meter(steps(asked)) as meter:
        found = explain(asked, meter.show)
    output.deliver(explained_elsewhere(found, work.name))


def _one_layer(work: Workload, name: str | None) -> Op:
    """Return the layer of that name, or the only one that matches."""
    if name is None and len(work.layers) == 1:
        return work.layers[0]
    found = [layer for layer in work.layers if layer.name == name] or select_layers(work, name or "*").layers
    if len(found) > 1:
        which = f"--layer {name} matches {len(found)} of them" if name else "name one with --layer"
        names = ", ".join(layer.name for layer in found[:8]) + (", ..." if len(found) > 8 else "")
        raise InputError(f"one layer at a time is explained; {work.name} has {len(work.layers)}, {which}: {names}")
    return found[0]


def _check_picture(out: Path) -> None:
    """Raise InputError for an unknown suffix, or a place that cannot be written to."""
    if out.suffix[1:] not in KNOWN:
        allowed = ", ".join(f".{kind}" for kind in KNOWN)
        raise InputError(f"{out}: a picture is written as {allowed}, not as {out.suffix or 'no suffix'}")
    probe(out)


def _draw(found: Bottleneck, fit: Sequence[Alternative], workload: str, out: Path, stream: TextIO) -> None:
    # Here, because matplotlib takes longer to import than the simulations.
    from tpusim.report.plots.layer import explained

    ((_, contents),) = explained(found, workload, fit).files([out.suffix[1:]])
    write(out, contents)
    say(stream, "", str(out))
