"""Ctrl-C and SIGTERM: the first one is a request that the training loop answers between two steps."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SAME_REQUEST = 1.0
"""Seconds within which a second signal counts as the first one: terminal and launcher may both send it."""


class StopRequest:
    """Whether someone asked for an end, and when."""

    def __init__(self) -> None:
        self.since: float | None = None

    def __bool__(self) -> bool:
        return self.since is not None

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal; the second one ends the process's work at once.

        Raises:
            KeyboardInterrupt: an end had been asked for before.
        """
        if self.since is None:
            self.since = time.monotonic()
        elif time.monotonic() - self.since > SAME_REQUEST:
            raise KeyboardInterrupt


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Collect SIGINT and SIGTERM in the main thread, and give the signals back to whoever handled them before."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
