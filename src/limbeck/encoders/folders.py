"""From what a user names to the folder that holds a model: the several layouts in which encoders are kept."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from limbeck.errors import UserError

FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
"""What is fetched of a hub model."""
HUB_SECONDS = 10
"""How long the hub may take to answer that it has a model."""
REMEDIES = {
    "GatedRepoError": "the hub's {what} of that name is gated; ask for access on its page, then log in with 'hf auth login'.",
    "RepositoryNotFoundError": "the hub has no {what} of that name that you may see; check the spelling, or log in with "
    "'hf auth login' if it is private.",
    "HFValidationError": "it is no hub name either; check the path.",
    "OfflineModeIsEnabled": "nothing may be fetched from the hub while HF_HUB_OFFLINE is set; check the path, or unset it.",
}
"""What to do about an answer of the hub's, by the name of the error, for one of the two kinds of things it has."""
RUN_RECIPE = "recipe.yaml"
RUN_STUDENT, RUN_STUDENTS = "student", "students"
"""What tells a run's directory, and where its student lies, or several students."""
RUN_SUMMARY, RUN_REMOVED = "summary.json", "weights_removed"
"""The summary of a finished run, and what in it says why its weights were removed."""


def model_folder(source: str) -> Path:
    """The folder with config.json, weights and tokenizer that a name stands for.

    Args:
        source: a Hugging Face folder, a sentence-transformers folder, a run's directory, or a hub name (owner/model).

    Raises:
        UserError: no such folder, nor a hub model that can be fetched; sentence embeddings that no Transformer computes; a
            run without a student.
    """
    folder = _local(source) or _fetched(source)
    if (folder / "modules.json").is_file():
        return _transformer_of(folder)
    if (folder / RUN_RECIPE).is_file() and not (folder / "config.json").is_file():
        return _student_of(folder)
    return folder


def _local(source: str) -> Path | None:
    """A folder on this machine; None if the name may be a hub model's."""
    try:
        path = Path(source).expanduser()
        if path.is_dir():
            return path
        hub_name = not path.exists() and re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", source)
    except (OSError, RuntimeError):  # too long, not to be entered, or the home of nobody
        hub_name = None
    if not hub_name:
        raise UserError(
            f"There is no model folder {source!r}; give a folder with config.json and model.safetensors, or a hub name."
        )
    return None


def _fetched(source: str) -> Path:
    """A hub model in the hub's cache; what is there already is used where the hub does not answer."""
    from huggingface_hub import HfApi, snapshot_download

    try:
        revision = HfApi().model_info(source, timeout=HUB_SECONDS).sha
        return Path(snapshot_download(source, revision=revision, allow_patterns=FILES))
    except Exception as error:  # whatever the hub, the network and the settings for both give rise to
        try:
            return Path(snapshot_download(source, local_files_only=True, allow_patterns=FILES))
        except Exception:
            raise UserError(f"There is no model folder {source!r}, and {hub_remedy(error, 'model')}") from error


def hub_remedy(error: Exception, what: Literal["model", "data set"]) -> str:
    """What came in between when something was fetched from the hub, and what to do about it."""
    kind = type(error).__name__
    if kind in REMEDIES:
        return REMEDIES[kind].format(what=what)
    return f"the hub cannot be reached ({kind}: {one_line(error)}); check the path, the name, the network and HF_ENDPOINT."


def _transformer_of(folder: Path) -> Path:
    """The folder of the Transformer that a sentence-transformers model begins with."""
    file = folder / "modules.json"
    try:
        first = read_json(file)[0]
        kind, path = str(first["type"]).rpartition(".")[2], first["path"]
    except (LookupError, TypeError) as error:
        raise UserError(f"{file} names no modules; fetch it again.") from error
    if not kind.endswith("Transformer"):
        raise UserError(f"{folder} computes embeddings with {kind}, not with a Transformer; give an encoder.")
    return inside(folder, path, file)


def _student_of(run: Path) -> Path:
    """The student in a run's directory."""
    student = run / RUN_STUDENT
    summary = run / RUN_SUMMARY
    if not student.is_dir() and summary.is_file() and RUN_REMOVED in (known := read_json(summary)):
        raise UserError(f"The run {run} has no student any more ({known[RUN_REMOVED]}); train it again with --overwrite.")
    if several := sorted(path.name for path in run.glob(f"{RUN_STUDENTS}/*")):
        raise UserError(
            f"The run {run} has several students, {', '.join(several)}; name one, such as {run / RUN_STUDENTS / several[0]}."
        )
    if not student.is_dir():
        raise UserError(f"The run {run} has no student yet ({contents(run)}); resume it, or name the student's own folder.")
    return student


def inside(folder: Path, name: object, file: Path) -> Path:
    """A path that a file names, which may not lead out of the folder.

    Symbolic links are not followed: the hub's cache consists of them.

    Raises:
        UserError: it leads elsewhere, or is no path.
    """
    if not isinstance(name, str) or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise UserError(f"{file} names {name!r}, which lies outside {folder}; fetch it again.")
    return folder / name


def read_json(file: Path) -> Any:
    """What a JSON file holds.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} is broken ({one_line(error)}); fetch it again.") from error


def contents(folder: Path) -> str:
    """What a folder holds, in a few words for a message: the models in folders below it, or else its files."""
    if not folder.is_dir():
        return "there is no such folder"
    models = {path.parent for below in ("*", "*/*") for path in folder.glob(f"{below}/model.safetensors*")}
    if models:
        return f"there are models in {_few(sorted(str(model.relative_to(folder)) for model in models))}"
    return f"it holds {_few(sorted(path.name for path in folder.iterdir())) or 'nothing'}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def one_line(error: Exception) -> str:
    """An error's text without line breaks."""
    return " ".join(str(error).split())
