"""A server's guard: a small process between Eyas and the server that leaves nothing of the server behind.

A server has children of its own, which outlive it when it is killed. The guard adopts them (Linux) and ends all of them
when the server ends, when it is told to (SIGTERM), and when Eyas is gone, however that went. It runs in a session of
its own, so that Ctrl-C in a terminal reaches Eyas alone, which then stops the server in order.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

STOP_SECONDS = 15.0
"""The server may take so long to end by itself."""

ORPHAN_SECONDS = 3.0
"""Its children may take so long once it is gone: some of them clean up shared memory."""

KILL_SECONDS = 30.0
"""A process may take so long to end after SIGKILL: one that waits for a device driver doesn't end at once."""


def start_guarded(command: Sequence[str], env: Mapping[str, str], log: Path) -> "subprocess.Popen[bytes]":
    """Start a server; all it prints is appended to `log`. The guard ends with the server's exit code, after all of it."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command_of_guard = [sys.executable, "-m", "eyas.serving.guard", str(os.getpid()), *command]
    with log.open("ab") as output:
        guard = subprocess.Popen(
            command_of_guard, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )
    # The server's environment is not the guard's: it may belong to another installation of Python.
    assert guard.stdin is not None
    with suppress(BrokenPipeError), guard.stdin as stream:
        stream.write(json.dumps(dict(env)).encode())
    return guard


def stop_guarded(guard: "subprocess.Popen[bytes]") -> None:
    """Stop a server and all its children; returns when they are gone."""
    guard.terminate()
    try:
        guard.wait(STOP_SECONDS + ORPHAN_SECONDS + KILL_SECONDS)
    finally:
        if guard.poll() is None or guard.returncode < 0:  # the guard itself was killed: the server is in its group
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(guard.pid, signal.SIGKILL)


def main(parent: int, command: Sequence[str], env: Mapping[str, str]) -> int:
    """Run `command` until it ends, SIGTERM comes or `parent` is gone; return its exit code when all of it is gone."""
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    adopt_orphans()
    # In the guard's own group: `stop_guarded` can kill both.
    server = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL)
    while server.poll() is None and not stopping and os.getppid() == parent:
        time.sleep(0.1)
    if server.poll() is None:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(STOP_SECONDS)
    end_children()
    code = server.wait()
    return code if code >= 0 else 128 - code


def adopt_orphans() -> None:
    """Ask the kernel (Linux) to make this process the parent of descendants whose own parent dies."""
    if sys.platform == "linux":
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def end_children() -> None:
    """Give all descendants a moment to end, then kill them."""
    psutil.wait_procs(psutil.Process().children(recursive=True), timeout=ORPHAN_SECONDS)
    deadline = time.monotonic() + KILL_SECONDS
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:], json.load(sys.stdin)))
