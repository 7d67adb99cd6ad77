"""Progress as plain lines: readable in a terminal, in a log file and through ssh."""

import time


class Progress:
    """Prints `what  done/total unit  share  rate  time left`, at most every few seconds; a total may be unknown.

    Args:
        says_end: A last line, however quick it was.
    """

    def __init__(
        self,
        what: str,
        total: int | None,
        unit: str,
        *,
        done: int = 0,
        every_seconds: float = 10.0,
        says_end: bool = True,
    ) -> None:
        self.what, self.total, self.unit, self.every_seconds, self.says_end = what, total, unit, every_seconds, says_end
        self.done = self.done_before = done
        self.started = self.printed = time.monotonic()

    def advance(self, amount: int) -> None:
        self.done += amount
        if time.monotonic() - self.printed >= self.every_seconds or (self.says_end and self.done == self.total):
            self.printed = time.monotonic()
            print(self.line(), flush=True)

    @property
    def rate(self) -> float:
        """Units per second since this process began."""
        return (self.done - self.done_before) / max(time.monotonic() - self.started, 1e-9)

    @property
    def speed(self) -> str:
        """The rate as a person says it: 880 tokens/s, 5.1 prompts/min."""
        return f"{self.rate:,.0f} {self.unit}/s" if self.rate >= 1 else f"{60 * self.rate:.1f} {self.unit}/min"

    def line(self) -> str:
        if self.total is None:
            return f"{self.what:<9}{self.done:,} {self.unit}  {self.speed}"
        left = (self.total - self.done) / max(self.rate, 1e-9)
        end = f"{duration(left)} left" if self.done < self.total else f"in {duration(time.monotonic() - self.started)}"
        share = f"{100 * self.done / self.total:.0f} %"
        return f"{self.what:<9}{self.done:,}/{self.total:,} {self.unit}  {share}  {self.speed}  {end}"


def duration(seconds: float) -> str:
    """Seconds as a person says them: 42 s, 3 min 05 s, 2 h 07 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
