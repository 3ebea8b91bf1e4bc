"""Commands and options of other tools, and their names here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.core import TyperGroup

_NETWORK = "the network comes first, without an option: tpusim run resnet50"
_MACHINE = "the machine is --hardware NAME or a .yaml path; its fields are changed with --set array.rows=64"
_FOLDER = "results go to --out DIR"
_OPTIONS = {
    **dict.fromkeys(("-t", "-m", "--topology", "--model", "--network", "--workload", "--net"), _NETWORK),
    **dict.fromkeys(("-c", "--config", "--cfg", "--arch", "--architecture", "--target"), _MACHINE),
    "--device": f"{_MACHINE}, and its DRAM with --set hbm.model=banks --set hbm.device=NAME",
    **dict.fromkeys(("-p", "-o", "--output", "--outdir", "--output-dir", "--save", "--logdir"), _FOLDER),
    **dict.fromkeys(("-b", "--batch-size", "--batch_size", "-n"), "the batch is --batch N"),
    **dict.fromkeys(("-j", "--jobs", "--threads", "--processes"), "sweeps have --workers N"),
}
"""Options by their names in other tools."""
_COMMANDS = {"simulate": "run", "sim": "run", "show": "report", "view": "report", "diff": "compare", "search": "sweep"}


class Commands(TyperGroup):
    """The commands of `tpusim`, which recognize what users of other tools type."""

    # Typer's own types for these arguments are private.
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a command as Typer does, or fail with the command to type. Completion asks, too, about unfinished
        words.
        """
        if not ctx.resilient_parsing and (wrong := self._wrong(*args)):
            ctx.fail(wrong)
        return super().resolve_command(ctx, args)

    def _wrong(self, name: str, *words: str) -> str:
        if name not in self.commands:
            # Imported here, because help and --version need no files.
            from tpusim.input.source import shipped

            uses = {"workloads": "run {}", "configs/sweeps": "sweep {}", "configs": "run WORKLOAD --hardware {}"}
            kinds = (use for folder, use in uses.items() if name in shipped(folder))
            file = "run {}" if Path(name).suffix in (".yaml", ".yml", ".onnx", ".csv") else ""
            meant = f"{_COMMANDS[name]} ..." if name in _COMMANDS else next(kinds, file).format(name)
            return f"No such command {name!r}; did you mean: tpusim {meant}" if meant else ""
        known = {option for each in self.commands[name].params for option in each.opts}
        foreign = (option for word in words if (option := word.partition("=")[0]) in _OPTIONS.keys() - known)
        return next((f"No such option: {option}; {_OPTIONS[option]}" for option in foreign), "")
