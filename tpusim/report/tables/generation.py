"""The answer of `tpusim run --tokens`: the time of tokens, its parts, and what HBM alone would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from tpusim.base.words import counted
from tpusim.report.shown import Column, CommandAnswer, Paragraphs, Sentences, Table
from tpusim.report.text import column_scale, percent, quantity, three_digits
from tpusim.result.chips import part_notes, share_notice
from tpusim.result.vocabulary.figures import BYTES, TIMES
from tpusim.study.generation import FEWEST_ON_A_LINE, Generation, Token, TokenShare

GENERATION_FILE = "generation.json"
_SHOWN = 3
"""Most changes of plan that are told by their place."""
MEANING = {
    "weights": "products with weights",
    "attention": "products with the cache, and their softmax",
    "vector": "norms, activations and sums by the vector unit",
    "LM head": "the product that rates every next token, and what follows it",
}
"""What the parts of a token are."""


def generated(made: Generation, sizes: str) -> CommandAnswer:
    """Return what a generation took, for people and as JSON; `sizes` are those of the workload in words."""
    first = made.tokens[0]
    many, own = len(made.tokens), made.tokens_per_second / made.batch
    part = f", one of the {made.chip_cores} cores of a chip" if made.chip_cores > 1 else ""
    run = f"{made.workload}, batch {made.batch}{sizes}, on {made.machine}{part}"
    read = f"a prompt of {made.prompt.tokens:,}, and " if made.prompt else ""
    heading = f"{run}: {read}{counted(many + bool(made.prompt), 'token')} of each sequence"
    told = [
        *_prompt(made),
        f"{counted(many, 'token')} behind {first.context - 1:,}: {_time(made.seconds * 1e6)}; "
        f"{three_digits(made.tokens_per_second)} tokens a second, {three_digits(own)} of each sequence",
    ]
    if shared := share_notice(made.chips):
        told[-1] += f". {shared}"
    if many > (simulated := len(made.simulated)):
        told.append(
            f"{simulated} of {many:,} tokens were simulated, others lie on lines between these; a simulated one is at "
            f"most {percent(made.off)} % off the line through those beside it."
        )
    share, which = made.bound_seconds * made.clock_hz / first.cycles, "second token" if made.prompt else "first token"
    told.append(
        f"The HBM of {made.machine} moves the bytes of the {which} in {_time(made.bound_seconds * 1e6)}, "
        f"{percent(share)} % of its time: a token that moves as many cannot be faster there."
    )
    told += _growth(made)
    told.append("Times alone: no value is computed here (without --tokens, a token's outputs are checked).")
    parts = _parts(made, first.parts)
    read_at_once: Paragraphs = [["Parts of the prompt", _parts(made, made.prompt.parts)]] if made.prompt else []
    paragraphs: Paragraphs = [
        [Sentences([heading], wide=True)],
        *read_at_once,
        [
            "Parts of the token behind the prompt" if made.prompt else "Parts of the first token",
            parts,
            parts.legend(*(f"{each.name}: {MEANING[each.name]}." for each in first.parts)),
        ],
        ["Tokens that were simulated", _tokens(made)],
        [Sentences(told)],
    ]
    return CommandAnswer(paragraphs, _data(made))


def _prompt(made: Generation) -> list[str]:
    """Return what is to be told of the prompt, if there is one."""
    if made.prompt is None:
        return []
    many = made.prompt.tokens
    speed = three_digits(many * made.batch / made.first_seconds)
    every, all_of_it = len(made.tokens) + 1, _time((made.first_seconds + made.seconds) * 1e6)
    return [
        f"Time to the first token: {_time(made.first_seconds * 1e6)}, in which a prompt of {counted(many, 'token')} is "
        f"read, {speed} tokens a second. With it all {every:,} tokens of each sequence take {all_of_it}."
    ]


def _growth(made: Generation) -> Iterator[str]:
    """Yield how tokens grow with their context: by lines through those on one plan, and where plans change."""
    first, last = made.tokens[0], made.tokens[-1]
    if first is last:
        return
    more = last.cycles - first.cycles
    yield (
        f"The last token takes {abs(more):,.0f} cycles {'more' if more >= 0 else 'fewer'} than the "
        f"{'second' if made.prompt else 'first'}, "
        f"{percent(abs(more) / first.cycles)} %."
    )
    for line in made.lines:
        off = f"; those between are at most {line.off:,.0f} cycles off" if line.off >= 1 else ""
        yield f"From context {line.first:,} to {line.last:,}, on one plan, each key adds {line.slope:,.0f} cycles{off}."
    if changes := made.plan_changes:
        more_of_them = f"; and {len(changes) - _SHOWN} times more" if len(changes) > _SHOWN else ""
        where = "; ".join(f"{one:,} and {other:,}" for one, other in changes[:_SHOWN])
        yield f"The plan of some layer changes between context {where}{more_of_them}."
    if not made.lines:
        yield f"Fewer than {FEWEST_ON_A_LINE} simulated tokens in a row are on one plan: no line tells what a key adds."


def at_a_glance(made: Generation) -> list[tuple[str, str, str]]:
    """Return the figures of a generation that matter most, each with its name and what more there is to say."""
    first, whole = made.tokens[0], made.seconds * 1e6
    took, moved = first.cycles / made.clock_hz * 1e6, made.bound_seconds * 1e6
    which = "second token" if made.prompt else "first token"
    of_all = f"of all {made.batch:,} sequences together" if made.batch > 1 else "of the one sequence"
    begins = [("first token", _time(took), f"sees {first.context:,} keys, its own included")]
    if made.prompt:
        read = f"reads a prompt of {counted(made.prompt.tokens, 'token')}"
        begins = [("time to first token", _time(made.first_seconds * 1e6), read)]
        begins += [("second token", _time(took), f"sees {first.context:,} keys, its own included")]
    return [
        ("speed", f"{three_digits(made.tokens_per_second)} tokens/s", of_all),
        *begins,
        (
            "tokens behind it" if made.prompt else "all tokens",
            _time(whole),
            f"{len(made.tokens):,} of each sequence, one after the other",
        ),
        ("HBM", _time(moved), f"for the bytes of the {which}: {percent(moved / took)} % of its time"),
    ]


def _time(microseconds: float) -> str:
    return quantity(microseconds, TIMES)


def _parts(made: Generation, parts: Sequence[TokenShare]) -> Table[TokenShare]:
    total = sum(each.cycles for each in parts)
    unit, size = column_scale((each.cycles / made.clock_hz * 1e6 for each in parts), TIMES)

    def bound(part: TokenShare) -> float:
        return part.hbm_bytes / made.bandwidth * 1e6

    columns: list[Column[TokenShare]] = [
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
    notes = part_notes(made.chips, made.hardware, made.chip_cores)
    return {
        **asdict(made),
        **({"notes": notes} if notes else {}),
        "tokens": [{**asdict(each), "simulated": each.simulated} for each in made.tokens],
        "lines": [asdict(each) for each in made.lines],
        "plan_changes": made.plan_changes,
        "parts": [asdict(each) for each in made.tokens[0].parts],
        "seconds": made.seconds,
        "tokens_per_second": made.tokens_per_second,
        "hbm_bound_seconds": made.bound_seconds,
        "first_token_seconds": made.first_seconds if made.prompt else None,
    }
