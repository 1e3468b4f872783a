"""Where the log goes besides log.jsonl: every tracker gets what the log gets, in the run directory and nowhere else."""

import json
import os
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import pytest

from limbeck.cli import main
from limbeck.training import loop, trackers

INSTALL = 'The tracker {0} is not installed: pip install "limbeck[{0}]"'
VALUES = {"loss", "qq", "kk", "vv", "learning_rate", "tokens_per_second", "waiting"}
HELD_OUT = {"holdout_loss", "holdout_qq", "holdout_kk", "holdout_vv"}


TRACKERS = ("tensorboard", "wandb", "trackio")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    """The environment says nothing of trackers."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "TRACKIO_"))]:
        monkeypatch.delenv(name)


@pytest.fixture(params=TRACKERS)
def tracker(request):
    """Each tracker that is installed."""
    pytest.importorskip(request.param, reason=INSTALL.format(request.param))
    return request.param


@pytest.fixture
def installed():
    """The trackers that are installed, at least one."""
    found = [name for name in TRACKERS if find_spec(name)]
    return found or pytest.skip(INSTALL.format("tensorboard"))


@pytest.fixture
def arguments(save_bert, tmp_path):
    teacher = save_bert(tmp_path / "teacher", num_hidden_layers=1, hidden_size=32, num_attention_heads=4, intermediate_size=64)
    text, held = tmp_path / "text.txt", tmp_path / "held.txt"
    text.write_text("a b c d e\n" * 50)
    held.write_text("f g h\n" * 20)
    return [
        *("distill", "--teacher", str(teacher), "--corpus", str(text), "--holdout", str(held), "--student", "1x32"),
        *("--steps", "6", "--batch-size", "4", "--max-length", "16", "--precision", "float32", "--log-every", "1"),
        *("--eval-every", "3", "--checkpoint-every", "2", "--quiet", "-o", str(tmp_path / "run")),
    ]


def log_of(run):
    """What the trackers should hold: (step, name) -> value."""
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return {(record["step"], name): record[name] for record in records for name in (VALUES | HELD_OUT) & record.keys()}


def tensorboard_values(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "trackers" / "tensorboard"))
    events.Reload()
    found = [(event.step, name, event.value) for name in events.Tags()["scalars"] for event in events.Scalars(name)]
    assert len({(step, name) for step, name, _ in found}) == len(found)  # no step twice, also after a resume
    return {(step, name): value for step, name, value in found}


def wandb_records(file):
    """What W&B wrote to its file, in LevelDB's log format: blocks of 32 KiB, of pieces with a checksum, length and kind."""
    data, place, record = file.read_bytes(), len(":W&B") + 3, b""
    while place + 7 <= len(data):
        if 2**15 - place % 2**15 < 7:
            place += 2**15 - place % 2**15
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        if place + 7 + length > len(data):
            return  # it is being written
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # the whole record, or its end
            yield record
            record = b""


def wandb_run(file):
    """The records of a run that has ended; W&B's own process may write the last of them a moment later."""
    from wandb.proto.wandb_internal_pb2 import Record

    for _ in range(300):
        records = [Record.FromString(record) for record in wandb_records(file)]
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        time.sleep(0.1)
    raise AssertionError(f"{file} has no end")


def wandb_values(run):
    values, runs = {}, set()
    for file in sorted((run / "trackers" / "wandb").glob("offline-run-*/*.wandb")):
        for record in wandb_run(file):
            if record.WhichOneof("record_type") == "run":
                runs.add(record.run.run_id)
                settings = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                assert settings["objective"]["name"] == "minilmv2"
            if record.WhichOneof("record_type") == "history":
                row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                values |= {(row["_step"], name): value for name, value in row.items() if not name.startswith("_")}
    assert len(runs) == 1
    return values


def trackio_values(run):
    database = sqlite3.connect(run / "trackers" / "trackio" / "limbeck.db")
    rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    database.close()
    assert len({name for name, _, _ in rows}) == 1
    return {(step, name): value for _, step, metrics in rows for name, value in json.loads(metrics).items()}


READ = {"tensorboard": tensorboard_values, "wandb": wandb_values, "trackio": trackio_values}


def test_a_tracker_holds_what_the_log_holds(tracker, arguments, tmp_path, capfd):
    assert main([*arguments, "--trackers", tracker]) == 0
    run = tmp_path / "run"
    expected = log_of(run)
    assert {name for _, name in expected} == VALUES | HELD_OUT
    assert READ[tracker](run) == pytest.approx(expected, rel=1e-5)
    assert capfd.readouterr() == ("", "")
    assert [folder.name for folder in (run / "trackers").iterdir()] == [tracker]


def test_a_resumed_run_goes_on_in_the_same_tracker_run(tracker, arguments, tmp_path, monkeypatch):
    """It ends between two checkpoints, so that steps are taken again; the tracker ends properly and keeps the identity."""
    take_step = loop.Loop._step

    def stop_at_the_sixth(self, size):
        if self.progress.step == 5:
            raise KeyboardInterrupt
        return take_step(self, size)

    monkeypatch.setattr(loop.Loop, "_step", stop_at_the_sixth)
    arguments += ["--trackers", tracker]
    assert main(arguments) == 130
    run = tmp_path / "run"
    assert {step for step, _ in READ[tracker](run)} == {1, 2, 3, 4, 5}
    monkeypatch.undo()
    assert main([*arguments, "--resume", "auto"]) == 0
    expected = log_of(run)
    assert {step for step, _ in expected} == {1, 2, 3, 4, 5, 6}
    assert READ[tracker](run) == pytest.approx(expected, rel=1e-5)


def test_overwriting_a_run_begins_its_trackers_anew(tracker, arguments, tmp_path):
    arguments += ["--trackers", tracker]
    assert main(arguments) == 0
    assert main([*arguments, "--steps", "2", "--overwrite"]) == 0
    assert {step for step, _ in READ[tracker](tmp_path / "run")} == {1, 2}


def test_runs_of_one_process_do_not_mix(tracker, arguments, tmp_path):
    assert main([*arguments, "--trackers", tracker]) == 0
    assert main([*arguments, "--trackers", tracker, "--steps", "2", "-o", str(tmp_path / "other")]) == 0
    assert {step for step, _ in READ[tracker](tmp_path / "run")} == {1, 2, 3, 4, 5, 6}
    assert {step for step, _ in READ[tracker](tmp_path / "other")} == {1, 2}


def test_the_process_keeps_its_own_trackio(arguments):
    own = pytest.importorskip("trackio", reason=INSTALL.format("trackio"))
    assert main([*arguments, "--trackers", "trackio"]) == 0
    assert sys.modules["trackio"] is own


def test_nothing_goes_to_the_network(installed, arguments):
    """Every address that a tracker might ask is one that tells."""
    asked = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                asked.append(connection.recv(200))
                connection.close()

        threading.Thread(target=listen, daemon=True).start()
        here = f"http://127.0.0.1:{listener.getsockname()[1]}"
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), here)
        tokens = {"WANDB_BASE_URL": here, "WANDB_API_KEY": "0" * 40, "HF_ENDPOINT": here, "HF_TOKEN": "hf_none"}
        environment = {**os.environ, **proxies, **tokens, "NO_PROXY": "", "no_proxy": "", "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-m", "limbeck", *arguments, "--trackers", *installed, "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert asked == []
    assert done.stderr == ""
    assert json.loads(done.stdout)["training"]["steps"] == 6


@pytest.mark.parametrize("name", TRACKERS)
def test_a_missing_package_is_named_before_anything_is_read(name, arguments, tmp_path, monkeypatch, capsys):
    def missing(package):
        if package == name:
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(trackers, "version", missing)
    arguments[arguments.index("--teacher") + 1] = "nowhere"
    assert main([*arguments, "--trackers", name]) == 2
    assert INSTALL.format(name) in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_fails_costs_its_records_and_not_the_run(arguments, tmp_path, capsys, monkeypatch):
    class Failing(trackers.TensorBoardTracker):
        def log(self, values, step=None, **_):
            if "loss" in values:
                raise OSError("No space\nleft")

    pytest.importorskip("tensorboard", reason=INSTALL.format("tensorboard"))
    monkeypatch.setattr(trackers, "TensorBoardTracker", Failing)
    arguments.remove("--quiet")
    assert main([*arguments, "--trackers", "tensorboard"]) == 0
    assert capsys.readouterr().err.count("the tracker tensorboard failed (No space left)") == 1
    assert len(log_of(tmp_path / "run")) > 0


def test_a_tracker_that_does_not_start_is_the_users_to_mend_and_nothing_is_left(arguments, tmp_path, capsys, monkeypatch):
    pytest.importorskip("trackio", reason=INSTALL.format("trackio"))
    monkeypatch.setenv("TRACKIO_SERVER_URL", "nonsense")
    assert main([*arguments, "--trackers", "trackio"]) == 2
    assert "limbeck: The tracker trackio does not start: " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
