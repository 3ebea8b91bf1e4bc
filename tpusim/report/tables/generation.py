"""The answer of `tpusim run --tokens`: the time of tokens, its parts, and what HBM alone would take."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tpusim.base.words import counted
from tpusim.report.shown import Column, Paragraphs, Sentences, Shown, Table
from tpusim.report.text import column_scale, percent, quantity, three_digits
from tpusim.result.vocabulary.figures import BYTES, TIMES
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
    heading = (
        f"{made.workload}, batch {made.batch}{sizes}, on {made.hardware}: {counted(many, 'token')} of each sequence"
    )
    told = [
        f"{counted(many, 'token')} behind {first.context - 1:,}: {_time(made.seconds * 1e6)}; "
        f"{three_digits(made.tokens_per_second)} tokens a second, {three_digits(own)} of each sequence"
    ]
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
        [
            "Parts of the first token",
            parts,
            parts.legend(*(f"{each.name}: {MEANING[each.name]}." for each in first.parts)),
        ],
        ["Tokens that were simulated", _tokens(made)],
        [Sentences(told)],
    ]
    return Shown(paragraphs, _data(made))


def at_a_glance(made: Generation) -> list[tuple[str, str, str]]:
    """Return the figures of a generation that matter most, each with its name and what more there is to say."""
    first, whole = made.tokens[0], made.seconds * 1e6
    took, moved = first.cycles / made.clock_hz * 1e6, made.bound_seconds * 1e6
    return [
        ("speed", f"{three_digits(made.tokens_per_second)} tokens/s", f"of all {made.batch:,} sequences together"),
        ("first token", _time(took), f"sees {first.context:,} keys, its own included"),
        ("all tokens", _time(whole), f"{len(made.tokens):,} of each sequence, one after the other"),
        ("HBM", _time(moved), f"for the bytes of the first token: {percent(moved / took)} % of its time"),
    ]


def _time(microseconds: float) -> str:
    return quantity(microseconds, TIMES)


def _parts(made: Generation) -> Table[TokenPart]:
    parts = made.tokens[0].parts
    total = sum(each.cycles for each in parts)
    unit, size = column_scale((each.cycles / made.clock_hz * 1e6 for each in parts), TIMES)

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
    unit, size = column_scale((each.cycles / made.clock_hz * 1e6 for each in made.tokens), TIMES)
    columns: list[Column[Token]] = [
        Column("context", lambda token: f"{token.context:,}"),
        Column("cycles", lambda token: f"{round(token.cycles):,}"),
        Column(f"time\n{unit}", lambda token: three_digits(token.cycles / made.clock_hz * 1e6 / size)),
        Column("tokens/s", lambda token: three_digits(made.batch * made.clock_hz / token.cycles)),
    ]
    return Table(columns, made.simulated)


def _data(made: Generation) -> dict[str, Any]:
    return {
        **asdict(made),
        "tokens": [{**asdict(each), "simulated": each.simulated} for each in made.tokens],
        "parts": [asdict(each) for each in made.tokens[0].parts],
        "seconds": made.seconds,
        "tokens_per_second": made.tokens_per_second,
        "hbm_bound_seconds": made.bound_seconds,
    }
