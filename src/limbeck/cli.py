"""The command line: one sub-command a verb, each of which only parses and calls the function that does it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import traceback
from argparse import SUPPRESS
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError

from limbeck import __version__
from limbeck._settings import Setting, Spelling, described_settings, flag
from limbeck.errors import CheckFailed, UserError, out_of_memory
from limbeck.objectives import METHODS
from limbeck.recipe import Recipe, read_recipe, read_value, validate
from limbeck.stages import LENGTHS, StagedRecipe, override, recipe_of
from limbeck.tasks.protocols import names as protocol_names
from limbeck.tasks.recipe import FineTuning
from limbeck.text import nearest, one_line

REPEATED = {
    "corpus": "PATH",
    "student": "SHAPE",
    "trackers": "TRACKER",
    "corpus_weights": "WEIGHT",
    "data": "PATH",
    "text": "COLUMN",
    "languages": "LANGUAGE",
    "train_languages": "LANGUAGE",
    "splits": "SPLIT",
}
"""What stands in the help for each value of a flag that takes several."""
GIVEN_ANEW = ("student",)
"""Those of them that mostly take one value: given once more, they begin anew."""
DONE, CHECK_FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, and where the help is; flags are written out."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what this parser does not know, where the flags that it may have meant are known."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].split("=")[0]
            what = "no such flag" if word.startswith("-") else "nothing was expected here"
            self.error(f"{word}: {what}{nearest(word, self._option_string_actions)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the return value is the process's exit code, and no error leaves as a traceback."""
    try:
        try:
            with _terminable():
                _run(arguments)
        finally:
            if sys.stdout is not None:  # someone may have started the command with it closed
                sys.stdout.flush()
    except SystemExit as left:  # argparse has printed help or version; rich found its terminal closed
        return int(left.code or DONE)
    except KeyboardInterrupt as error:
        return _say(str(error) or "interrupted; a run with checkpoints goes on with --resume auto", INTERRUPTED)
    except UserError as error:
        return _say(str(error), WRONG_INPUT)
    except CheckFailed as error:
        return _say(str(error), CHECK_FAILED)
    except BrokenPipeError:
        # Whoever read the output has gone; Python would complain once more as it closes the streams.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        return CHECK_FAILED
    except (OSError, SafetensorError) as error:
        return _say(f"{one_line(error)}; what was complete before is still there", CHECK_FAILED)
    except Exception as error:
        if out_of_memory(error):
            return _say("out of memory; give a smaller --micro-batch-size, --batch-size or --max-length", CHECK_FAILED)
        return _say(_unexpected(error), CHECK_FAILED)
    return DONE


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does, with a word and nothing half-written."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: Sequence[str] | None) -> None:
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return
    # With --json the result alone goes to standard output, whatever a library prints.
    with redirect_stdout(sys.stderr) if parsed.json else nullcontext():
        result = parsed.command(parsed)
    if parsed.json:
        print(json.dumps(result, ensure_ascii=False))


def _say(message: str, code: int) -> int:
    print(f"limbeck: {message}", file=sys.stderr)
    return code


def _unexpected(error: Exception) -> str:
    """What to say of an error that is not the user's; its traceback goes to a file, or to the terminal if that is asked."""
    what = f"unexpected error: {type(error).__name__}: {one_line(error)}"
    if os.environ.get("LIMBECK_DEBUG", "0") != "0":
        traceback.print_exception(error)
        return what
    try:
        with tempfile.NamedTemporaryFile("w", prefix="limbeck-", suffix=".txt", delete=False) as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return f"{what}; please report it with the traceback that LIMBECK_DEBUG=1 shows"
    return f"{what}; please report it with the traceback in {file.name}, or run again with LIMBECK_DEBUG=1 to see it"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="limbeck", description="Distil large Transformer encoders into small, fast students.")
    parser.add_argument("--version", action="version", version=f"limbeck {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    _add_distill(commands)
    _add_run(commands)
    _add_recipes(commands)
    _add_finetune(commands)
    _add_evaluate(commands)
    _add_prepare(commands)
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
    parser.add_argument("--config", type=_path, metavar="RECIPE", help="a recipe file, whose fields the flags override")
    _add_dry_run(parser)
    _add_destination(parser)
    parser.set_defaults(command=_distill)


def _add_run(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="carry out a recipe, of one stage or several",
        description="Carry out a recipe file, or a recipe that ships with Limbeck (limbeck recipes); each stage of a recipe with "
        "stages is a run in RUN/stages, and RUN/student is the last one's.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe file, or the name of a recipe that ships with Limbeck")
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        type=_assignment,
        metavar="KEY=VALUE",
        help="fields to set anew, such as steps=10, objective.relation_heads=48, stages.1.student=4x384 or 'corpus=[a, b]'; one "
        "that names no stage holds for all of them",
    )
    _add_dry_run(parser)
    _add_destination(parser)
    parser.set_defaults(command=_run_recipe)


def _add_recipes(commands: Any) -> None:
    parser = commands.add_parser(
        "recipes", help="list the recipes that ship with Limbeck", description="List the recipes that ship with Limbeck."
    )
    _add_manners(parser, "print nothing")
    parser.set_defaults(command=_recipes)
    parser = commands.add_parser(
        "recipe",
        help="print a recipe that ships with Limbeck, to be changed",
        description="Print a recipe that ships with Limbeck; limbeck recipe NAME > my.yaml makes it your own.",
    )
    parser.add_argument("name", metavar="NAME", help="one that limbeck recipes lists")
    _add_manners(parser, "print nothing")
    parser.set_defaults(command=_recipe)


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything and say what the run would need; train and write nothing"
    )


def _add_finetune(commands: Any) -> None:
    parser = commands.add_parser(
        "finetune",
        help="fine-tune an encoder on a task, official or your own",
        description="Fine-tune an encoder on GLUE, XNLI, questions or your own table of texts and labels; the run directory gets "
        "the model, its predictions, a log and a summary.",
    )
    parser.add_argument("model", metavar="MODEL", nargs="?", default=SUPPRESS, help=_text_of(FineTuning, "model"))
    recipe = parser.add_argument_group("recipe", "the fields of a recipe file (--config), and Python's arguments")
    for setting in described_settings(FineTuning):
        if setting.name != "model":
            _add_flag(recipe, setting)
    parser.add_argument("--config", type=_path, metavar="RECIPE", help="a recipe file, whose fields the flags override")
    _add_protocol(parser)
    _add_destination(parser)
    parser.set_defaults(command=_finetune)


def _add_evaluate(commands: Any) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="compare teacher, undistilled twin, student and other models on tasks",
        description="Compare models on tasks: frozen (probes) or fine-tuned, over several seeds, with intervals. Of a run its "
        "student is evaluated, and beside it its teacher and its twin: the student as it was before distillation.",
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="runs, folders or hub names, also as NAME=MODEL")
    parser.add_argument("--tasks", nargs="+", required=True, metavar="TASK", help="such as cola,sst2,mrpc,rte,stsb")
    parser.add_argument("--data", nargs="+", required=True, metavar="PATH", help="the folder of the tasks' files")
    parser.add_argument("--dev", metavar="SHARE", help=_text_of(FineTuning, "dev"))
    parser.add_argument(
        "--label-map",
        type=_label_map,
        metavar="OUTPUT=LABEL,...",
        help="which label each output of a fine-tuned model stands for",
    )
    parser.add_argument("--finetune", action="store_true", help="fine-tune each model on each task; otherwise they are probed")
    parser.add_argument("--examples", type=_whole, metavar="N", help=f"{_text_of(FineTuning, 'examples')}; of probes, too")
    _add_protocol(parser, shown=" (small)")
    parser.add_argument("--test", action="store_true", help="predict test files, too, in their leaderboard's format")
    parser.add_argument(
        "--jobs",
        type=_whole,
        default=1,
        metavar="N",
        help="runs at a time, which share the cores; fastest as many as cores (1)",
    )
    _add_destination(parser, metavar="RESULTS")
    parser.set_defaults(command=_evaluate)


def _add_protocol(parser: argparse.ArgumentParser, shown: str = "") -> None:
    parser.add_argument(
        "--protocol",
        metavar="NAME",
        help=f"settings by task, or a paper's grid: {', '.join(name for name, _ in protocol_names())}, or a file{shown}",
    )
    parser.add_argument("--seeds", type=_whole, default=1, metavar="N", help="fine-tune so often, with other seeds (1)")
    parser.add_argument("--keep-models", action="store_true", help="keep the weights of every run, not only of the best")


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"give a whole number, 1 or more, not {text!r}")
    return int(text)


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (equals and key):
        raise argparse.ArgumentTypeError(f"write KEY=VALUE, such as steps=10, not {text!r}")
    return key, read_value(value)


def _label_map(text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(output and equals and label for output, equals, label in pairs):
        raise argparse.ArgumentTypeError("write OUTPUT=LABEL,OUTPUT=LABEL, such as LABEL_0=negative,LABEL_1=positive")
    return {output.strip(): label.strip() for output, _, label in pairs}


def _text_of(kind: type, name: str) -> str:
    return next(setting.text for setting in described_settings(kind) if setting.name == name)


def _add_prepare(commands: Any) -> None:
    parser = commands.add_parser(
        "prepare",
        help="tokenise text once, for runs to map into memory",
        description="Tokenise text into a folder that runs take as their --corpus. Interrupted, it goes on when run again.",
    )
    parser.add_argument("corpus", nargs="+", metavar="CORPUS", help="files, folders and data sets, as for distill --corpus")
    parser.add_argument("--tokenizer", required=True, metavar="PATH", help="folder (or hub name) of the teacher or its tokenizer")
    parser.add_argument("--text-column", default="text", help="where the text stands in JSON lines, Parquet and data sets (text)")
    parser.add_argument("-o", "--output", type=_path, metavar="SHARDS", required=True, help="the folder")
    parser.add_argument("--overwrite", action="store_true", help="prepare anew although SHARDS was made of other text")
    _add_manners(parser)
    parser.set_defaults(command=_prepare)


def _add_quickstart(commands: Any) -> None:
    parser = commands.add_parser(
        "quickstart",
        help="distil a small teacher on the text that ships with Limbeck, and measure what it bought",
        description="Distil all-MiniLM-L6-v2 (6x384) into 3x384 on the text that ships with Limbeck, and compare teacher, "
        "undistilled and distilled student. About five minutes on two cores.",
    )
    parser.add_argument("--sts", type=_path, metavar="FILE", help="STS-B's dev.tsv, to report the models' scores on it")
    _add_destination(parser, default=Path("runs/quickstart"))
    parser.set_defaults(command=_quickstart)


def _add_describe(commands: Any) -> None:
    parser = commands.add_parser(
        "describe",
        help="say what an encoder is, and what can be distilled from it",
        description="Say what an encoder is, what each objective can do with it as a teacher, and which students are usual.",
    )
    parser.add_argument("model", metavar="MODEL", help="folder (or hub name) of an encoder")
    _add_manners(parser, "print nothing, only check that it loads")
    parser.set_defaults(command=_describe)


def _add_destination(parser: argparse.ArgumentParser, default: Path | None = None, metavar: str = "RUN") -> None:
    dry_run = any(action.dest == "dry_run" for action in parser._actions)
    shown = f" ({default})" if default else " (not needed for --dry-run)" if dry_run else ""
    required = default is None and not dry_run
    what = "the run directory" if metavar == "RUN" else "the directory of the results"
    parser.add_argument("-o", "--output", type=_path, metavar=metavar, required=required, default=default, help=f"{what}{shown}")
    parser.add_argument(
        "--resume", choices=("never", "auto"), default="never", help=f"auto: go on with what is in {metavar}, if anything"
    )
    parser.add_argument("--overwrite", action="store_true", help=f"start anew although {metavar} holds earlier work")
    _add_manners(parser)


def _add_manners(parser: argparse.ArgumentParser, quiet: str = "print no progress") -> None:
    parser.add_argument("--quiet", action="store_true", help=quiet)
    parser.add_argument("--json", action="store_true", help="print the result as JSON on standard output")


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"there is no home directory {Path(text).parts[0]}") from error


def _add_flag(group: Any, setting: Setting, prefix: str = "") -> None:
    default = f" ({setting.default})" if setting.default else ""
    if setting.switch:
        group.add_argument(
            flag(setting.name), action=argparse.BooleanOptionalAction, default=SUPPRESS, help=prefix + setting.text
        )
        return
    group.add_argument(
        flag(setting.name),
        nargs="+" if setting.repeated else None,
        action="extend" if setting.repeated and setting.name not in GIVEN_ANEW else "store",
        metavar=REPEATED[setting.name] if setting.repeated else setting.name.upper().replace("_", "-"),
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
    configured = {} if parsed.config is None else read_recipe(parsed.config)
    if "stages" in configured:
        raise UserError(f"{parsed.config} has stages; carry it out with limbeck run {parsed.config}.")
    values = configured
    if given.keys() & set(LENGTHS):
        values = {name: value for name, value in values.items() if name not in LENGTHS}
    values |= {s.name: given[s.name] for s in described_settings(Recipe) if s.name in given and s.name != "objective"}
    values["objective"] = _objective(given, values.get("objective"))
    recipe = validate(Recipe, values, _spelling(given, configured))
    if parsed.dry_run:
        return _dry_run(recipe, parsed)
    from limbeck.training.distill import run_recipe

    return run_recipe(recipe, **_destination(parsed)).summary


def _run_recipe(parsed: argparse.Namespace) -> dict[str, Any]:
    from limbeck.recipes import find

    configured, changes = find(parsed.recipe), dict(parsed.set)
    if len(changes) < len(parsed.set):
        raise UserError("--set was given a key twice; several values stand in brackets, such as 'corpus=[a, b]'.")

    values = override(configured, changes)
    written = {*configured, *(name for own in configured.get("stages") or [] for name in own)}
    changed = {key.split(".")[2 if key.startswith("stages.") else 0] for key in changes}

    def spell(place: Sequence[str]) -> str:
        name = ".".join(place)
        if place[0] in changed:
            return f"--set {name}"
        return f"{name} in {parsed.recipe}" if place[0] in written else f"{name} (--set {name}=...)"

    recipe = recipe_of(values, spell)
    if parsed.dry_run:
        return _dry_run(recipe, parsed)
    from limbeck.training.distill import run_recipe

    return run_recipe(recipe, **_destination(parsed)).summary


def _recipes(parsed: argparse.Namespace) -> list[dict[str, Any]]:
    from limbeck.recipes import about, names, show_recipes

    shipped = [about(name) for name in names()]
    if not (parsed.json or parsed.quiet):
        show_recipes(shipped)
    return [asdict(recipe) for recipe in shipped]


def _recipe(parsed: argparse.Namespace) -> dict[str, Any]:
    from limbeck.recipes import about

    recipe = about(parsed.name)
    if not (parsed.json or parsed.quiet):
        print(recipe.text, end="")
    return dict(recipe.fields)


def _finetune(parsed: argparse.Namespace) -> dict[str, Any]:
    given = vars(parsed)
    configured = {} if parsed.config is None else read_recipe(parsed.config)
    flags = {setting.name: given[setting.name] for setting in described_settings(FineTuning) if setting.name in given}
    dropped = {"epochs", "steps"} if {"epochs", "steps"} & flags.keys() else set()
    values = {name: value for name, value in configured.items() if name not in dropped} | flags
    spell = _spelling(given, configured)
    if parsed.protocol is None and parsed.seeds == 1:
        recipe = validate(FineTuning, values, spell)
        from limbeck.tasks.finetune import run_finetuning

        summary = run_finetuning(recipe, **_destination(parsed)).summary
    else:
        from limbeck.studies.grid import finetune_grid

        for name in ("model", "data"):
            if name not in values:
                raise UserError(f"{spell([name])} is required.")
        given = {"protocol": parsed.protocol, "seeds": parsed.seeds, "keep_models": parsed.keep_models}
        summary = finetune_grid(**values, **given, **_destination(parsed)).summary
    if not (parsed.json or parsed.quiet):
        _show_finetuned(summary)
    return summary


def _show_finetuned(summary: dict[str, Any]) -> None:
    from limbeck.studies.grid import show_grid
    from limbeck.tasks.scores import show_scores

    (show_grid if "combinations" in summary else show_scores)(summary)


def _evaluate(parsed: argparse.Namespace) -> dict[str, Any]:
    from limbeck.studies.evaluate import evaluate

    names = (
        "models",
        "tasks",
        "data",
        "dev",
        "label_map",
        "finetune",
        "protocol",
        "seeds",
        "examples",
        "test",
        "jobs",
        "keep_models",
    )
    return evaluate(**{name: getattr(parsed, name) for name in names}, **_destination(parsed))


def _spelling(given: dict[str, Any], configured: dict[str, Any]) -> Spelling:
    """How to name a setting in a message: as the flag, unless it was the recipe file that set it."""

    def spell(place: Sequence[str]) -> str:
        name = place[1] if place[0] == "objective" and len(place) > 1 else place[0]
        if name == "model" and name not in configured:
            return "MODEL"  # no flag: it stands right behind the command
        return f"{'.'.join(place)} in {given['config']}" if place[0] in configured and name not in given else flag(name)

    return spell


def _dry_run(recipe: Recipe | StagedRecipe, parsed: argparse.Namespace) -> dict[str, Any]:
    from limbeck.training.distill import ALONE, forecasts
    from limbeck.training.forecast import show_forecasts

    if parsed.output is None:
        parsed.output = Path(tempfile.gettempdir(), f"limbeck-dry-run-{os.getpid()}")  # nothing is written there
    try:
        told = forecasts(recipe, **_destination(parsed))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; nothing was trained") from None
    if not (parsed.json or parsed.quiet):
        show_forecasts(told, side_by_side=isinstance(recipe, Recipe) and len(recipe.students) > 1)
    if ALONE in told:
        return asdict(told[ALONE])
    parts = "students" if isinstance(recipe, Recipe) and len(recipe.students) > 1 else "stages"
    return {parts: {name: asdict(each) for name, each in told.items()}}


def _objective(given: dict[str, Any], configured: Any) -> dict[str, Any]:
    """The objective's settings: those of the recipe file unless another method is named, then the flags."""
    start = {"name": configured} if isinstance(configured, str) else configured or {}
    if not isinstance(start, dict):
        raise UserError(f"The recipe's objective must be a name or a mapping with a name, not {start!r}.")
    start = {"name": METHODS[0].name, **start}
    if given.get("objective", start["name"]) != start["name"]:
        start = {"name": given["objective"]}
    return start | {s.name: given[s.name] for s in _objective_settings() if s.name in given}


def _prepare(parsed: argparse.Namespace) -> dict[str, Any]:
    from limbeck.data.corpora import prepare

    names = ("corpus", "tokenizer", "output", "text_column", "overwrite", "quiet")
    return prepare(**{name: getattr(parsed, name) for name in names})


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
    if parsed.output is None:
        raise UserError("-o is required; name the run's directory.")
    return {name: getattr(parsed, name) for name in ("output", "resume", "overwrite", "quiet")}
