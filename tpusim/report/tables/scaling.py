"""The answer of `tpusim scale`: what a network takes on slices of more and more chips, and where the time goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpusim.network.mesh import mesh_text
from tpusim.report.shown import NONE, Column, CommandAnswer, Sentences, Table
from tpusim.report.text import column_scale, percent, quantity, three_digits
from tpusim.result.records import StepResult
from tpusim.result.vocabulary.figures import TIMES
from tpusim.result.vocabulary.states import STEP_PARTS
from tpusim.study.scaling import ScaledSlice, Scaling, shares_of

_IDEAL = "of ideal: what a chip makes, of what a chip of the smallest slice makes"
_NO_ROOM, _REFUSED = "no room", "refused"
_NOTICED = 0.005
"""Least part of the time by which a part has to grow to be told."""


def scaled(made: Scaling) -> CommandAnswer:
    """Return how a network scales, for people and as JSON."""
    table = scaling_table(made)
    parts = (f"{STEP_PARTS[part].label}: {STEP_PARTS[part].meaning}" for part in made.parts)
    refused = [f"{each.slice}: {each.refusal}" for each in made.each if each.refusal]
    return CommandAnswer(
        [
            [Sentences([f"{title(made)}{f': {sizes}' if (sizes := sizes_of(made)) else ''}"], wide=True)],
            [Sentences([*_told(made)])],
            ["Slices of more and more chips", table, table.legend(*parts)],
            *([[Sentences(refused, indent="  ")]] if refused else []),
        ],
        _data(made),
    )


def title(made: Scaling) -> str:
    """Return the title of a page and of a picture: the network, what each chip or all of them get, and the chip."""
    batch = f"batch {made.batch_a_chip:,} a chip" if made.batch_a_chip else f"batch {made.each[0].batch:,} of all chips"
    (first, step), *_ = made.done
    return f"{made.workload}, {batch}, on slices of {made.machine}{step.slice.removeprefix(first.slice)}"


def sizes_of(made: Scaling) -> str:
    """Name the sizes of the network: "layers 2, width 768"; empty where its file names none."""
    return ", ".join(f"{name} {size:,}" for name, size in made.first.sizes.items())


def at_a_glance(made: Scaling) -> list[tuple[str, str, str]]:
    """Return the figures that matter most, each with its name and what more there is to say."""
    (first, least), (last, most) = made.done[0], made.done[-1]
    worst = max(made.parts, key=lambda part: shares_of(most)[part])
    times = most.items_per_second / least.items_per_second
    return [
        ("speed", f"{three_digits(most.items_per_second)} {most.items}/s", f"on {last.slice}, {last.chips:,} chips"),
        ("gain", f"{three_digits(times)} times", f"with {last.chips / first.chips:,.4g} times as many chips"),
        ("of ideal", f"{percent(made.of_ideal(most))} %", f"ideal: the chips of {first.slice}"),
        ("step", quantity(1e6 * most.seconds, TIMES), f"{percent(shares_of(most)[worst])} % {STEP_PARTS[worst].label}"),
    ]


def _told(made: Scaling) -> Iterator[str]:
    """Yield what more chips bring, and what part of the time grows with them."""
    (first, least), (last, most) = made.done[0], made.done[-1]
    items = most.items
    if first.chips == last.chips:
        yield f"{three_digits(least.items_per_second)} {items} a second on {first.slice}: nothing to compare it with."
        return
    yield (
        f"{last.slice} makes {three_digits(most.items_per_second)} {items} a second, "
        f"{three_digits(most.items_per_second / least.items_per_second)} times what {first.slice} does, with "
        f"{last.chips / first.chips:,.4g} times as many chips: {percent(made.of_ideal(most))} % of the ideal."
    )
    before, after = shares_of(least), shares_of(most)
    # What grows may be small still, but it is what more chips will meet next.
    part = max(made.parts, key=lambda each: after[each] - before[each])
    if after[part] - before[part] >= _NOTICED:
        yield (
            f"What grows most is {STEP_PARTS[part].label}: {percent(before[part])} % of the time on {first.slice}, "
            f"{percent(after[part])} % on {last.slice}."
        )


def scaling_table(made: Scaling) -> Table[ScaledSlice]:
    """Return a row a slice; one that cannot run the network says so."""
    steps = [step for _, step in made.done]
    unit, size = column_scale((1e6 * step.seconds for step in steps), TIMES)

    def of(tell: Any, otherwise: str = NONE) -> Any:
        return lambda row: tell(row.step) if row.step else otherwise

    def part(key: str) -> Column[ScaledSlice]:
        head = STEP_PARTS[key].label.replace(" for ", " for\n")
        return Column(f"{head}\n%", of(lambda step: percent(step.parts[key] / step.cycles)), 1)

    items = steps[0].items
    columns: list[Column[ScaledSlice]] = [
        Column("slice", lambda row: row.slice, justify="left", part=4),
        Column("chips", lambda row: f"{row.chips:,}"),
        Column("batch", lambda row: f"{row.batch:,}", 3, legend="batch: images or sequences of all chips"),
        Column("mesh", of(lambda step: mesh_text(step.mesh)), 4, "left", "mesh: how the chips share the network"),
        Column(
            f"step\n{unit}",
            lambda row: three_digits(1e6 * row.step.seconds / size) if row.step else _short(row),
            legend="step: time of a step",
        ),
        Column(f"{items}\na second", of(lambda step: three_digits(step.items_per_second))),
        Column("a chip", of(lambda step: three_digits(step.items_per_second_chip)), 2),
        Column("of ideal\n%", of(lambda step: percent(made.of_ideal(step))), legend=_IDEAL),
        *map(part, made.parts),
    ]  # fmt: skip
    return Table(columns, made.each)


def _short(row: ScaledSlice) -> str:
    return _NO_ROOM if row.too_large else _REFUSED


def rows_of(made: Scaling) -> Iterator[dict[str, Any]]:
    """Yield a row a slice, with its time by part; without figures where the slice cannot run the network."""
    for each in made.each:
        step = each.step
        row: dict[str, Any] = {"slice": each.slice, "chips": each.chips, "batch": each.batch}
        row |= {"mesh": mesh_text(step.mesh) if step else ""}
        row |= {"time_us": 1e6 * step.seconds if step else None}
        row |= {f"{key}_per_s": value for key, value in _rates(made, step).items()}
        row |= {"of_ideal": made.of_ideal(step) if step else None}
        row |= {f"{part}_share": shares_of(step)[part] if step else None for part in made.parts}
        yield {**row, "refusal": each.refusal}


def _rates(made: Scaling, step: StepResult | None) -> dict[str, float | None]:
    items = made.done[0][1].items
    return {
        items: step.items_per_second if step else None,
        f"{items}_a_chip": step.items_per_second_chip if step else None,
    }


def _data(made: Scaling) -> dict[str, Any]:
    result = made.first
    return {
        "workload": made.workload,
        "machine": made.machine,
        "hardware": result.hardware,
        "sizes": {**result.sizes},
        "dtype": result.dtype,
        "items": made.done[0][1].items,
        "batch_a_chip": made.batch_a_chip,
        "slices": [{**_of_slice(made, each)} for each in made.each],
    }


def _of_slice(made: Scaling, each: ScaledSlice) -> dict[str, Any]:
    step = each.step
    figures = "about", "mesh", "cycles", "seconds", "items_per_second", "items_per_second_chip", "parts"
    return {
        "slice": each.slice,
        "chips": each.chips,
        "batch": each.batch,
        **{name: getattr(step, name) if step else None for name in figures},
        "of_ideal": made.of_ideal(step) if step else None,
        "refusal": each.refusal or None,
    }
