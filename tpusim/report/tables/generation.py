"""The answer of `tpusim run --tokens`: the time of tokens, its parts, and what HBM alone would take."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tpusim.base.words import counted
from tpusim.report.shown import Column, Paragraphs, Sentences, Shown, Table
from tpusim.report.text import percent, quantity, scale, three_digits
from tpusim.result.vocabulary.figures import BYTES, TIMES
from tpusim.result.vocabulary.runs import part_notes, share_notice
from tpusim.study.generation import Generation, Token, TokenPart

GENERATION_FILE = "generation.json"
MEANING = {
    "weights": "products with weights",
    "attention": "products with the cache, and their softmax",
    "vector": "norms, activations and sums by the vector unit",
    "sampling": "the product that tells the next token",
}
"""What the parts of a token are."""


def generated(made: Generation, sizes: str) -> Shown:
    """Return what a generation took, for people and as JSON; `sizes` are those of the workload in words."""
    first, last = made.tokens[0], made.tokens[-1]
    many, own = len(made.tokens), made.tokens_per_second / made.batch
    part = f", one of the {made.chip_cores} cores of a chip" if made.chip_cores > 1 else ""
    run = f"{made.workload}, batch {made.batch}{sizes}, on {made.machine}{part}"
    heading = f"{run}: {counted(many, 'token')} of each sequence"
    told = [
        f"{counted(many, 'token')} behind {first.context - 1:,}: {_time(made.seconds * 1e6)}; "
        f"{three_digits(made.tokens_per_second)} tokens a second, {three_digits(own)} of each sequence"
    ]
    if shared := share_notice(made.chips):
        told[0] += f". {shared}"
    if many > (simulated := len(made.simulated)):
        told.append(
            f"{simulated} of {many:,} tokens were simulated, others lie on lines through these; a simulated one is at "
            f"most {percent(made.off)} % off the line through those beside it."
        )
    share = made.bound_seconds * made.clock_hz / first.cycles
    told.append(
        f"HBM moves the bytes of the first token in {_time(made.bound_seconds * 1e6)}, {percent(share)} % of its time: "
        "no token can be faster."
    )
    if last.cycles > first.cycles:
        each = (last.cycles - first.cycles) / (last.context - first.context)
        told.append(f"Each token before it adds {each:,.0f} cycles to a token, on the mean.")
    told.append("Times alone: no value is computed here (without --tokens, a token's outputs are checked).")
    parts = _parts(made)
    paragraphs: Paragraphs = [
        [Sentences([heading], wide=True)],
        [parts],
        [parts.legend(*(f"{each.name}: {MEANING[each.name]}." for each in first.parts))],
        [_tokens(made)],
        [Sentences(told)],
    ]
    return Shown(paragraphs, _data(made))


def _time(microseconds: float) -> str:
    return quantity(microseconds, TIMES)


def _parts(made: Generation) -> Table[TokenPart]:
    parts = made.tokens[0].parts
    total = sum(each.cycles for each in parts)
    unit, size = scale((each.cycles / made.clock_hz * 1e6 for each in parts), TIMES)

    def bound(part: TokenPart) -> float:
        return part.hbm_bytes / made.bandwidth * 1e6

    columns: list[Column[TokenPart]] = [
        Column("part", lambda part: part.name, justify="left"),
        Column("layers", lambda part: f"{part.layers:,}"),
        Column("cycles", lambda part: f"{part.cycles:,}"),
        Column(f"time\n{unit}", lambda part: three_digits(part.cycles / made.clock_hz * 1e6 / size)),
        Column("share\n%", lambda part: percent(part.cycles / total)),
        Column("HBM", lambda part: quantity(part.hbm_bytes, BYTES), legend="HBM: bytes read and written"),
        Column(
            f"bound\n{unit}", lambda part: three_digits(bound(part) / size), legend="bound: time of these bytes at the "
            "bandwidth of HBM"
        ),
    ]  # fmt: skip
    return Table(columns, parts)


def _tokens(made: Generation) -> Table[Token]:
    unit, size = scale((each.cycles / made.clock_hz * 1e6 for each in made.tokens), TIMES)
    columns: list[Column[Token]] = [
        Column("context", lambda token: f"{token.context:,}"),
        Column("cycles", lambda token: f"{round(token.cycles):,}"),
        Column(f"time\n{unit}", lambda token: three_digits(token.cycles / made.clock_hz * 1e6 / size)),
        Column("tokens/s", lambda token: three_digits(made.batch * made.clock_hz / token.cycles)),
    ]
    return Table(columns, made.simulated)


def _data(made: Generation) -> dict[str, Any]:
    notes = part_notes(made.chips, made.hardware, made.chip_cores)
    return {
        **asdict(made),
        **({"notes": notes} if notes else {}),
        "tokens": [{**asdict(each), "simulated": each.simulated} for each in made.tokens],
        "parts": [asdict(each) for each in made.tokens[0].parts],
        "seconds": made.seconds,
        "tokens_per_second": made.tokens_per_second,
        "hbm_bound_seconds": made.bound_seconds,
    }
