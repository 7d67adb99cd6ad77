"""A configuration as it may leave the machine: without secrets, and without where things are on it. Torch-free."""

import os
import re
import tempfile
from pathlib import Path, PurePath
from typing import Any

SECRET = re.compile(
    r"secret|passw|credential|(^|[._-])(pwd|pass|auth|authorization|bearer|token|(api|access|private|signing)?[_-]?key(_?id)?)$",
    re.IGNORECASE,
)
"""Names of environment variables and keys that hold a secret (HF_TOKEN, WANDB_API_KEY, db_password)."""

SECRET_VALUE = re.compile(
    r"\b(hf_|sk-|pk-|gh[opsu]_|github_pat_|glpat-|xox[abp]-)[A-Za-z0-9_-]{16,}|\bAKIA[0-9A-Z]{16}"
    r"|://[^/\s:@]+:[^/\s@]+@|(?i:\bbearer )\S{8,}"
)
"""What looks like one wherever it stands: tokens of known services, and a password in a URL."""

SECRET_ARGUMENT = re.compile(r"^--?(api-?key|hf-?token|token|password)(=|$)", re.IGNORECASE)
REMOVED = "(removed)"


def disclosed(values: Any) -> Any:
    """Nested values in which secrets are removed and absolute paths are relative, or no more than their last part."""
    if isinstance(values, dict):
        return {key: REMOVED if is_secret(key, value) else disclosed(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        found, hide = [], False
        for value in values:
            found.append(REMOVED if hide else _word(value) if isinstance(value, str) else disclosed(value))
            hide = isinstance(value, str) and (match := SECRET_ARGUMENT.match(value)) is not None and not match[2]
        return found
    return _text(values) if isinstance(values, str | PurePath) else values


def is_secret(key: Any, value: Any) -> bool:
    """Whether a key's own name says that its value, a text, is nobody's business."""
    return isinstance(value, str) and value != "" and SECRET.search(str(key)) is not None


def _word(word: str) -> str:
    """One of a command's words, such as --chat-template=/home/me/x.jinja or --api-key=..."""
    option, equals, value = word.partition("=")
    if equals and option.startswith("-"):
        return f"{option}={REMOVED if SECRET_ARGUMENT.match(word) else _text(value)}"
    return _text(word)


def _text(value: str | PurePath) -> str:
    text = str(value)
    if SECRET_VALUE.search(text):
        return REMOVED
    path = Path(text).expanduser() if text.startswith("~/") else Path(text)
    if not path.is_absolute():
        return re.sub(rf"(?<![\w.])({'|'.join(map(re.escape, _places()))})(?=[/\s:,'\"]|$)", "...", text)
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else path.name


def _places() -> list[str]:
    """Prefixes of this machine that may stand inside a text, longest first."""
    places = {
        str(Path.cwd()),
        str(Path.home()),
        tempfile.gettempdir(),
        os.environ.get("TMPDIR") or tempfile.gettempdir(),
    }
    return sorted((place.rstrip("/") for place in places if len(place) > 1), key=len, reverse=True)
