"""The command `tpusim list`."""

from __future__ import annotations

from tpusim.cli.terminal import errors_reported

EXAMPLE = "Example: tpusim list"


def list_shipped() -> None:
    """List the workloads and the hardware that come with tpusim."""
    with errors_reported():
        from tpusim.cli.actions.shipped import show_shipped

        show_shipped()
