"""Ops that make each element of a map of one at the same place, whatever they do with it."""

from __future__ import annotations

from collections.abc import Mapping

from tpusim.input.form import validated
from tpusim.network.ops.map_op import MapOp
from tpusim.network.ops.op import OFMAP, Index, Shape


@validated
class Pointwise(MapOp):
    """Such an op."""

    @property
    def operation(self) -> str:
        """Known by the name of the op."""
        return self.op

    @property
    def text(self) -> str:
        """ "56x56x64" is rows x cols x channels, n the images where these are not the batch."""
        return self.map_text

    def shapes(self, batch: int) -> Mapping[str, Shape]:
        """As large as what comes out."""
        return {"ifmap": self.map(batch), OFMAP: self.map(batch)}

    def element_name(self, index: Index) -> tuple[tuple[str, ...], Index]:
        """Rows and columns of a product, where the map is one."""
        return (("row", "col"), (index[3], index[0])) if self.images and self.height * self.width == 1 else (
            ("channel", "row", "col", "image"), index
        )  # fmt: skip
