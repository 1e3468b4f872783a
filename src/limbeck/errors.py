"""The exceptions that end a command in a way that a person was told of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """What the user gave is wrong; the message says what, and what to do about it.

    The command line prints the message on one line, without a traceback, and leaves with exit code 2.
    """


class Interrupted(KeyboardInterrupt):
    """A person or the system asked for an end, and the run was saved first; the message says how to go on. Exit code 130."""


class CheckFailed(RuntimeError):
    """What was asked for was tried and did not succeed, such as training that diverged; exit code 1."""


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's, a GPU's, or the processor's, which torch reports as any other error."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or "DefaultCPUAllocator: can't allocate memory" in str(error)


@contextmanager
def naming(part: str) -> Iterator[None]:
    """Say which part of what was asked for is wrong, such as "Stage assistant".

    Raises:
        UserError: the one raised within, with the part in front.
    """
    try:
        yield
    except UserError as error:
        raise UserError(f"{part}: {error}") from error
