"""What an evaluation concludes from what it counted and timed."""

from typing import Any

import pytest

from eyas.cli.compose import compose
from eyas.errors import EyasError
from eyas.evaluation.prompts import PromptSet
from eyas.evaluation.report import acceptance, first_difference, report
from eyas.evaluation.vllm import Pass, conclusion
from eyas.serving.metrics import SpeculationCounts


def test_acceptance_is_joint_and_conditional() -> None:
    found = acceptance(10, [8, 4, 1])
    assert found["tau"] == pytest.approx(2.3)
    assert found["acceptance"] == [0.8, 0.4, 0.1]
    assert found["acceptance_cond"] == [0.8, 0.5, 0.25]
    with pytest.raises(EyasError, match="nothing was drafted"):
        acceptance(0, [])


def test_where_answers_part() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2


def reported(dtype: str, gap: float, **changes: Any) -> dict[str, Any]:
    config = compose([f"evaluation.dtype={dtype}"], [])
    return report(
        config,
        acceptance(10, [8, 4, 1]),
        prompts="some",
        num_prompts=5,
        differences=[{"prompt": 2, "token": 7, "gap": gap}],
        tokens_per_second={"plain": 1.0, "speculative": 2.0},
        verifier="f00d",
        draft={"step": 1},
        **changes,
    )


def test_a_near_tie_is_said_and_a_clear_difference_refused() -> None:
    assert reported("bfloat16", 0.3)["verdict"][-1] == (
        "output differs from plain greedy decoding in 1/5 prompts, at near-ties (largest logit gap 0.3)"
    )
    for dtype, gap in (("float32", 0.3), ("bfloat16", 0.6), ("bfloat16", float("inf"))):
        with pytest.raises(EyasError, match=r"clear margin \(prompt 2, token 7"):
            reported(dtype, gap)


def measured(concurrency: int, tokens_per_second: float) -> Pass:
    return Pass(
        PromptSet("set", None, []),
        concurrency,
        [[0] * 100],
        100 / tokens_per_second,
        SpeculationCounts(50, 60, (30, 20, 10)),
        [],
    )


def test_the_conclusion_names_the_last_concurrency_that_gains_and_the_best_k() -> None:
    plain = [measured(1, 100), measured(8, 700), measured(32, 1500)]
    three = [measured(1, 200), measured(8, 770), measured(32, 1200)]
    five = [measured(1, 180), measured(8, 600), measured(32, 1000)]
    assert conclusion({3: three, 5: five}, plain) == (
        "faster with the draft up to 8 requests at a time (2.00x at 1, 1.10x at 8; k=3, the best of 3, 5)"
    )
    assert conclusion({3: [measured(1, 150)]}, [measured(1, 100)]) == (
        "faster with the draft at 1 request at a time (1.50x at 1; k=3)"
    )
    assert conclusion({3: [measured(1, 90)]}, [measured(1, 100)]) == (
        "no faster with the draft at any concurrency measured (0.90x at 1, k=3)"
    )


SETTINGS = [
    ("evaluation=vllm", "evaluation.length_buckets=[2048,512]", r"expected numbers of tokens in ascending order"),
    (
        "evaluation=transformers",
        "evaluation.length_buckets=[512]",
        r"in transformers only \[\]; evaluation=vllm measures",
    ),
    ("evaluation=none", "evaluation.every_n_steps=140", "evaluation=none, which measures nothing"),
    ("evaluation=transformers", "evaluation.every_n_steps=100", "no multiple of training.checkpoint_every_n_steps=70"),
]


@pytest.mark.parametrize(("engine", "setting", "message"), SETTINGS)
def test_settings_that_can_not_be_measured(engine: str, setting: str, message: str) -> None:
    with pytest.raises(EyasError, match=message):
        compose([engine, setting], [])
