"""The commands by their names, and commands and options of other tools with their names here."""

from __future__ import annotations

import inspect
from collections import UserDict
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer import Typer
from typer.core import TyperGroup
from typer.main import get_command
from typer.models import CommandInfo

from tpusim.cli.options import RESULTS, WorkloadFlags

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
_SYNONYMS = {"simulate": "run", "sim": "run", "show": "report", "view": "report", "diff": "compare", "search": "sweep"}


class CommandsByName(UserDict[str, Any]):
    """Commands, each a Typer of its own, which reads its options when somebody asks for the command.

    To read the options of all commands takes long beside a short run, which needs those of one.
    """

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, Typer):
            for each in found.registered_commands:
                _take_flags(each)
            found = self.data[name] = get_command(found)
        return found


def _take_flags(command: CommandInfo) -> None:
    """Give a command that takes `WorkloadFlags` each of them as an option of its own: Typer knows no `**flags`."""
    assert command.callback, "a command has an action"
    signature = inspect.signature(command.callback, eval_str=True)
    kinds = {each.kind for each in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        *own, _ = signature.parameters.values()
        one = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
        flags = [one(name, default=False if get_args(kind)[0] is bool else None, annotation=kind)
                 for name, kind in get_type_hints(WorkloadFlags, include_extras=True).items()]  # fmt: skip
        # Help tells last where results go.
        end = next(at for at, each in enumerate(own) if each.name in RESULTS)
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        # Typer reads this signature, where a function has one, in place of its own.
        vars(command.callback)["__signature__"] = signature.replace(parameters=[*own[:end], *flags, *own[end:]])


COMMANDS = CommandsByName()


class Commands(TyperGroup):
    """The commands of `tpusim`, which recognize what users of other tools type."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = COMMANDS

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
            meant = f"{_SYNONYMS[name]} ..." if name in _SYNONYMS else next(kinds, file).format(name)
            return f"No such command {name!r}; did you mean: tpusim {meant}" if meant else ""
        known = {option for each in self.commands[name].params for option in each.opts}
        foreign = (option for word in words if (option := word.partition("=")[0]) in _OPTIONS.keys() - known)
        return next((f"No such option: {option}; {_OPTIONS[option]}" for option in foreign), "")
