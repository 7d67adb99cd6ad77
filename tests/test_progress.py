"""Progress lines say a rate that a person can read, fast or slow."""

import re

import pytest

from eyas.progress import Progress


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (2, r"test     8/54 rows  15 %  4 rows/s  1[12] s left"),
        (100, r"test     8/54 rows  15 %  4\.8 rows/min  9 min 35 s left"),
    ],
)
def test_a_slow_rate_is_per_minute(seconds: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("test", 54, "rows", every_seconds=0)
    progress.started -= seconds
    progress.advance(8)
    assert re.fullmatch(said, capsys.readouterr().out.strip())
