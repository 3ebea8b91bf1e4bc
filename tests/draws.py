"""How hypothesis draws cases here: each by itself, and the same wherever a test runs."""

from __future__ import annotations

from typing import Any

from hypothesis.internal.conjecture import providers

BACKEND = "case_by_case"


class CaseByCase(providers.HypothesisProvider):
    """Draws as hypothesis does, without two things that pay where a case costs nothing.

    With its own provider hypothesis tries each case up to five times more, with two of its parts made equal; a new case
    shows more. And it takes numbers from the sources of all modules that happen to be imported, so that a test by
    itself had other cases than the same test among others.
    """

    def _maybe_draw_constant(self, *_: Any, **__: Any) -> None:
        return None


providers.AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.{CaseByCase.__name__}"
