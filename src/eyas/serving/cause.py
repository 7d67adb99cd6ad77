"""Why a server died: the one line of its log that says so.

vLLM is several processes, and each one reports the death of the one below it; the true cause is the exception of the
lowest, printed first, and everything after it says only that something else failed.
"""

import re
import signal
from collections.abc import Iterable

_PREFIX = re.compile(
    r"^(\(\w+( pid=\d+)?\) ?)?"  # (EngineCore pid=123)
    r"((?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]+\] ?)?"  # ERROR 11-30 00:42:46 [core.py:1512]
)
_EXCEPTION = re.compile(r"^(?P<name>([a-z_]\w*\.)*[A-Z]\w*(Error|Exception|Exit|Interrupt))(: (?P<text>.*))?$")
_USAGE = re.compile(r"^\S+: error: (?P<text>.+)$")  # argparse
_SECONDARY = re.compile(
    r"EngineDeadError|[Ee]ngine core|EngineCore|WorkerProc initialization failed|Worker failed with error|"
    r"died unexpectedly|CancelledError|KeyboardInterrupt|SystemExit|BrokenPipe|EOFError|ConnectionReset"
)

_MEMORY = "(often: out of memory, see dmesg)"


def cause(lines: Iterable[str], code: int | None) -> str:
    """The exception line that started it all; else how the process ended, with what it said about that."""
    lines = [line.rstrip() for line in lines]
    plain = [_PREFIX.sub("", line) for line in lines]
    found: str | None = None
    for index, line in enumerate(plain):
        if usage := _USAGE.match(line):
            return usage["text"]
        prefix = _PREFIX.match(lines[index])
        was_handled = prefix is not None and prefix["level"] in ("DEBUG", "INFO", "WARNING")
        if was_handled or _EXCEPTION.match(line) is None:
            continue
        if not _SECONDARY.search(line):
            # A later one before the first report of a failure wraps an earlier one, and mostly says more.
            found = _whole(plain, index)
        elif found is None:
            return f"one of its processes was killed or crashed without an exception {_MEMORY}; then it said: {line}"
        else:
            break
    return found or f"{_ending(code)}; its last line: {last_line(plain)}"


def last_line(lines: Iterable[str]) -> str:
    """The last line that says something, without vLLM's prefix."""
    said = [text for line in lines if (text := _PREFIX.sub("", line).strip())]
    return said[-1][:300] if said else "(nothing was printed)"


def _whole(plain: list[str], index: int) -> str:
    """An exception line, with the indented lines that follow it (pydantic says there what is wrong)."""
    text = plain[index]
    for line in plain[index + 1 : index + 4]:
        if not line.startswith("  ") or line.lstrip().startswith(("File ", "For further information")):
            break
        text += f" {line.strip()}"
    return text[:600]


def _ending(code: int | None) -> str:
    if code is None:
        return "its log names no exception"
    if code > 128 and code - 128 in {*signal.Signals}:
        name = signal.Signals(code - 128).name
        return f"it was ended by {name}{f' {_MEMORY}' if name == 'SIGKILL' else ''}"
    return f"it ended with exit code {code} and named no exception"
