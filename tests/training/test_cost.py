"""What a training has cost, over several starts."""

from types import SimpleNamespace
from typing import Any, cast

from lightning import Trainer

from eyas.data.plan import Plan
from eyas.training.cost import Cost

LENGTHS = [5, 7, 11, 13, 17]
PLAN = Plan([[0, 1], [2], [3], [4]], rows_per_step=3, num_steps=20, seed=3)


def trained(cost: Cost, first: int, last: int) -> dict[str, Any]:
    cost.on_train_start(cast(Trainer, None))
    for step in range(first, last):
        cost.on_train_batch_end(cast(Trainer, SimpleNamespace(global_step=step + 1)))
    return cost.so_far()


def test_tokens_are_those_of_every_documents_row_over_all_starts() -> None:
    tokens = sum(LENGTHS[document] for step in range(20) for document in PLAN.documents_of(step))
    whole = trained(Cost(PLAN, LENGTHS, parameters=9, before={}), 0, 20)
    assert (whole["tokens"], whole["parameters"]) == (tokens, 9)
    before = {**trained(Cost(PLAN, LENGTHS, parameters=9, before={}), 0, 8), "seconds": 100.0}
    resumed = trained(Cost(PLAN, LENGTHS, parameters=9, before=before), 8, 20)
    assert resumed["tokens"] == tokens
    assert 100 <= resumed["seconds"] < 101
