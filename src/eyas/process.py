"""Child processes: each stage runs in one, so that the supervisor never touches a GPU and a stage frees all it took."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from eyas.errors import EyasError

EXPLAINED = 2
"""Exit code of a process that has already printed, in one line, what a user can mend."""

PARENT = "EYAS_PARENT"
"""Environment variable: the process id of the supervisor, for a child whose parent died before it could ask the kernel."""

POLL_SECONDS = 0.2
GRACE_SECONDS = 60.0
"""A child that is told to end gets so long."""


def run_child(
    module: str, argument: Path, *, beside: str | None = None, environment: Mapping[str, str] | None = None
) -> None:
    """Run `python -m module argument` to its end.

    Args:
        beside: A module that runs at the same time, with the same argument; it may end before, and is ended afterwards.
        environment: More variables for `module`.

    Raises:
        SystemExit: with the exit code of the child that failed.
    """
    helper = _start(beside, argument, {}) if beside else None
    child = _start(module, argument, environment or {})
    failed = module
    try:
        while (code := _wait(child, POLL_SECONDS if helper else None)) is None:
            if helper and (helper_code := helper.poll()):
                failed, code = beside or "", helper_code
                break
        if helper and code == 0:
            _wait(helper, GRACE_SECONDS)
    except KeyboardInterrupt:
        code = child.wait()  # Ctrl-C reached the child as well; let it end
    finally:
        for started in filter(None, (child, helper)):
            _stop(started)
    if code not in (0, EXPLAINED, 128 + signal.SIGINT):
        print(
            f"eyas: {failed} stopped with exit code {code}; the same command carries on from what is complete",
            file=sys.stderr,
        )
    if code:
        raise SystemExit(code if code > 0 else 128 - code)


def _start(module: str, argument: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # Stages print plain lines of their own; the libraries' progress bars would only tear them.
    # Nothing here compiles; speculators would load torch's compiler at import, for algorithms that aren't used.
    ours = {"TQDM_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1", PARENT: str(os.getpid())}
    return subprocess.Popen([sys.executable, "-m", module, str(argument)], env={**os.environ, **ours, **environment})


def _wait(child: subprocess.Popen[bytes], seconds: float | None) -> int | None:
    """The exit code; None where it goes on after so many seconds."""
    with suppress(subprocess.TimeoutExpired):
        return child.wait(seconds)
    return None


def _stop(child: subprocess.Popen[bytes]) -> None:
    """End a child that still runs; what it started ends with it."""
    child.terminate()
    if _wait(child, GRACE_SECONDS) is None:
        child.kill()
        child.wait()


def child_main(stage: Callable[[Path], None]) -> NoReturn:
    """The main of a child process: run `stage` on the path it was given, and explain errors in one line."""
    die_with_parent()
    try:
        stage(Path(sys.argv[1]))
    except EyasError as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    sys.exit(0)


def fail(error: object) -> NoReturn:
    """Print one line and leave."""
    print(f"eyas: error: {error}", file=sys.stderr, flush=True)
    sys.exit(EXPLAINED)


def die_with_parent() -> None:
    """Die when the supervisor is gone; in one of its children."""
    parent = os.environ.pop(PARENT, None)  # popped: ranks that Lightning starts have another parent
    die_with(os.getppid() if parent is None else int(parent))


def die_with(parent: int) -> None:
    """Ask the kernel (Linux) to kill this process when its parent is gone, however that went."""
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        fail("the process that started this one is gone")
