"""Child processes: each stage runs in one, so that the supervisor never touches a GPU and a stage frees all it took."""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from eyas.errors import EyasError

EXPLAINED = 2
"""Exit code of a process that has already printed, in one line, what a user can mend."""

PARENT = "EYAS_PARENT"
"""Environment variable: the process id of the supervisor, for a child whose parent died before it could ask the kernel."""


def run_child(module: str, argument: Path) -> None:
    """Run `python -m module argument` to its end.

    Raises:
        SystemExit: with the child's exit code, where that isn't 0.
    """
    # Stages print plain lines of their own; the libraries' progress bars would only tear them.
    # Nothing here compiles; speculators would load torch's compiler at import, for algorithms that aren't used.
    environment = {**os.environ, "TQDM_DISABLE": "1", "TORCHDYNAMO_DISABLE": "1", PARENT: str(os.getpid())}
    child = subprocess.Popen([sys.executable, "-m", module, str(argument)], env=environment)
    try:
        code = child.wait()
    except KeyboardInterrupt:
        code = child.wait()  # Ctrl-C reached the child as well; let it end
    if code not in (0, EXPLAINED, 128 + signal.SIGINT):
        print(
            f"eyas: {module} stopped with exit code {code}; the same command carries on from what is complete",
            file=sys.stderr,
        )
    if code:
        raise SystemExit(code if code > 0 else 128 - code)


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
