"""What tests have other processes do: each of these reads this file, and whatever it imports."""

from __future__ import annotations

import gc
import os
import signal
import time

from tpusim.base.errors import InputError


def doubled(text: str) -> str:
    if text.startswith("wrong"):
        # The later one is found first.
        time.sleep(0.3 * (text == "wrong 1"))
        raise InputError(text)
    return text + text


def process_of(_: int) -> tuple[int, int]:
    """The process, and how seldom it looks for cycles."""
    time.sleep(0.05)
    return os.getpid(), gc.get_threshold()[0]


def killed(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
