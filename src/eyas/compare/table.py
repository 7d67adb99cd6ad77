"""Ranked tables: one for each setting, best first, with what was varied, how sure it is, and what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from eyas.compare.entry import Entry
from eyas.compare.setting import Measured, measured, simulated, titles_apart
from eyas.compare.statistics import Interval, difference_interval, tau_interval
from eyas.compare.varied import shown, varied_keys
from eyas.compare.verdict import verdict


@dataclass(frozen=True, kw_only=True)
class Row:
    """One draft in a table."""

    rank: int
    of: Measured
    varied: Sequence[str]
    """Its values of the table's varied keys."""
    interval: Interval | None
    """95 %, over prompts."""
    behind: float
    """tau minus that of the best."""
    behind_interval: Interval | None
    """95 %, over the same prompts; None for the best too."""

    @property
    def entry(self) -> Entry:
        return self.of.entry

    @property
    def within_noise(self) -> bool:
        """Whether it may be as good as the best."""
        return self.rank > 1 and self.behind_interval is not None and not self.behind_interval.excludes_zero


@dataclass(frozen=True, kw_only=True)
class Table:
    """Drafts that may be ranked together."""

    measure: str
    """tau, or tau_sim."""
    title: str
    """The setting that all values hold for."""
    keys: Sequence[str]
    """What was varied."""
    rows: Sequence[Row]
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All that is compared."""

    entries: Sequence[Entry]
    tables: Sequence[Table]
    without_result: Sequence[Entry]
    """Jobs that failed, wait or still run, and runs that nothing is known of yet."""


def compare_entries(entries: Sequence[Entry]) -> Comparison:
    """Rank what may be ranked together; the largest table of measured values first, teacher-forced ones last."""
    sound = [entry for entry in entries if not entry.problem]
    by_measure = {
        "tau": [it for entry in sound for it in measured(entry)],
        "tau_sim": [simulated(entry) for entry in sound if not entry.evaluation],
    }
    tables = []
    for measure, all_of_it in by_measure.items():
        groups: dict[str, list[Measured]] = {}
        for it in all_of_it:
            groups.setdefault(it.key, []).append(it)
        titles = titles_apart({key: group[0].title for key, group in groups.items()})
        for key, group in sorted(groups.items(), key=lambda item: -len(item[1])):
            tables.append(_ranked(measure, titles[key], group))
    return Comparison(entries=entries, tables=tables, without_result=[entry for entry in entries if entry.problem])


def _ranked(measure: str, title: str, group: Sequence[Measured]) -> Table:
    best_first = sorted(group, key=lambda it: -it.tau)
    keys = varied_keys([it.entry for it in group])
    rows = [_row(rank, it, best_first[0], keys) for rank, it in enumerate(best_first, 1)]
    return Table(measure=measure, title=title, keys=keys, rows=rows, verdict=verdict(measure, best_first))


def _row(rank: int, it: Measured, best: Measured, keys: Sequence[str]) -> Row:
    return Row(
        rank=rank,
        of=it,
        varied=[shown(it.entry.config.get(key)) for key in keys],
        interval=None if it.counts_P2 is None else tau_interval(it.counts_P2),
        behind=it.tau - best.tau,
        behind_interval=None if it is best else _difference(it, best),
    )


def _difference(it: Measured, best: Measured) -> Interval | None:
    if it.counts_P2 is None or best.counts_P2 is None:
        return None
    return difference_interval(it.counts_P2, best.counts_P2)
