"""A run beside closed forms of other simulators: the answer of `tpusim compare --closed-form`."""

from __future__ import annotations

from typing import Any

from tpusim.base.words import counted
from tpusim.report.shown import Column, CommandAnswer, Table
from tpusim.report.tables.sentences import heading
from tpusim.study.closed_form import ComparedForms, LayerByForm

_FORM = "ceil(K / R) x ceil(N / C) x (M + 2R + C - 2) - 1"
_MOST_NAMES = 4


def forms_compared(found: ComparedForms) -> CommandAnswer:
    """Say what was run, every layer by the closed form and here, and all of them together."""
    rows, cols = found.array
    table = Table(_COLUMNS, [*found.layers, found.together])
    total, others = found.together, len(found.without)
    left = [f"No closed form has {counted(others, 'layer')}: {_names(found)}."] if others else []
    several = found.result.hardware["array"].get("count", 1)
    left += [f"The machine has {several} arrays, the closed form one."] if several > 1 else []
    says = (
        f"SCALE-Sim counts {_FORM} cycles for a product (M, K) x (K, N) on R x C = {rows} x {cols} PEs, "
        "whose memory is never late."
    )
    return CommandAnswer(
        (
            [heading(found.result)],
            [says, table],
            [table.legend()],
            [
                f"Together: {total.scale_sim_cycles:,} cycles by SCALE-Sim, {total.cycles:,} here "
                f"(x {total.ratio:.3f})",
                *left,
            ],
        ),
        {
            "hardware": found.result.hardware,
            "workload": found.result.workload,
            "batch": found.result.batch,
            "array": {"rows": rows, "cols": cols},
            "closed_form": _FORM,
            "by_form": [_data(layer) for layer in found.layers],
            "together": {key: each for key, each in _data(total).items() if key != "name"},
            "without_form": [*found.without],
        },
    )


def _data(layer: LayerByForm) -> dict[str, Any]:
    return {**layer._asdict(), "ratio": layer.ratio}


def _names(found: ComparedForms) -> str:
    more = ", ..." if len(found.without) > _MOST_NAMES else ""
    return f"{', '.join(found.without[:_MOST_NAMES])}{more}"


_COLUMNS: tuple[Column[LayerByForm], ...] = (
    Column("layer", lambda layer: layer.name, justify="left", part=4),
    Column("folds", lambda layer: f"{layer.folds:,}", 2, legend="folds: sets of weights that fill the array"),
    Column("passes", lambda layer: f"{layer.passes:,}", 2, legend="passes: those here, folds times blocks"),
    Column(
        "\nSCALE-Sim",
        lambda layer: f"{layer.scale_sim_cycles:,}",
        legend="SCALE-Sim: cycles by its closed form for weights that stay",
    ),
    Column(
        "folds x M\n+ passes x R",
        lambda layer: f"{layer.no_drain_cycles:,}",
        1,
        legend="folds x M + passes x R: what remains of it where no pass waits for the one before to drain",
    ),
    Column(
        "array\nhere",
        lambda layer: f"{layer.array_cycles:,}",
        1,
        legend="array here: cycles until the array has no more work",
    ),
    Column("all\nhere", lambda layer: f"{layer.cycles:,}", legend="all here: cycles of the layer"),
    Column("\nratio", lambda layer: f"{layer.ratio:.3f}", legend="ratio: all here over SCALE-Sim"),
)
