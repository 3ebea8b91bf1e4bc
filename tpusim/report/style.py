"""How tones and hatches are drawn, in pictures and on the page."""

from __future__ import annotations

from collections.abc import Mapping

from tpusim.result.vocabulary.states import CLIENTS, ENERGIES, STATES

HATCHES: Mapping[str, tuple[str, str]] = {
    "": ("", ""),
    "level": ("---", "M0,3H6"),
    "bars": ("|||", "M3,0V6"),
    "rising": ("///", "M-1,7L7,-1M-1,1L1,-1M5,7L7,5"),
    "falling": ("\\\\\\", "M-1,-1L7,7M-1,5L1,7M5,-1L7,1"),
    "crossed": ("xxx", "M0,0L6,6M0,6L6,0"),
    "grid": ("+++", "M3,0V6M0,3H6"),
    "rings": ("ooo", "M1.5,3a1.5,1.5 0 1,0 3,0a1.5,1.5 0 1,0 -3,0"),
    "dots": ("...", "M2.45,3a.55,.55 0 1,0 1.1,0a.55,.55 0 1,0 -1.1,0"),
}
"""Hatches by name: matplotlib's pattern, and lines in a square of 6 x 6."""

SERIES = (
    ("#0b3c5d", "o"), ("#d55e00", "s"), ("#56b4e9", "^"), ("#7a7a7a", "D"), ("#c49a6c", "v"), ("#000000", "P"),
    ("#b3a100", "X"),
)  # fmt: skip
"""Tone and marker of the first curve of a picture, the second, ..."""

MAIN, MARK, GREY = "#0b3c5d", "#d55e00", "#9a9a9a"
"""Tones of a picture's subject, of what it points at, and of all the rest."""

_PAGE: Mapping[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#12161b"), "panel": ("#f4f6f8", "#1b2129"), "ink": ("#171b20", "#e9edf1"),
    "soft": ("#545d68", "#a6b0bb"), "line": ("#d4dae0", "#343d48"), "accent": ("#0b4a7a", "#8cc8f5"),
    "good": ("#0b6b3a", "#7ad9a3"), "good-paper": ("#e6f4ec", "#143024"), "bad": ("#a8201a", "#ff9c93"),
    "bad-paper": ("#fdebea", "#3b1a1a"), "mark": ("#ffe9a8", "#5a4a12"), "memory": ("#9dbdd6", "#2f5878"),
    "hatch": ("#1a1f25", "#0c0f13"), "hatch-soft": ("#5d7f9b", "#7fa9c9"),
}  # fmt: skip
"""The page's own tones, on light and on dark ground."""


_DRAWN = (*STATES.values(), *CLIENTS.values(), *ENERGIES.values())
"""The looks of everything that is drawn as a part of something."""


def tones() -> dict[str, str]:
    """Return the page's tones, `light` and `dark`, as CSS custom properties: one for each look."""
    looks = {each.key: (each.look.light, each.look.dark) for each in _DRAWN}
    pairs = {**_PAGE, **looks}.items()
    return {
        "light": " ".join(f"--{key}: {light};" for key, (light, _) in pairs),
        "dark": " ".join(f"--{key}: {dark};" for key, (_, dark) in pairs),
    }


def hatches() -> dict[str, tuple[str, str]]:
    """Return name and lines of the hatch of each look that has one."""
    looks = {each.key: each.look.hatch for each in _DRAWN}
    return {key: (hatch, HATCHES[hatch][1]) for key, hatch in looks.items() if hatch}
