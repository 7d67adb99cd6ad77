"""The rows that a training needs next, asked of a server in that order, as far ahead as the window allows.

A row stays until the last step that was foreseen for it is done. Then it goes at once (`keep: none`), when its place is
needed (`window`: first the row that is needed again last, which no other order beats), or not at all (`all`).
"""

import heapq
import time
from collections import defaultdict
from collections.abc import Iterator

from torch import Tensor

from eyas.capture.assembly import request
from eyas.capture.schema import Keep
from eyas.data.plan import Plan
from eyas.data.window import Window
from eyas.serving.client import Request

POLL_SECONDS = 0.02


class Supply(Iterator[Request]):
    """An iterator over the requests for one training. It stops while enough is on its way, and goes on when asked again.

    Where nothing is on its way and the window is full, it waits for the training.
    """

    def __init__(
        self,
        plan: Plan,
        window: Window,
        *,
        keep: Keep,
        window_tokens: int,
        max_in_flight: int,
        first_step: int,
        last_step: int,
    ) -> None:
        """For the steps from `first_step` up to `last_step`."""
        self.plan, self.window, self.keep = plan, window, keep
        self.window_tokens, self.max_in_flight = window_tokens, max_in_flight
        self.lengths = window.tokens.lengths
        self.in_flight: set[int] = set()
        self._again: list[int] = []
        self._until: dict[int, int] = {}
        """The last foreseen step of each row that is there or on its way."""
        self._used_by: dict[int, list[int]] = defaultdict(list)
        """Rows by step; of one that is foreseen again, the later step counts."""
        self._steps_done = first_step
        self._spare: list[tuple[int, int]] = []
        """A heap of (- the step that needs it again, row)."""
        self._held_out = {row for rows in plan.held_out_rows for row in rows}
        self.tokens_held = 0
        """Of what may go again, so without the held-out rows."""
        for row in window.rows():  # what an earlier start left
            if row in self._held_out:
                self._until[row] = plan.num_steps
            else:
                self._until[row] = -1
                self.tokens_held += self.lengths[row]
                heapq.heappush(self._spare, (-plan.next_step(row, first_step - 1), row))
        self._needs = self._foreseen(first_step, last_step)
        self._next = next(self._needs, None)

    @property
    def is_done(self) -> bool:
        return self._next is None and not self._again and not self.in_flight

    def __next__(self) -> Request:
        row = self._again.pop() if self._again else self._next_row()
        self.in_flight.add(row)
        return request(row, self.window.tokens.row(row)[0])

    def add(self, row: int, states_TLH: Tensor) -> None:
        """A row's states have come."""
        self.window.add(row, states_TLH)
        self.in_flight.remove(row)

    def ask_again(self, *rows: int) -> None:
        """These rows, which were on their way, come next."""
        self.in_flight -= {*rows}
        self._again += rows

    def _foreseen(self, first_step: int, last_step: int) -> Iterator[tuple[int, int]]:
        """(step, row) in the order of need; held-out rows are needed to the end."""
        yield from ((self.plan.num_steps, row) for row in sorted(self._held_out))
        for step in range(first_step, last_step):
            yield from ((step, row) for row in self.plan.documents_of(step))

    def _next_row(self) -> int:
        """The next row that has to be asked for.

        Raises:
            StopIteration: enough is on its way, or everything was asked for.
        """
        while self._next is not None:
            step, row = self._next
            is_new = row not in self._until
            if is_new and not self._has_room(row):
                if self.in_flight:
                    raise StopIteration
                time.sleep(POLL_SECONDS)
                continue
            self._next = next(self._needs, None)
            self._until[row] = step
            self._used_by[step].append(row)
            if is_new:
                self.tokens_held += 0 if row in self._held_out else self.lengths[row]
                return row
        raise StopIteration

    def _has_room(self, row: int) -> bool:
        length = self.lengths[row]
        if self.in_flight and sum(self.lengths[one] for one in self.in_flight) + length > self.max_in_flight:
            return False
        if self.keep is Keep.all or row in self._held_out:
            return True
        self._collect()
        while self._spare and (self.keep is Keep.none or self.tokens_held + length > self.window_tokens):
            self._remove(heapq.heappop(self._spare)[1])
        return self.tokens_held + length <= self.window_tokens

    def _collect(self) -> None:
        """What the steps that are done had for themselves is spare."""
        done = self.window.steps_done()
        for step in range(self._steps_done, done):
            for row in self._used_by.pop(step, []):
                if self._until.get(row) == step:
                    heapq.heappush(self._spare, (-self.plan.next_step(row, step), row))
        self._steps_done = max(self._steps_done, done)

    def _remove(self, row: int) -> None:
        if self._until.get(row, self._steps_done) < self._steps_done:  # else it is gone, or needed again meanwhile
            del self._until[row]
            self.tokens_held -= self.lengths[row]
            self.window.remove(row)
