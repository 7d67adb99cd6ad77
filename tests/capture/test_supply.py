"""What is asked for next, and what goes: beside a training that takes one step after another."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from eyas.capture.schema import Keep
from eyas.capture.supply import Supply
from eyas.config import Config
from eyas.data.plan import Plan
from eyas.data.tokens import Tokens
from eyas.data.window import Window
from eyas.errors import EyasError
from eyas.stages import tokens_artifact

NUM_STEPS = 31


@pytest.fixture
def window(captured: Callable[..., Config], tmp_path: Path) -> Window:
    (tmp_path / "window").mkdir()
    return Window(tmp_path / "window", Tokens(tokens_artifact(captured()).directory))


@pytest.fixture
def plan(window: Window) -> Plan:
    """Two rows a step, of one or two documents; a pass takes three steps and a half."""
    rows = [[row, row + 1] for row in range(0, 10, 2)] + [[10], [11]]
    assert window.tokens.num_train_rows == 12
    return Plan(rows, [[12, 13]], rows_per_step=2, num_steps=NUM_STEPS, seed=1)


def trained(window: Window, plan: Plan, keep: Keep, window_tokens: int, first_step: int = 0) -> tuple[list[int], int]:
    """(rows in the order in which they were asked for, most tokens in the window at a time) of a whole training."""
    asked: list[int] = []
    most = 0

    def capture() -> None:
        nonlocal most
        queue = Supply(
            plan,
            window,
            keep=keep,
            window_tokens=window_tokens,
            max_in_flight=300,
            first_step=first_step,
            last_step=NUM_STEPS,
        )
        while not queue.is_done:
            for number, request in enumerate(queue):
                asked.append(request.key)
                if number % 5 == 4:
                    queue.ask_again(request.key)
                    continue
                queue.add(request.key, torch.ones(queue.lengths[request.key], 2, 3))
                most = max(most, sum(queue.lengths[row] for row in window.rows() if row < 12))
        window.end()

    window.hand_back(first_step)
    with ThreadPoolExecutor(1) as beside:
        done = beside.submit(capture)
        for step in range(first_step, NUM_STEPS):
            for document in [*plan.documents_of(step), *([12, 13] if step % 10 == 9 else [])]:
                states = window.read(document)
                assert torch.equal(states.input_ids_T, window.tokens.row(document)[0].long())
            window.hand_back(step + 1)
        done.result(timeout=10)
    return asked, most


def firsts(rows: list[int]) -> list[int]:
    return list(dict.fromkeys(rows))


def test_a_window_holds_what_is_needed_soonest(window: Window, plan: Plan) -> None:
    lengths = window.tokens.lengths
    two_steps = max(
        sum(lengths[row] for row in (*plan.documents_of(step), *plan.documents_of(step + 1)))
        for step in range(NUM_STEPS)
    )
    per_pass = sum(lengths[:12])
    assert two_steps < 0.75 * per_pass
    counts = {}
    for keep, window_tokens in ((Keep.none, two_steps), (Keep.window, two_steps), (Keep.all, 1)):
        asked, most = trained(window, plan, keep, window_tokens)
        in_order = [row for step in range(NUM_STEPS) for row in plan.documents_of(step)]
        assert firsts(asked) == [12, 13, *firsts(in_order)]
        assert most <= (per_pass if keep is Keep.all else two_steps)
        counts[keep] = len(asked)
        left = set(window.rows())
        assert {12, 13} <= left
        if keep is Keep.all:
            assert len(left) == 14
        for row in left:
            window.remove(row)
        (window.directory / "ended").unlink()
    assert counts[Keep.all] < counts[Keep.window] < counts[Keep.none]


def test_it_goes_on_with_what_an_earlier_start_left(window: Window, plan: Plan) -> None:
    trained(window, plan, Keep.all, 1)
    (window.directory / "ended").unlink()
    asked, _ = trained(window, plan, Keep.window, 1000, first_step=7)
    assert asked == []


def test_a_capture_that_has_ended_is_not_waited_for(window: Window) -> None:
    window.add(3, torch.ones(window.tokens.lengths[3], 2, 3))
    window.end()
    assert len(window.read(3).input_ids_T) == window.tokens.lengths[3]
    with pytest.raises(EyasError, match="the capture beside this training has ended"):
        window.read(4)


@pytest.mark.parametrize("document", range(12))
def test_the_next_step_of_a_document(plan: Plan, document: int) -> None:
    uses = [step for step in range(NUM_STEPS + 8) if document in plan.documents_of(step)]
    for after in range(-1, NUM_STEPS):
        assert plan.next_step(document, after) == min(step for step in uses if step > after)
