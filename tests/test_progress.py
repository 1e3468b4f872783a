"""What a person sees while a run goes on."""

import pytest
from rich.console import Console

from limbeck import progress
from limbeck.progress import Reporter
from limbeck.text import duration

FACT = "12 tensors, which this objective cannot reach: encoder.layer.2.attention.output, encoder.layer.2.output, pooler"


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test turns on."""

    class Clock:
        now = 100.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


@pytest.fixture
def terminal(monkeypatch):
    """Let reporters believe that they print on a terminal of this width."""

    def of(width, **environment):
        kind = {"TERM": "xterm", **environment}
        monkeypatch.setattr(
            progress, "Console", lambda **given: Console(**given, width=width, force_terminal=True, _environ=kind)
        )

    return of


def record(step, loss=0.5):
    return {"step": step, "loss": loss, "tokens_per_second": 1234, "seconds": 9999.0}


def run(reporter, steps=40, done=0):
    with reporter.training(steps, done):
        for step in range(done + 1, steps + 1):
            reporter.stepped(step)
            if step % 10 == 0:
                reporter.logged(record(step))
        reporter.evaluated(steps, "held-out loss", 0.25)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_terminal_gets_one_bar_that_fits(terminal, capsys, width):
    terminal(width)
    run(Reporter(), steps=400_000, done=399_960)
    shown = capsys.readouterr().err
    assert "step 400000/400000  loss 0.5000  1,234 tokens/s  0 s left" in shown
    assert "held-out loss 0.2500\n" in shown
    assert ("━" in shown) == (width >= 80)
    assert shown.count("400000/400000  loss") == shown.count("\n") - 1  # the bar's last state and the evaluation


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(terminal, capsys):
    terminal(80, TERM="dumb")
    run(Reporter())
    assert "\x1b" not in (shown := capsys.readouterr().err)
    assert [line.split()[1] for line in shown.splitlines()] == ["10/40", "20/40", "30/40", "40/40", "40/40"]


def test_a_pipe_gets_plain_lines(capsys):
    reporter = Reporter()
    reporter.fact("untrained", FACT)
    run(reporter, steps=1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == f"untrained  {FACT}"
    assert len(lines) == 1 + 21 + 1  # every fiftieth step, the last and the evaluation


def test_quiet_is_quiet(terminal, capsys):
    terminal(80)
    reporter = Reporter(quiet=True)
    reporter.fact("untrained", FACT)
    run(reporter)
    assert capsys.readouterr() == ("", "")


def test_facts_wrap_under_their_text(terminal, capsys):
    terminal(60)
    Reporter().fact("untrained", FACT)
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("untrained  12 tensors")
    assert all(len(line) <= 60 and line.startswith(" " * 11) and line[11] != " " for line in others)
    assert " ".join([first[11:], *(line.strip() for line in others)]) == FACT


def test_the_time_left_follows_from_the_steps_taken_now(clock, capsys):
    """Of 100 steps, 50 were taken by an earlier process, which was slow."""
    reporter = Reporter()
    with reporter.training(100, 50):
        clock.now += 20.0
        reporter.logged(record(60))
    assert "  80 s left" in capsys.readouterr().err


def test_a_time_is_said_as_one_says_it():
    assert [duration(seconds) for seconds in (0, 119, 150, 3599, 11400)] == ["0 s", "119 s", "2 min", "1 h 0 min", "3 h 10 min"]
