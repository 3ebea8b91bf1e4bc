"""The page of `tpusim paper`: claims and verdicts first, then every exhibit; pictures inside, no script."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape

from tpusim.base.version import __version__
from tpusim.report.page.assemble import document_page, fragment, html_table
from tpusim.report.tables.paper import ClaimRow, agreeing, rows_of, summary
from tpusim.study.paper.claims import CONDITION, FAILS, HOLDS, OPEN, VERDICTS, Claim
from tpusim.study.paper.exhibit import Exhibit

TITLE = "The paper, claim by claim"
_CLASSES = {HOLDS: "holds", CONDITION: "partly", FAILS: "fails", OPEN: "open"}


def paper_page(made: Sequence[Exhibit], images: Mapping[str, bytes], sources: Sequence[str]) -> bytes:
    """Return the page's bytes; `images` are PNGs by the stem of their exhibit, `sources` sentences on sources."""
    told = fragment(
        "paper",
        version=escape(__version__),
        summary=escape(summary(made, 10_000)),
        verdicts="".join(f"<dt>{_verdict(key)}</dt><dd>{escape(said)}</dd>" for key, said in VERDICTS.items()),
        claims="\n".join(map(_row, rows_of(made))),
        exhibits="\n".join(_section(each, images.get(each.words.stem)) for each in made),
        sources="".join(f"<p>{escape(each)}</p>" for each in sources),
    )
    return document_page(TITLE, told)


def _row(row: ClaimRow) -> str:
    exhibit, claim = row
    cells = (
        f'<a href="#{exhibit.words.stem}">{escape(exhibit.words.name)}</a>',
        escape(claim.short), escape(claim.stated), escape(claim.ours), agreeing(claim), _verdict(claim.verdict),
    )  # fmt: skip
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _verdict(verdict: str) -> str:
    return f'<span class="chip {_CLASSES[verdict]}">{escape(verdict)}</span>'


def _section(exhibit: Exhibit, image: bytes | None) -> str:
    words = exhibit.words
    title = escape(f"{words.name}: {words.title}")
    whose = f"<b>The paper</b> (section {escape(words.section)})." if words.section else "<b>Elsewhere.</b>"
    parts = [
        f'<section id="{words.stem}"><h2>{title}</h2>',
        f"<p>{whose} {escape(words.states)}</p>",
        f"<p><b>Here.</b> {escape(words.how)}</p>",
    ]
    if image:
        data = b64encode(image).decode()
        parts.append(f'<img src="data:image/png;base64,{data}" alt="{title}">')
    parts += [html_table(each.head, each.rows, each.title) for each in exhibit.tables]
    parts += [_claim(each) for each in exhibit.claims]
    return "\n".join([*parts, "</section>"])


def _claim(claim: Claim) -> str:
    rule = f"; agrees: {claim.rule}" if claim.rule else ""
    rows = [
        ("yes" if each in claim.kept else "no", claim.written(each.value), each.when, each.word)
        for each in claim.findings
    ]
    shown = html_table(("agrees", "ours", "when", "how it is known"), rows) if rows else ""
    said = f"<q>{escape(claim.sentence)}</q>" if claim.section else escape(claim.sentence)
    where = f"Section {escape(claim.section)}, stated" if claim.section else "Asked for"
    stated = f"{where}: {escape(claim.stated)}{escape(rule)}."
    return (
        f'<article><h3>{_verdict(claim.verdict)} {said}</h3><p class="soft">{stated}</p>'
        f"{shown}<p>{escape(claim.note)}</p></article>"
    )
