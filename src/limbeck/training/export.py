"""Writing the finished student as a plain Hugging Face folder, and proving that it loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from limbeck.encoders.loading import Encoder, no_progress_bars
from limbeck.encoders.origin import Origin, write_origin
from limbeck.training.folder import write_directory


def export_student(folder: Path, student: Encoder, card: str) -> None:
    """Write weights, configuration, tokenizer and card; nothing is left if the folder does not load again as it was.

    Args:
        folder: replaced if it exists.
        student: on any device.
        card: the text of README.md.

    Raises:
        RuntimeError: the folder that was written loads with other weights.
    """
    model = student.model.cpu().eval()
    model.config.architectures = [type(model).__name__]

    def fill(target: Path) -> None:
        model.save_pretrained(target)
        if student.origin != Origin():
            write_origin(target, student.origin)
        student.tokenizer.save_pretrained(target)
        (target / "README.md").write_text(card, encoding="utf-8")
        _check_reload(target, model)

    with no_progress_bars():
        write_directory(folder, fill)


def _check_reload(folder: Path, model: PreTrainedModel) -> None:
    loader: Any = type(model)
    reloaded, info = loader.from_pretrained(folder, output_loading_info=True)
    wrong = {kind: sorted(keys) for kind, keys in info.items() if keys}
    if wrong:
        raise RuntimeError(f"The exported student does not load cleanly: {wrong}.")
    weights, again = model.state_dict(), reloaded.state_dict()
    if changed := [name for name, value in weights.items() if not torch.equal(value, again[name])]:
        raise RuntimeError(f"The exported student loads with other weights: {changed[:3]}.")
    ids = torch.arange(1, 9).remainder(model.config.vocab_size)[None]
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):  # compiled layers are not worth compiling for one row
        before, after = model(**batch)[0], reloaded.eval()(**batch)[0]
    # Products with a single row may round otherwise where the weights lie elsewhere in memory.
    if not torch.allclose(before, after, rtol=1e-4, atol=1e-5):
        raise RuntimeError("The exported student computes something else after loading.")
