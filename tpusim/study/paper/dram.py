"""Fig. 7: how an ifmap lies in HBM."""

from __future__ import annotations

from tpusim.machines.tpu.description import load_hardware
from tpusim.study.paper.claim import Finding
from tpusim.study.paper.exhibit import Asked, Found, Shown
from tpusim.study.paper.found import point_of
from tpusim.study.paper.layers import square
from tpusim.study.paper.views import Bars, Series

_LAYOUTS = "CHW", "HWC", "HWCN"
_STRIDES = 1, 2, 4
_WIDTHS = 14, 28, 56
_CHANNELS = 64
_FETCHES = {"per_tap": "each tap by itself", "resident": "a patch for all taps"}


def asked() -> Asked:
    """3x3 layers of 64 channels on a machine with an HBM of banks."""
    return {
        f"{layout} {fetch} {width} {stride}": point_of(
            "fig_7",
            [square((width, _CHANNELS, _CHANNELS, 3), stride)],
            load_hardware("tpu_v2_hbm", [f"hbm.layout={layout}", f"mapping.fetch={fetch}"]),
        )
        for layout in _LAYOUTS
        for fetch in _FETCHES
        for width in _WIDTHS
        for stride in _STRIDES
    }


def make(found: Found) -> Shown:
    """Bytes moved over bytes wanted, and time, by layout and stride."""
    groups = [f"{width}, stride {stride}" for width in _WIDTHS for stride in _STRIDES]

    def bars(title: str, unit: str, figure: str, scale: float) -> Bars:
        series = [
            Series(layout, [
                float(found[f"{layout} per_tap {width} {stride}"].figures[figure]) / scale
                for width in _WIDTHS for stride in _STRIDES
            ])
            for layout in _LAYOUTS
        ]  # fmt: skip
        return Bars(title, groups, series, unit)

    views = [
        bars("each tap fetched by itself", "bytes moved over bytes wanted", "hbm_overfetch", 1),
        bars("each tap fetched by itself", "time (thousand cycles)", "cycles", 1e3),
    ]
    return Shown(views, {"layout_stride_1": _ratios(found, [1]), "layout_strides": _ratios(found, _STRIDES[1:])})


def _ratios(found: Found, strides: tuple[int, ...] | list[int]) -> list[Finding]:
    """Cycles by CHW over those by HWC."""
    return [
        Finding(
            f"{width} columns, stride {stride}, {what}",
            found[f"CHW {fetch} {width} {stride}"].cycles / found[f"HWC {fetch} {width} {stride}"].cycles,
        )
        for fetch, what in _FETCHES.items()
        for stride in strides
        for width in _WIDTHS
    ]
