"""Whatever happens to Eyas or to the server, none of the server's processes remains: real processes, real signals."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from eyas.serving.guard import start_guarded, stop_guarded
from served import survivors

# A server with a worker in its group and one in a session of its own, neither of which listens to SIGTERM.
SERVER = """
import signal, subprocess, sys, time
worker = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", worker])
subprocess.Popen([sys.executable, "-c", worker], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""

# Eyas: starts the server and waits, as a stage does.
EYAS = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
from pathlib import Path
from eyas.serving.guard import start_guarded, stop_guarded
guard = start_guarded([sys.executable, "-c", sys.argv[1]], os.environ, Path(sys.argv[2]))
try:
    print(guard.pid, flush=True)
    time.sleep(600)
finally:
    stop_guarded(guard)
"""


@pytest.fixture(autouse=True)
def _shorter_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eyas.serving.guard.STOP_SECONDS", 2.0)


def family(pid: int, log: Path) -> list[psutil.Process]:
    """The guard, the server and its two workers, once all of them run."""
    deadline = time.monotonic() + 20
    guard = psutil.Process(pid)
    while time.monotonic() < deadline:
        found = [guard, *guard.children(recursive=True)]
        if len(found) == 4 and log.exists() and "ready" in log.read_text():
            time.sleep(0.5)  # the workers must have set their handlers
            return found
        time.sleep(0.05)
    raise AssertionError(f"it did not start: {log.read_text()}")


def test_stop(tmp_path: Path) -> None:
    guard = start_guarded([sys.executable, "-c", SERVER], os.environ, tmp_path / "log")
    processes = family(guard.pid, tmp_path / "log")
    stop_guarded(guard)
    assert survivors(processes, 0) == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_eyas_ends(how: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with subprocess.Popen(
        [sys.executable, "-c", EYAS, SERVER, str(log)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as eyas:
        assert eyas.stdout is not None
        try:
            processes = family(int(eyas.stdout.readline()), log)
            eyas.send_signal(how)
            eyas.wait(30)
        finally:
            eyas.kill()
    assert survivors(processes, 10) == []


def test_the_server_ends(tmp_path: Path) -> None:
    guard = start_guarded([sys.executable, "-c", SERVER], os.environ, tmp_path / "log")
    _, server, *workers = family(guard.pid, tmp_path / "log")
    server.send_signal(signal.SIGKILL)
    assert guard.wait(20) == 128 + signal.SIGKILL, "the guard ends as the server did"
    assert survivors(workers, 0) == []


def test_the_guard_itself_is_killed(tmp_path: Path) -> None:
    guard = start_guarded([sys.executable, "-c", SERVER], os.environ, tmp_path / "log")
    _, server, *workers = family(guard.pid, tmp_path / "log")
    guard.kill()
    guard.wait()
    stop_guarded(guard)
    in_group, alone = workers if os.getpgid(workers[0].pid) == guard.pid else workers[::-1]
    assert survivors([server, in_group], 5) == []
    alone.kill()  # has a session of its own, as nothing of vLLM has
