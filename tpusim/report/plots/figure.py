"""How every picture looks."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tpusim.report.plots.formats import FORMATS
from tpusim.result.records import Result

STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.4,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType: a journal's checks and a reader's search find text
    "svg.fonttype": "none",  # text stays text: searchable, and in the reader's font
    "svg.hashsalt": "tpusim",  # the same result gives the same file
}


DOTS_PER_INCH = 200


def figure_of(width: float, height: float) -> Figure:
    """An empty figure, in inches, that lays itself out."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def titled(axes: Axes, result: Result, more: str = "") -> None:
    """Network, batch and machine above a picture."""
    # Dollar signs would start mathematics.
    name = f"{result.workload}, batch {result.batch}, {result.hardware.get('name', '')}{more}"
    axes.set_title(name.replace("$", r"\$"))


@dataclass(frozen=True)
class Picture:
    """A picture with what stands under it in a paper; `draw` is called for each file."""

    name: str
    caption: str
    draw: Callable[[], Figure]

    def files(self, kinds: Sequence[str] = FORMATS) -> Iterator[tuple[str, bytes]]:
        """File name and contents in each format; the caption is in the file as well."""
        with rc_context(rc=STYLE):
            for kind in kinds:
                yield f"{self.name}.{kind}", rendered(self.draw(), kind, self.caption)


def rendered(figure: Figure, kind: str, caption: str = "") -> bytes:
    """The file's contents; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, metadata=_metadata(kind, caption))
    return buffer.getvalue()


def _metadata(kind: str, caption: str) -> dict[str, str | None]:
    match kind:
        case "pdf":
            return {"CreationDate": None, "Subject": caption}
        case "svg":
            return {"Date": None, "Description": caption}
        case _:
            return {"Software": None, "Description": caption}
