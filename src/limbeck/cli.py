"""The command line: one sub-command a verb, each of which only parses and calls the function that does it."""

from __future__ import annotations

import argparse
import json
import sys
from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError

from limbeck import __version__
from limbeck._settings import Setting, described_settings, flag
from limbeck.errors import CheckFailed, UserError
from limbeck.objectives import METHODS
from limbeck.recipe import Recipe, read_recipe, validate

LENGTHS = {"steps", "tokens", "epochs"}
"""Ways of saying how long to train; a flag for one overrides whichever the recipe file has."""
DONE, CHECK_FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, and where the help is; flags are written out."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the return value is the process's exit code."""
    try:
        parsed = _parser().parse_args(arguments)
        command: Callable[[argparse.Namespace], dict[str, Any]] = parsed.command
        result = command(parsed)
        if parsed.json:
            print(json.dumps(result, ensure_ascii=False), flush=True)
    except UserError as error:
        print(f"limbeck: {error}", file=sys.stderr)
        return WRONG_INPUT
    except CheckFailed as error:
        print(f"limbeck: {error}", file=sys.stderr)
        return CHECK_FAILED
    except (OSError, SafetensorError) as error:
        print(f"limbeck: {' '.join(str(error).split())}; what was complete before is still there", file=sys.stderr)
        return CHECK_FAILED
    except KeyboardInterrupt:
        print("limbeck: interrupted; a run with checkpoints goes on with --resume auto", file=sys.stderr)
        return INTERRUPTED
    return DONE


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="limbeck", description="Distil large Transformer encoders into small, fast students.")
    parser.add_argument("--version", action="version", version=f"limbeck {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    _add_distill(commands)
    _add_quickstart(commands)
    _add_describe(commands)
    return parser


def _add_distill(commands: Any) -> None:
    parser = commands.add_parser(
        "distill",
        help="distil a teacher into a smaller student",
        description="Distil a teacher into a smaller student; the run directory gets the student, a log and a summary.",
    )
    recipe = parser.add_argument_group("recipe", "the fields of a recipe file (--config), and Python's arguments")
    for setting in described_settings(Recipe):
        if setting.name == "objective":
            names = ", ".join(method.name for method in METHODS)
            recipe.add_argument("--objective", metavar="NAME", default=SUPPRESS, help=f"{setting.text}: {names}")
        else:
            _add_flag(recipe, setting)
    for setting, methods in _objective_settings().items():
        _add_flag(recipe, setting, f"[{', '.join(methods)}] ")
    parser.add_argument("--config", type=Path, metavar="RECIPE", help="a recipe file, whose fields the flags override")
    parser.add_argument("--dry-run", action="store_true", help="check everything and say what the run would need; write nothing")
    _add_destination(parser)
    parser.set_defaults(command=_distill)


def _add_quickstart(commands: Any) -> None:
    parser = commands.add_parser(
        "quickstart",
        help="distil a small teacher on the text that ships with Limbeck, and measure what it bought",
        description="Distil all-MiniLM-L6-v2 (6x384) into 3x384 on the text that ships with Limbeck, and compare teacher, "
        "undistilled and distilled student. About five minutes on two cores.",
    )
    parser.add_argument("--sts", type=Path, metavar="FILE", help="STS-B's dev.tsv, to report the models' scores on it")
    _add_destination(parser, default=Path("runs/quickstart"))
    parser.set_defaults(command=_quickstart)


def _add_describe(commands: Any) -> None:
    parser = commands.add_parser(
        "describe",
        help="say what an encoder is, and what can be distilled from it",
        description="Say what an encoder is, what each objective can do with it as a teacher, and which students are usual.",
    )
    parser.add_argument("model", metavar="MODEL", help="folder (or hub name) of an encoder")
    parser.add_argument("--quiet", action="store_true", help="print nothing, only check that it loads")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on standard output")
    parser.set_defaults(command=_describe)


def _add_destination(parser: argparse.ArgumentParser, default: Path | None = None) -> None:
    shown = "" if default is None else f" ({default})"
    parser.add_argument(
        "-o", "--output", type=Path, metavar="RUN", required=default is None, default=default, help=f"the run directory{shown}"
    )
    parser.add_argument(
        "--resume", choices=("never", "auto"), default="never", help="auto: go on from the newest checkpoint in RUN, if any"
    )
    parser.add_argument("--overwrite", action="store_true", help="start anew although RUN holds an earlier run")
    parser.add_argument("--quiet", action="store_true", help="print no progress")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on standard output")


def _add_flag(group: Any, setting: Setting, prefix: str = "") -> None:
    default = f" ({setting.default})" if setting.default else ""
    group.add_argument(
        flag(setting.name),
        nargs="+" if setting.repeated else None,
        action="extend" if setting.repeated else "store",
        metavar="PATH" if setting.repeated else setting.name.upper().replace("_", "-"),
        default=SUPPRESS,
        help=(prefix + setting.text + default).replace("%", "%%"),
    )


def _objective_settings() -> dict[Setting, list[str]]:
    """Each objective's own settings, with the methods that have a setting of that name."""
    found: dict[str, tuple[Setting, list[str]]] = {}
    for method in METHODS:
        for setting in described_settings(method):
            if setting.name != "name":
                found.setdefault(setting.name, (setting, []))[1].append(method.name)
    return dict(found.values())


def _distill(parsed: argparse.Namespace) -> dict[str, Any]:
    given = vars(parsed)
    values = {} if parsed.config is None else read_recipe(parsed.config)
    if LENGTHS & given.keys():
        values = {name: value for name, value in values.items() if name not in LENGTHS}
    values |= {s.name: given[s.name] for s in described_settings(Recipe) if s.name in given and s.name != "objective"}
    values["objective"] = _objective(given, values.get("objective"))
    recipe = validate(Recipe, values, flag)
    if parsed.dry_run:
        return _dry_run(recipe, parsed)
    from limbeck.training.distill import run_recipe

    return run_recipe(recipe, **_destination(parsed)).summary


def _dry_run(recipe: Recipe, parsed: argparse.Namespace) -> dict[str, Any]:
    from limbeck.training.distill import forecast
    from limbeck.training.forecast import show_forecast

    told = forecast(recipe, **_destination(parsed))
    if not (parsed.json or parsed.quiet):
        show_forecast(told)
    return asdict(told)


def _objective(given: dict[str, Any], configured: Any) -> dict[str, Any]:
    """The objective's settings: those of the recipe file unless another method is named, then the flags."""
    start = {"name": configured} if isinstance(configured, str) else configured or {}
    if not isinstance(start, dict):
        raise UserError(f"The recipe's objective must be a name or a mapping with a name, not {start!r}.")
    start = {"name": METHODS[0].name, **start}
    if given.get("objective", start["name"]) != start["name"]:
        start = {"name": given["objective"]}
    return start | {s.name: given[s.name] for s in _objective_settings() if s.name in given}


def _quickstart(parsed: argparse.Namespace) -> dict[str, Any]:
    from limbeck.studies.quickstart import quickstart

    return quickstart(sts=parsed.sts, **_destination(parsed))


def _describe(parsed: argparse.Namespace) -> dict[str, Any]:
    from limbeck.studies.describe import describe, show_description

    description = describe(parsed.model)
    if not (parsed.json or parsed.quiet):
        show_description(description)
    return asdict(description)


def _destination(parsed: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(parsed, name) for name in ("output", "resume", "overwrite", "quiet")}
