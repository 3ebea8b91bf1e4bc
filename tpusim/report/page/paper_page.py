"""The page of `tpusim paper`: claims and verdicts first, then every exhibit; pictures inside, no script."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template

from tpusim.base.version import __version__
from tpusim.report.style import tones
from tpusim.report.tables.paper import Row, agreeing, rows_of, summary
from tpusim.study.paper.claims import CONDITION, FAILS, HOLDS, OPEN, VERDICTS, Claim
from tpusim.study.paper.exhibit import Exhibit, Table

_ASSETS = files("tpusim.report.page") / "assets"
TITLE = "The paper, claim by claim"
_CLASSES = {HOLDS: "holds", CONDITION: "partly", FAILS: "fails", OPEN: "open"}


def paper_page(made: Sequence[Exhibit], images: Mapping[str, bytes], sources: Sequence[str]) -> bytes:
    """The file's contents; `images` are PNGs by the stem of their exhibit, `sources` sentences on sources."""
    style = Template(_asset("paper.css")).substitute(tones())
    digest = b64encode(sha256(style.encode()).digest()).decode()
    text = Template(_asset("paper.html")).substitute(
        title=TITLE,
        policy=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        style=style,
        version=escape(__version__),
        summary=escape(summary(made, 10_000)),
        verdicts=_definitions(VERDICTS),
        claims="\n".join(map(_row, rows_of(made))),
        exhibits="\n".join(_section(each, images.get(each.words.stem)) for each in made),
        sources=_paragraphs(sources),
    )
    return text.encode(errors="replace")


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _definitions(pairs: Mapping[str, str]) -> str:
    return "".join(
        f'<dt><span class="verdict {_CLASSES[key]}">{escape(key)}</span></dt><dd>{escape(meaning)}</dd>'
        for key, meaning in pairs.items()
    )


def _paragraphs(sentences: Iterable[str]) -> str:
    return "".join(f"<p>{escape(each)}</p>" for each in sentences)


def _row(row: Row) -> str:
    claim = row.claim
    cells = (
        f'<a href="#{row.exhibit.words.stem}">{escape(row.exhibit.words.name)}</a>',
        escape(claim.short), escape(claim.stated), escape(claim.ours), agreeing(claim), _verdict(claim),
    )  # fmt: skip
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _verdict(claim: Claim) -> str:
    return f'<span class="verdict {_CLASSES[claim.verdict]}">{escape(claim.verdict)}</span>'


def _section(exhibit: Exhibit, image: bytes | None) -> str:
    words = exhibit.words
    title = escape(f"{words.name}: {words.title}")
    parts = [
        f'<section id="{words.stem}"><h2>{title}</h2>',
        f"<p>{_whose(words.section)} {escape(words.states)}</p>",
        f"<p><b>Here.</b> {escape(words.how)}</p>",
    ]
    if image:
        data = b64encode(image).decode()
        parts.append(f'<img src="data:image/png;base64,{data}" alt="{title}">')
    parts += [_table(each) for each in exhibit.tables]
    parts += [_claim(each) for each in exhibit.claims]
    return "\n".join([*parts, "</section>"])


def _table(view: Table) -> str:
    head = "".join(f"<th>{escape(each)}</th>" for each in view.head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in view.rows)
    caption = f"<caption>{escape(view.title)}</caption>" if view.title else ""
    return f'<div class="scroller"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _claim(claim: Claim) -> str:
    rule = f"; agrees: {claim.rule}" if claim.rule else ""
    findings = "".join(
        f"<tr><td>{'yes' if each in claim.kept else 'no'}</td><td>{escape(claim.written(each.value))}</td>"
        f"<td>{escape(each.when)}</td><td>{escape(each.word)}</td></tr>"
        for each in claim.findings
    )
    head = "".join(f"<th>{each}</th>" for each in ("agrees", "ours", "when", "how it is known"))
    shown = f'<div class="scroller"><table><thead><tr>{head}</tr></thead><tbody>{findings}</tbody></table></div>'
    said = f"<q>{escape(claim.sentence)}</q>" if claim.section else escape(claim.sentence)
    where = f"Section {escape(claim.section)}, stated" if claim.section else "Asked for"
    return (
        f'<article><h3>{_verdict(claim)} {said}</h3><p class="soft">{where}: {escape(claim.stated)}{escape(rule)}.</p>'
        f"{shown if findings else ''}<p>{escape(claim.note)}</p></article>"
    )


def _whose(section: str) -> str:
    """Whose words follow."""
    return f"<b>The paper</b> (section {escape(section)})." if section else "<b>Elsewhere.</b>"
