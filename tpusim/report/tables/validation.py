"""How close tpusim comes to the reference numbers, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from tpusim.report.shown import NONE, Column, CommandAnswer, Content, Legend, Paragraphs, Sentences, Table, telling
from tpusim.study.validation.cases import NETWORKS, WORDS, Omission
from tpusim.study.validation.collectives import NO_LAUNCH_SETS, CompiledCollective
from tpusim.study.validation.comparison import AGREEING, ComparedCase, Comparison, by_word, together
from tpusim.study.validation.generations import GENERATIONS, PARTS
from tpusim.study.validation.pods import PODS, ComparedPod


def validated(comparisons: Sequence[Comparison]) -> CommandAnswer:
    """Return every set in a row, word by word; of a set by itself all cases; of networks the totals.

    A kind with several sets has a row for all their cases together. A figure that no set has makes no column. JSON has
    figures and rows of every set, and figures of all sets of a word and kind together; errors are ratios.
    """
    networks = [each for each in comparisons if each.numbers.kind == NETWORKS]
    tables = summaries(comparisons)
    told: list[Sequence[Content]] = [*_cases(comparisons[0])] if len(comparisons) == 1 else []
    told += [part for heading, table in tables for part in ([heading], [table])]
    if any(each.numbers.part for each in comparisons):
        told += [part for heading, table in over_generations(comparisons) for part in ([heading], [table])]
    if networks:
        told += ["Whole networks: cycles of all their operations together."], [Table(_TOTALS, networks)]
    return CommandAnswer((*told, [Legend(_SUMMARY, [table for _, table in tables])]), _data(comparisons))


def surveyed(comparisons: Sequence[Comparison], elsewhere: str) -> CommandAnswer:
    """Return a row for each word, TPU and kind, measurements first, and names by which to see more; as JSON every set.

    `elsewhere` tells what is shown by its name alone.
    """
    found: dict[tuple[str, str, str], list[Comparison]] = {}
    for each in comparisons:
        found.setdefault((each.numbers.status, _tpu(each), _kind(each)), []).append(each)
    told: list[Sequence[Content]] = []
    tables: list[Table[Surveyed]] = []
    for word in SURVEYED:
        rows = [(tpu, kind, sets) for (said, tpu, kind), sets in found.items() if said == word]
        rows.sort(key=lambda row: _TPUS.index(row[0]))
        if rows:
            tables.append(Table(telling(_SURVEY, rows), rows))
            told += [f"{word.capitalize()}: {WORDS[word]}."], [tables[-1]]
    more = f"tpusim validate --set-of-numbers NAME tells more of a row; and by name alone: {elsewhere}."
    return CommandAnswer((*told, [Legend(_SURVEY, tables)], [Sentences([more])]), _data(comparisons))


def with_collectives(
    told: CommandAnswer, comparisons: Sequence[Comparison], compiled: Sequence[CompiledCollective]
) -> CommandAnswer:
    """Return what was told of sets of collectives, with every case in a row, beside the same with nothing fitted, and
    what the compiler's code names beside ours.
    """
    sets = {each.numbers.name: each for each in comparisons}
    paired = [
        (row, bare) for name, each in sets.items() if f"{name}{NO_LAUNCH_SETS}" in sets
        for row, bare in zip(each.rows, sets[f"{name}{NO_LAUNCH_SETS}"].rows, strict=True)
    ]  # fmt: skip
    left_out = [left for each in comparisons for left in each.numbers.left_out]
    differing = [each for each in compiled if each.differs]
    count = f"{len(compiled) - len(differing)} of {len(compiled)}"
    paragraphs: list[Sequence[Content]] = [
        ["Collectives that were measured, case by case", Table(_COLLECTIVES, paired)],
        [Sentences([f"Left out: {each.name}: {each.why}." for each in left_out])],
        *told.paragraphs,
        [Sentences([f"Read off compiled code: {count} rows that name an emitter, its strategy, colours and phases, or "
                    "what the scheduler books, are as ours."])],
    ]  # fmt: skip
    if differing:
        paragraphs.append(["Rows that differ", Table(_COMPILED, differing)])
    data = {
        "named": len(compiled),
        "equal": len(compiled) - len(differing),
        "rows": [asdict(each) for each in compiled],
    }
    return CommandAnswer(paragraphs, {**told.data, "compiled": data})


def with_pods(told: CommandAnswer, comparisons: Sequence[Comparison]) -> CommandAnswer:
    """Return what was told of sets of pods, with every row, and by set our errors beside those of one number for each
    generation that is fitted on the other rows.
    """
    sets = [each for each in comparisons if each.numbers.kind == PODS]
    every = [row for each in sets for row in each.rows if isinstance(row, ComparedPod)]
    left_out = [left for each in sets for left in each.numbers.left_out]
    paragraphs: list[Sequence[Content]] = [
        ["Pods that were measured, case by case", Table(telling(_PODS, every), every)],
        ["By set", Table(_POD_SETS, sets)],
        [Sentences([_beside(each) for each in sets])],
        *told.paragraphs,
        [Sentences([f"Left out: {each.name}: {each.why}." for each in left_out])],
    ]
    return CommandAnswer(paragraphs, told.data)


def _beside(each: Comparison) -> str:
    closer = sum(abs(row.error) < abs(row.roofline_error) for row in each.rows)
    found = f"{each.numbers.name}: closer than one number in {closer} of {len(each.rows)}"
    return f"{found}; {each.ours.where} is {100 * each.ours.worst:+.1f} % off, the most."


_PODS: list[Column[ComparedPod]] = [
    Column("case", lambda row: row.name, justify="fold", widest=60),
    Column("measured\nms", lambda row: f"{row.theirs:,.2f}"),
    Column("ours\nms", lambda row: f"{row.ours:,.2f}"),
    Column("error\n%", lambda row: _signed(row.error)),
    Column("one number\n%", lambda row: _signed(row.roofline_error), 1),
    Column("compute\n%", lambda row: _share(row, "compute"), 2),
    Column("HBM\n%", lambda row: _share(row, "hbm", "shared_hbm"), 3),
    Column("links\n%", lambda row: _share(row, "links"), 4),
    Column("network,\nhost %", lambda row: _share(row, "dcn", "host"), 5),
]
_POD_SETS: list[Column[Comparison]] = [
    Column("set", lambda each: each.numbers.name, justify="left"),
    Column("of what", lambda each: each.numbers.about, justify="fold", widest=50),
    Column("cases", lambda each: f"{len(each.rows)}"),
    Column("mean\n%", lambda each: f"{100 * each.ours.mean:.1f}"),
    Column("bias\n%", lambda each: _signed(each.bias)),
    Column("one number\n%", lambda each: f"{100 * each.roofline.mean:.1f}"),
    Column("rank", lambda each: NONE if each.rank_correlation is None else f"{each.rank_correlation:.3f}"),
]


def _share(row: ComparedPod, *parts: str) -> str:
    return f"{100 * sum(row.parts.get(name, 0) for name in parts):.1f}"


CollectivePair = tuple[ComparedCase, ComparedCase]
"""A case, and the same with nothing fitted."""

_COLLECTIVES: list[Column[CollectivePair]] = [
    Column("case", lambda row: row[0].name, justify="left"),
    Column("measured\nus", lambda row: f"{row[0].theirs:,.2f}"),
    Column("ours\nus", lambda row: f"{row[0].ours:,.2f}"),
    Column("error\n%", lambda row: f"{100 * row[0].error:+.1f}"),
    Column("no launch\n%", lambda row: f"{100 * row[1].error:+.1f}", 1),
    Column("closed form\n%", lambda row: f"{100 * row[0].roofline_error:+.1f}", 2),
]
_COMPILED: list[Column[CompiledCollective]] = [
    Column("case", lambda each: each.name, justify="left"),
    Column("theirs", lambda each: each.theirs, justify="fold", widest=40),
    Column("ours", lambda each: each.ours, justify="fold", widest=40),
    Column("differs in", lambda each: ", ".join(each.differs), justify="fold", widest=20),
]

SURVEYED = ("measured", "scheduled")
"""Words of the survey: what chips took, and what their code takes."""

Surveyed = tuple[str, str, list[Comparison]]
"""A TPU, a kind of ops, and its sets."""

_TPUS = ("v2", *(each.name for each in GENERATIONS))
_KINDS = {
    "first layers": "convolutions", "v3": "layers", "v3_odd": "a layer that stands apart", "vector_ops": "pooling",
    "networks": "layers of networks",
}  # fmt: skip
"""Kinds of sets under the names of others."""


def _tpu(each: Comparison) -> str:
    """Return the TPU of a set, which its machine is named for."""
    return each.numbers.generation or each.numbers.hardware.split("_")[1]


def _kind(each: Comparison) -> str:
    """Return what a set holds; a set of one case that belongs to no part stands by itself."""
    numbers = each.numbers
    kind = numbers.part or (numbers.name if len(each.rows) == 1 else numbers.kind)
    return _KINDS.get(kind, kind)


def _data(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return figures and rows of every set, and figures together of sets of a word and kind, and of a generation."""
    # Sets of one word and kind have a comparison together, which is none of the sets.
    shared = (each for found in by_word(comparisons).values() for each in found if each not in comparisons)
    return {
        "sets": [{**_to_dict(each), "rows": _rows(each)} for each in comparisons],
        "together": [_to_dict(each) for each in shared],
        "generations": [
            {"status": word, "generation": generation, "part": part, "unit": each.numbers.unit,
             "cases": len(each.rows), "mean": each.ours.mean, "median": each.ours.median, "bias": each.bias}
            for (word, generation, part), each in _by_generation(comparisons).items()
        ],
    }  # fmt: skip


def summaries(comparisons: Sequence[Comparison]) -> list[tuple[str, Table[Comparison]]]:
    """Return for each word what it means, and a table of its sets."""
    words = by_word(comparisons).items()
    return [(f"{word.capitalize()}: {WORDS[word]}.", Table(telling(_SUMMARY, found), found)) for word, found in words]


Generations = Mapping[str, Comparison]
"""What is known of a generation, part by part."""


def over_generations(comparisons: Sequence[Comparison]) -> list[tuple[str, Table[tuple[str, Generations]]]]:
    """For each word a row a generation, and in a column of each part the cases and errors of all its sets."""
    found = _by_generation(comparisons)
    tables: list[tuple[str, Table[tuple[str, Generations]]]] = []
    for word in dict.fromkeys(word for word, *_ in found):
        mine = [(generation, part) for said, generation, part in found if said == word]
        rows = [
            (generation, {part: found[word, generation, part] for one, part in mine if one == generation})
            for generation in dict.fromkeys(generation for generation, _ in mine)
        ]
        columns: list[Column[tuple[str, Generations]]] = [Column("TPU", lambda row: row[0], justify="left")]
        columns += [
            Column(f"{part}\n{_SPREAD}", partial(_spread, part), rank)
            for rank, part in enumerate(PARTS)
            if any(part in parts for _, parts in rows)
        ]
        heading = f"{word.capitalize()}, by generation: cases, mean, median and mean signed error in percent."
        tables.append((heading, Table(columns, rows)))
    return tables


_SPREAD = "n  mean   med   bias"


def _spread(part: str, row: tuple[str, Generations]) -> str:
    if (each := row[1].get(part)) is None:
        return NONE
    figures = (100 * figure for figure in (each.ours.mean, each.ours.median, each.bias))
    return f"{len(each.rows)} {{:5.1f}} {{:5.1f}} {{:+6.1f}}".format(*figures)


def _by_generation(comparisons: Sequence[Comparison]) -> dict[tuple[str, str, str], Comparison]:
    """The sets of each word, generation and part, as one; words in the order of reports, then generations and parts."""
    sets: dict[tuple[str, str, str], list[Comparison]] = {}
    for each in comparisons:
        if each.numbers.part and each.rows:
            sets.setdefault((each.numbers.status, each.numbers.generation, each.numbers.part), []).append(each)
    words, generations = [*WORDS], [each.name for each in GENERATIONS]
    ordered = sorted(sets, key=lambda key: (words.index(key[0]), generations.index(key[1]), PARTS.index(key[2])))
    return {key: together(sets[key]) if len(sets[key]) > 1 else sets[key][0] for key in ordered}


def _cases(comparison: Comparison) -> Paragraphs:
    """Return a set's description, its source, a row a case, and the figures that are not compared."""
    numbers = comparison.numbers
    simulated = f"simulated on {numbers.machine}" + f" by {numbers.lowering}" * bool(numbers.lowering)
    columns: list[Column[ComparedCase]] = [
        Column("case", lambda row: row.name, justify="left"),
        Column(f"tpusim\n{numbers.unit}", lambda row: _figure(row.ours)),
        Column(f"{numbers.status}\n{numbers.unit}", lambda row: _figure(row.theirs)),
        Column("error\n%", lambda row: _signed(row.error)),
        Column("error %,\ntheir block", lambda row: _signed(row.error_with_their_block)),
        Column("quirk", lambda row: "yes" if row.quirk else NONE),
        Column("roofline\nerror %", lambda row: _signed(row.roofline_error)),
    ]
    others: list[Column[Omission]] = [
        Column("left out", lambda each: each.name, justify="left"),
        Column(f"{numbers.status}\n{numbers.unit}", lambda each: NONE if each.theirs is None else _figure(each.theirs)),
        Column("why", lambda each: each.why or NONE, justify="left"),
    ]
    said = []
    if (first := comparison.first_choice) is not None:
        best = min(comparison.rows, key=lambda row: row.theirs)
        place = 1 + sum(row.theirs < first.theirs for row in comparison.rows)
        said = [
            f"The tile that tpusim finds fastest, {first.name}, took {_figure(first.theirs)} {numbers.unit}, place "
            f"{place} of {len(comparison.rows)}; the fastest, {best.name}, {_figure(best.theirs)}."
        ]
    return (
        [f"{numbers.name}: {numbers.about}; {numbers.status}, {simulated}."],
        [Table(telling(columns, comparison.rows), comparison.rows)],
        said,
        [Table(telling(others, numbers.left_out), numbers.left_out)] if numbers.left_out else [],
    )


def _to_dict(comparison: Comparison) -> dict[str, Any]:
    numbers, blocks, agreement = comparison.numbers, comparison.with_their_blocks, comparison.agreement
    return {
        **{
            key: getattr(numbers, key)
            for key in ("name", "status", "kind", "about", "hardware", "lowering", "changes", "unit", "generation")
        },
        "asked": numbers.asked,
        "cases": len(comparison.rows),
        "ours": asdict(comparison.ours),
        "with_their_blocks": asdict(blocks) if blocks else None,
        "roofline": asdict(comparison.roofline),
        "bias": comparison.bias,
        "rank_correlation": comparison.rank_correlation,
        "equal": comparison.equal,
        "first_choice": choice.name if (choice := comparison.first_choice) else None,
        "total_error": comparison.total_error,
        "totals": dict(zip(("ours", "theirs"), comparison.totals, strict=True)),
        "left_out": [asdict(each) for each in numbers.left_out],
        "halves": {"fit": comparison.half(True), "rest": comparison.half(False)},
        "quirks": {"cases": comparison.quirks, "mean_without": comparison.without_quirks},
        "estimate_and_schedule": dict(zip(("agree", "known"), agreement, strict=True)) if agreement else None,
    }


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    dropped = () if comparison.numbers.fitted else ("fitted",)
    errors = ("error", "error_with_their_block", "roofline_error")
    rows = [{**asdict(row), **{name: getattr(row, name) for name in errors}} for row in comparison.rows]
    return [{name: value for name, value in row.items() if name not in dropped} for row in rows]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _signed(ratio: float | None) -> str:
    return NONE if ratio is None else f"{100 * ratio:+.1f}"


def _percent(ratio: float | None) -> str:
    return NONE if ratio is None else f"{100 * ratio:.2f}"


def _blocks(each: Comparison) -> str:
    """Return the number of blocks, with the number of cases where not all have a block."""
    if (spread := each.with_their_blocks) is None:
        return NONE
    having = sum(row.with_their_block is not None for row in each.rows)
    return _percent(spread.mean) + (f" ({having})" if having < len(each.rows) else "")


def _rank(each: Comparison) -> str:
    """Rank correlation of a measured set; nothing for TPU v2 and other words."""
    rank = each.rank_correlation if each.numbers.measured and each.numbers.part else None
    return NONE if rank is None else f"{rank:.3f}"


def _besides(each: Comparison) -> list[float]:
    return [one.theirs for one in each.numbers.left_out if one.theirs is not None]


_MEAN = "mean: average of the absolute errors, in percent of the reference"
_BLOCKS = "their blocks: mean with the compiler's blocks instead of ours (of so many cases, if not of all)"
_FIT = "fit: mean over the half of the cases that the fitted numbers of the machine were chosen on"
_REST = "rest: mean over the cases nothing was fitted on"
_QUIRK = "quirk: cases of which the estimator charges only some of the taps"
_AGREE = f"agree: cases in which estimate and schedule are within {100 * AGREEING:.0f} %, of those that have both"
_RANK = "rank: Spearman's correlation, 1 where tpusim puts the cases in the order that was measured"
_EQUAL = "equal: cases of which tpusim has as many passes as the code"
_ROOFLINE = "roofline: the mean error of max(MACs / peak, bytes / bandwidth), or of passes that use all PEs"

_SUMMARY: tuple[Column[Comparison], ...] = (
    Column("set", lambda each: each.numbers.name, justify="left"),
    Column("machine", lambda each: each.numbers.machine, 8, "left"),
    Column("cases", lambda each: f"{len(each.rows)}", 1),
    Column("mean", lambda each: _percent(each.ours.mean), legend=_MEAN),
    Column("their\nblocks", _blocks, legend=_BLOCKS),
    Column("median", lambda each: _percent(each.ours.median), 5, legend="median: half of these errors are larger"),
    Column("90th", lambda each: _percent(each.ours.p90), 6, legend="90th: nine of ten errors are not larger"),
    Column("worst", lambda each: _signed(each.ours.worst), legend="worst: the largest error, with its sign"),
    Column("where", lambda each: each.ours.where, 7, "left", "where: the case of the worst"),
    Column("total", lambda each: _signed(each.total_error), legend="total: error of the sum over all cases"),
    Column("rank", _rank, 5, legend=_RANK),
    Column("equal", lambda each: NONE if each.equal is None else f"{each.equal}", 5, legend=_EQUAL),
    Column("fit", lambda each: _percent(each.half(True)), 4, legend=_FIT),
    Column("rest", lambda each: _percent(each.half(False)), 4, legend=_REST),
    Column("quirk", lambda each: f"{each.quirks or NONE}", 2, legend=_QUIRK),
    Column("without", lambda each: _percent(each.without_quirks), 2, legend="without: mean over all cases but those"),
    Column("agree", lambda each: "{} of {}".format(*each.agreement) if each.agreement else NONE, 3, legend=_AGREE),
    Column("roofline", lambda each: f"{100 * each.roofline.mean:.1f}", legend=_ROOFLINE),
)


def _joined(row: Surveyed) -> Comparison:
    sets = row[2]
    return together(sets) if len(sets) > 1 else sets[0]


def _asked(row: Surveyed) -> str:
    """Return the name that shows a row case by case, or set by set."""
    numbers = row[2][0].numbers
    return numbers.name if len(row[2]) == 1 else numbers.group or numbers.status


_SURVEY: tuple[Column[Surveyed], ...] = (
    Column("TPU", lambda row: row[0], justify="left"),
    Column("what", lambda row: row[1], justify="left"),
    Column("cases", lambda row: f"{len(_joined(row).rows)}"),
    Column("mean", lambda row: _percent(_joined(row).ours.mean), legend=_MEAN),
    Column("median", lambda row: _percent(_joined(row).ours.median), 2),
    Column("90th", lambda row: _percent(_joined(row).ours.p90), 3, legend="90th: nine of ten are not larger"),
    Column("bias", lambda row: _signed(_joined(row).bias), 4, legend="bias: average of the signed errors"),
    Column("worst", lambda row: _signed(_joined(row).ours.worst), 5),
    Column("--set-of-numbers", _asked, justify="left"),
)

_TOTALS: tuple[Column[Comparison], ...] = (
    Column("network", lambda each: each.numbers.about, justify="left"),
    Column("said", lambda each: each.numbers.status, justify="left"),
    Column("operations", lambda each: f"{len(each.rows)} of {len(each.rows) + len(each.numbers.left_out)}"),
    Column("tpusim\ncycles", lambda each: _figure(each.totals[0])),
    Column("their\ncycles", lambda each: _figure(each.totals[1])),
    Column("error\n%", lambda each: _signed(each.total_error)),
    Column("left out,\ntheir cycles", lambda each: _figure(sum(_besides(each))) if _besides(each) else NONE),
)
