"""Child processes: each stage runs in one, so that the supervisor never touches a GPU and a stage frees all it took."""

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from eyas.errors import EyasError

LAUNCHERS = re.compile(r"((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|TORCHELASTIC_.*")
"""What torchrun tells its processes: a stage that heard it would look for a group that isn't there."""

EXPLAINED = 2
"""Exit code of a process that has already printed, in one line, what a user can mend."""

PREEMPTED = 75
"""Exit code after SIGTERM (EX_TEMPFAIL of sysexits.h): what is complete stays, and the same command carries on."""

INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C."""

PARENT = "EYAS_PARENT"
"""Environment variable: the process id of the supervisor, for a child whose parent died before it could ask the kernel."""

NO_COMPILER = "TORCHDYNAMO_DISABLE"
"""Environment variable: with 1, what torch.compile was asked for runs as it is."""

KEEPS_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
"""Environment variables: glibc keeps what a tensor of up to 64 MiB leaves for the next one, 256 MiB in all.

By itself it gives it back at once, and each step of a training on a CPU faults it in anew: 6 % of a small draft's time. Larger
ones still go back: between them, holes would take memory.
"""

GRACE_SECONDS = 60.0
"""A child that is told to end gets so long."""

Child = subprocess.Popen[bytes]


def run_child(module: str, argument: Path) -> None:
    """Run `python -m module argument` to its end.

    Raises:
        SystemExit: with the exit code of the child that failed.
    """
    child = start(module, argument)
    try:
        with passing_sigterm_on([child]) as told:
            code = child.wait()
    except KeyboardInterrupt:
        wait(child, GRACE_SECONDS)  # Ctrl-C reached the child as well; let it end
        code = INTERRUPTED
    finally:
        stop(child)
    if told and code in (0, -signal.SIGTERM):
        code = PREEMPTED
    if code:
        leave(module, code)


def start(
    module: str, arguments: Path | Sequence[str], environment: Mapping[str, str] | None = None, **streams: Any
) -> Child:
    """Start `python -m module arguments`, with more variables in its environment; `streams` are subprocess.Popen's."""
    # Stages print plain lines of their own; the libraries' progress bars would only tear them.
    # speculators would load torch's compiler at import, for algorithms that aren't used; only training may want it.
    ours = {"TQDM_DISABLE": "1", NO_COMPILER: "1", PARENT: str(os.getpid())}
    inherited = {name: value for name, value in os.environ.items() if not LAUNCHERS.fullmatch(name)}
    variables = {**KEEPS_MEMORY, **inherited, **ours, **(environment or {})}
    words = [str(arguments)] if isinstance(arguments, Path) else arguments
    return subprocess.Popen([sys.executable, "-m", module, *words], env=variables, **streams)


def wait(child: Child, seconds: float) -> int | None:
    """The exit code; None where it goes on after so many seconds."""
    with suppress(subprocess.TimeoutExpired):
        return child.wait(seconds)
    return None


def stop(child: Child) -> None:
    """End a child that still runs; what it started ends with it."""
    child.terminate()
    if wait(child, GRACE_SECONDS) is None:
        child.kill()
        child.wait()


@contextmanager
def passing_sigterm_on(children: Sequence[Child]) -> Iterator[list[int]]:
    """Whoever takes the machine back (SIGTERM) tells the supervisor: its children hear it too. Yields what came."""
    told: list[int] = []

    def pass_on(number: int, _: object) -> None:
        told.append(number)
        for child in children:
            child.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before)


def leave(name: str, code: int, why: str = "") -> NoReturn:
    """Say what has failed, unless it has said so itself, and leave with its exit code."""
    carries_on = "the same command carries on from what is complete"
    if code == PREEMPTED:
        print(f"eyas: {name} was told to end (SIGTERM); {carries_on}", file=sys.stderr)
    elif code not in (EXPLAINED, INTERRUPTED):
        print(f"eyas: {name} {why or how_it_ended(code)}; {carries_on}", file=sys.stderr)
    raise SystemExit(code if code > 0 else 128 - code)


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    return f"was killed ({signal.Signals(-code).name})" if code < 0 else f"stopped with exit code {code}"


def child_main(stage: Callable[[Path], None]) -> NoReturn:
    """The main of a child process: run `stage` on the path it was given, and explain errors in one line."""
    die_with_parent()
    try:
        stage(Path(sys.argv[1]))
    except EyasError as error:
        fail(error)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0)


def fail(error: object) -> NoReturn:
    """Print one line and leave."""
    print(f"eyas: error: {error}", file=sys.stderr, flush=True)
    sys.exit(EXPLAINED)


def die_with_parent() -> None:
    """Die when the supervisor is gone; in one of its children."""
    parent = os.environ.pop(PARENT, None)  # popped: what a child starts has another parent
    die_with(os.getppid() if parent is None else int(parent))


def die_with(parent: int) -> None:
    """Ask the kernel (Linux) to kill this process when its parent is gone, however that went."""
    if sys.platform != "linux":
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        fail("the process that started this one is gone")
