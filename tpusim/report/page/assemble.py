"""The page itself: template, style and script in one file, under a policy that forbids everything else; its columns.

Then the page of a report without a script, and what the page of a sweep shows, as plain data.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import chain
from string import Template
from typing import TYPE_CHECKING, Any, Literal

from tpusim.base.errors import InputError
from tpusim.base.units import magnitude
from tpusim.base.version import __version__
from tpusim.report.shown import CommandAnswer, Content, Legend, Sentences, Table, text_of
from tpusim.report.style import tones
from tpusim.report.tables.sweep import SweepPoints
from tpusim.report.text import column_scale, percent, quantity, scale, three_digits, written
from tpusim.result.vocabulary.figures import LESS, MORE, TIMES, Figure, column_of
from tpusim.study.sweep.reader import Goal

if TYPE_CHECKING:
    from tpusim.report.plots.figure import Picture

_ASSETS = files("tpusim.report.page") / "assets"
_COMMON = ("dom", "format", "scale", "selection", "figure", "axis", "states", "table")
_SCRIPTS = {
    "run": (*_COMMON, "strip", "roofline", "diagram", "run"),
    "sweep": (*_COMMON, "points", "curves", "heat_map", "pareto", "effects", "sweep"),
}
_IN_SCRIPT = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def page(kind: str, data: Mapping[str, Any]) -> bytes:
    """Return the bytes of the page's file; the same data gives the same bytes.

    `kind` is "run" or "sweep". Of `data` a reader without JavaScript gets title, verdict and sentences. Pictures stand
    in it as addresses that hold them themselves ("data:").

    Raises:
        InputError: when a figure of `data` is no finite number.
    """
    parts = "\n".join(_asset(f"{name}.js") for name in _SCRIPTS[kind])
    script = f'"use strict";\n(() => {{\n{parts}}})();\n'
    try:
        # JSON that cannot end the element it stands in.
        told = json.dumps(data, allow_nan=False, separators=(",", ":")).translate(_IN_SCRIPT)
    except ValueError:
        raise InputError("holds a figure that is not a finite number; write the result again") from None
    sentences = [data["verdict"]["text"], *(plain(sentence, data.get("layers", ())) for sentence in data["sentences"])]
    said = "\n".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    allowed = f"script-src '{_digest(script)}'; style-src '{{}}'; img-src data:"
    return _filled("page", allowed, title=escape(data["title"]), plain=said, data=told, script=script)


def _filled(stem: str, allowed: str, **parts: str) -> bytes:
    """Return the bytes of a page: its template by its `stem`, with `parts` where the template names them.

    Every page looks like the page of a run, and one with another stem has a style of its own besides.

    Its policy forbids everything but `allowed`, in which {} stands for the digest of the style.
    """
    own = "" if stem == "page" else _asset(f"{stem}.css")
    style = Template(_asset("page.css") + own).substitute(tones())
    policy = f"default-src 'none'; {allowed.format(_digest(style))}; base-uri 'none'; form-action 'none'"
    text = fragment(stem, **parts, policy=policy, style=style)
    # A name from a JSON file may hold half of a surrogate pair.
    return text.encode(errors="replace")


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"


Phrase = str | dict[str, int]
Sentence = list[Phrase]
"""A text, and links: layers by their place in the network, which the page shows by name."""


def plain(sentence: Sequence[Phrase], layers: Sequence[Mapping[str, Any]]) -> str:
    """Write a sentence without links."""
    return "".join(part if isinstance(part, str) else layers[part["layer"]]["name"] for part in sentence)


PageColumn = dict[str, Any]
"""A column of a table and a figure of a chart, ready for JSON."""


def column(figure: Figure, values: Iterable[float | None] = (), bar: Literal["", "widest", "whole"] = "") -> PageColumn:
    """Write `values` of a figure in one unit, so that the eye can compare; a `bar` in a cell shows its share."""
    unit, divide = column_scale(values, figure.units)
    return {
        "key": figure.key, "label": figure.label, "style": figure.style, "unit": unit, "divide": divide,
        "title": figure.meaning, "better": figure.better, "bar": bar,
    }  # fmt: skip


def text_column(key: str, label: str, title: str = "") -> PageColumn:
    """Make a column of words, as they are."""
    return {"key": key, "label": label, "style": "text", "title": title}


# ---- a report as a page: its sentences, its tables, its pictures, and no script


def document_page(title: str, told: str, subtitle: str = "") -> bytes:
    """Return the bytes of a page without a script: a title as text, and what is `told` below it as HTML."""
    below = f'<p class="subtitle">{escape(subtitle)}</p>' if subtitle else ""
    return _filled("document", "img-src data:; style-src '{}'", title=escape(title), subtitle=below, told=told)


def fragment(stem: str, **parts: str) -> str:
    """Return the HTML of a part of a page: the template of this `stem`, with `parts` where it names them."""
    return Template(_asset(f"{stem}.html")).substitute(parts)


Tile = tuple[str, str, str]
"""A figure at a glance: its name, its value, and what more there is to say."""


def told_page(title: str, shown: CommandAnswer, tiles: Sequence[Tile], pictures: Sequence[Picture] = ()) -> bytes:
    """Return the bytes of the page of a report: figures at a glance, what it says in short, pictures, and its tables.

    The first paragraph of the report is its heading; a paragraph with a table begins with the title of that.
    """
    heading, *paragraphs = shown.paragraphs
    tables = [each for each in paragraphs if isinstance(each[0], str)]
    lines = (_lines(block) for each in paragraphs if each not in tables for block in each)
    said = "".join(f"<li>{escape(line)}</li>" for line in chain.from_iterable(lines))
    glance = (f"<div><dt>{escape(name)}</dt><dd><b>{escape(value)}</b><span>{escape(note)}</span></dd></div>"
              for name, value, note in tiles)  # fmt: skip
    told = [
        f'<dl class="tiles">{"".join(glance)}</dl>',
        f'<section><h2>In short</h2><ul class="sentences">{said}</ul></section>',
        *map(_figure, pictures),
        *(f"<section><h2>{escape(str(head))}</h2>{''.join(map(_block, rest))}</section>" for head, *rest in tables),
        f'<p class="soft">tpusim {escape(__version__)}</p>',
    ]
    return document_page(title, "\n".join(told), " ".join(chain.from_iterable(map(_lines, heading))))


def _figure(picture: Picture) -> str:
    image, caption = b64encode(picture.contents("svg")).decode(), escape(picture.caption)
    return (
        f'<figure><img src="data:image/svg+xml;base64,{image}" alt="{caption}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _block(block: Content) -> str:
    if isinstance(block, Table):
        heads = [column.header.replace("\n", " ") for column in block.columns]
        sides = [column.justify == "right" for column in block.columns]
        rows = [[column.text(row, None) for column in block.columns] for row in block.rows]
        return html_table(heads, rows, numbers=sides)
    return "\n".join(f'<p class="note">{escape(line)}</p>' for line in _lines(block))


def _lines(block: Content) -> Sequence[str]:
    """Return the lines of words, not folded: that is done by the browser."""
    if isinstance(block, Legend):
        block = block.sentences(None)
    return block.lines if isinstance(block, Sentences) else text_of(block).splitlines()


def html_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", numbers: Sequence[bool] = ()
) -> str:
    """Return a table; columns of `numbers` stand at the right."""
    sides = [' class="number"' * side for side in numbers or [False] * len(heads)]

    def line(cells: Sequence[str], kind: str) -> str:
        return "".join(f"<{kind}{side}>{escape(cell)}</{kind}>" for cell, side in zip(cells, sides, strict=True))

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    head = f"<thead><tr>{line(heads, 'th')}</tr></thead>"
    return f'<div class="scroller"><table>{caption}{head}<tbody>{body}</tbody></table></div>'


# ---- a sweep as plain data

_FIRST = ("tokens_per_s", "time_us", "tflops", "pe_utilization", "port_idle_ratio")
_WISHES = (
    "time_us", "tokens_per_s", "cycles", "tflops", "pe_utilization", "hbm_read_bytes", "hbm_write_bytes", "peak_bytes",
    "energy", "energy_delay", "tops_per_watt", "pes", "lanes", "sram_bytes", "hbm_bytes_per_s", "area",
)  # fmt: skip
"""What points are weighed against each other by, beside the goals of a sweep and its axes."""


def sweep_data(points: SweepPoints) -> dict[str, Any]:
    """Return everything on the page of a sweep. Points are columns: a row of keys each would make the file several
    times larger.
    """
    texts = points.texts
    failed = [index for index, error in enumerate(texts["error"]) if error]
    verdict = f"All {points.size:,} points finished"
    if failed:
        verdict = f"{len(failed):,} of {points.size:,} points failed; see below"
    counts = {axis: len(set(texts[axis])) for axis in points.axes}
    over = " x ".join(f"{axis} ({count} values)" for axis, count in counts.items() if count > 1) or "no axis"
    fixed = ", ".join(f"{axis}={texts[axis][0]}" for axis, count in counts.items() if count == 1)
    over += f", all with {fixed}" * bool(fixed)
    on = f", on {points.setup}" * bool(points.setup)
    return {
        "title": f"Sweep {points.name}",
        "subtitle": f"{points.size:,} points over {over}{on}; timing alone, values not checked",
        "verdict": {"state": "wrong" if failed else "right", "text": verdict, "first": ""},
        "sentences": [
            [said] for workload in dict.fromkeys(texts["workload"]) for said in _best_points(points, workload)
        ],
        "goals": [{"key": goal.column, "better": LESS if goal.minimize else MORE} for goal in points.goals],
        "wishes": [key for key in _WISHES if len({*points.figures.get(key, ())} - {None}) > 1],
        "axes": [_axis(axis, texts[axis]) for axis in points.axes],
        "figures": _figures(points),
        "points": {**texts, **points.figures},
        "front": [index for index, mark in enumerate(texts.get("pareto", ())) if mark == "True"],
        "failed": failed,
    }


def _best_points(points: SweepPoints, workload: str) -> Iterator[str]:
    """Yield which point of a workload is the fastest, which makes most tokens, and which is the best by each goal."""
    yield _fastest(points, workload)
    done = [i for i, name in enumerate(points.texts["workload"]) if name == workload and not points.texts["error"][i]]
    tokens = [Goal("tokens_per_s", False)] if "tokens_per_s" in points.figures else []
    for goal in dict.fromkeys((*points.goals, *tokens)):
        # Time has its sentence, and an axis is what is set.
        known = points.figures.get(goal.column, ())
        costs = {
            i: goal.cost(value) for i in done if goal.column != "time_us" and known and (value := known[i]) is not None
        }
        if len({*costs.values()}) > 1:
            best = min(costs, key=costs.__getitem__)
            figure = column_of(goal.column)
            unit, size = scale([known[best]], figure.units)
            reached = f"{written(figure, known[best], size)} {unit}".strip()
            most = "least" if goal.minimize else "most"
            yield f"{workload} with the {most} {figure.label}: {reached}, with {_settings(points, best)}."


def _settings(points: SweepPoints, index: int) -> str:
    return ", ".join(f"{axis} = {points.texts[axis][index]}" for axis in points.axes if len({*points.texts[axis]}) > 1)


def _fastest(points: SweepPoints, workload: str) -> str:
    """Say which point of a workload is the fastest, and how far the others are from it."""
    names, errors, figures = points.texts["workload"], points.texts["error"], points.figures.get("time_us", ())
    columns = enumerate(zip(names, errors, figures, strict=False))
    times = {index: time for index, (name, error, time) in columns if time and name == workload and not error}
    if not times:
        return f"{workload}: every point failed."
    best, slowest = min(times, key=times.__getitem__), max(times.values())
    known = {key: values[best] for key, values in points.figures.items()}
    reached = quantity(times[best], TIMES)
    # Files of other versions may lack these columns.
    if (speed := known.get("tflops")) is not None:
        reached += f", {three_digits(speed)} TFLOPS"
    if (utilization := known.get("pe_utilization")) is not None:
        reached += f", PE utilisation {percent(utilization)} %"
    # A single point has no slowest to be compared with.
    if len(times) == 1:
        return f"{workload}: {reached}."
    # Of steps that make tokens, the one of the fewest sequences takes the least time, and is not what is fast.
    said = "takes the least time for a step" if known.get("tokens_per_s") is not None else "is fastest"
    return (
        f"{workload} {said} with {_settings(points, best)}: {reached}; "
        f"the slowest of its {len(times):,} points takes {quantity(slowest, TIMES)}, "
        f"{three_digits(slowest / times[best])} times as long."
    )


def _axis(key: str, values: Sequence[str]) -> dict[str, Any]:
    """Return the values of an axis in order, and what they measure when all of them do."""
    distinct = dict.fromkeys(values)
    known = {value: measure for value in distinct if (measure := magnitude(value)) is not None}
    if len(known) < len(distinct):
        return {"key": key, "values": [*distinct], "measures": None}
    order = sorted(known, key=known.__getitem__)
    return {"key": key, "values": order, "measures": [known[value] for value in order]}


def _figures(points: SweepPoints) -> list[PageColumn]:
    """Say how the columns of points.csv are written; an unknown one gets three digits."""
    keys = dict.fromkeys((*(goal.column for goal in points.goals), *_FIRST, *points.figures))
    return [
        column(column_of(key), (value for value in points.figures[key] if value is not None))
        for key in keys
        if key in points.figures and key != "batch"
    ]
