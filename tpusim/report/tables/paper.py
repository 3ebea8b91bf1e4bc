"""The claims of the paper with their verdicts, as a table, as rows for documents, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from tpusim.base.words import counted
from tpusim.report.shown import Column, Table, document
from tpusim.report.text import WIDEST, folded
from tpusim.study.paper.claims import VERDICTS, Claim
from tpusim.study.paper.exhibit import Exhibit

ClaimRow = tuple[Exhibit, Claim]


def rows_of(made: Sequence[Exhibit]) -> list[ClaimRow]:
    """Return every claim with its exhibit, in their order."""
    return [(each, claim) for each in made for claim in each.claims]


def claim_table(made: Sequence[Exhibit]) -> Table[ClaimRow]:
    """Return a row a claim."""
    columns: list[Column[ClaimRow]] = [
        Column("where", lambda row: row[0].words.name, justify="left"),
        Column("claim", lambda row: row[1].short, justify="fold"),
        Column("stated", lambda row: row[1].stated, 1, justify="left"),
        Column("ours", lambda row: row[1].ours),
        Column("agree", lambda row: agreeing(row[1]), 1),
        Column("verdict", lambda row: row[1].verdict, justify="left"),
    ]
    return Table(columns, rows_of(made))


def agreeing(claim: Claim) -> str:
    """Write how many of our figures are within the rule: "2 of 4"."""
    return f"{len(claim.kept)} of {len(claim.findings)}" if claim.findings else "-"


def summary(made: Sequence[Exhibit], width: int = WIDEST) -> str:
    """Say how many claims have which verdict."""
    counts = Counter(row[1].verdict for row in rows_of(made))
    told = ", ".join(f"{verdict} {counts[verdict]}" for verdict in VERDICTS if counts[verdict])
    return folded([f"{counted(counts.total(), 'claim')}: {told}."], width)


def to_json(made: Sequence[Exhibit]) -> str:
    """Write exhibits with their claims, rules, findings and verdicts as JSON."""
    return document(
        exhibits=[
            {
                **each.words.model_dump(exclude={"claims"}),
                "claims": [
                    {
                        **claim.model_dump(include={"key", "short", "sentence", "section", "stated", "note"}),
                        "rule": claim.rule or None,
                        "findings": [{**asdict(found), "agrees": found in claim.kept} for found in claim.findings],
                        "unit": claim.unit if claim.rule else None,
                        "verdict": claim.verdict,
                    }
                    for claim in each.claims
                ],
                "tables": [asdict(table) for table in each.tables],
            }
            for each in made
        ]
    )
