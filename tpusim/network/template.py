"""A workload file that is read once, and resized: a template, whose lengths come later."""

from __future__ import annotations

from collections.abc import Mapping

from tpusim.input.document import Document
from tpusim.network.blocks import EntryReader
from tpusim.network.workload import Workload, with_sizes
from tpusim.network.workload_file import workload_of


class Template:
    """A workload of any sizes that its file names: entries stay as they were read, but for those that sizes reach."""

    def __init__(self, document: Document, batch: int) -> None:
        """Raise InputError with every problem of the file."""
        self._document, self._batch, self._reader = document, batch, EntryReader(document)
        self.work = self.at({})
        """The workload with the sizes of the file."""

    def at(self, sizes: Mapping[str, int]) -> Workload:
        """Return the workload with other sizes. Raises InputError as `load_workload` does."""
        return workload_of(with_sizes(self._document, sizes), self._batch, reader=self._reader)
