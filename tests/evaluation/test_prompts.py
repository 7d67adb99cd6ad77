"""What an evaluation asks."""

from collections.abc import Callable
from pathlib import Path

from eyas.config import Config
from eyas.evaluation.prompts import prompt_sets
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.locate import locate
from eyas.verifier.tokenizer import load_tokenizer


def test_a_set_of_questions_without_answers(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    """As MT-Bench has them; each prompt ends where the verifier's first answer begins."""
    file = tmp_path / "question.jsonl"
    file.write_text('{"question_id": 81, "turns": ["One?", "Two?"]}\n{"question_id": 82, "turns": ["Three?"]}\n')
    source = "evaluation.prompts.bench"
    config = tiny("evaluation=vllm", f"+data/base@{source}=reading", f"+{source}.name=bench", f"+{source}.path={file}")
    [asked] = prompt_sets(config)
    tokenizer = load_tokenizer(config.verifier, locate(config.verifier))
    expected = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False)
        for text in ("One?", "Three?")
    ]
    assert [tokenizer.decode(ids) for ids in asked.prompts] == expected


def test_the_questions_that_ship_with_the_project(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint) -> None:
    """All of them, though tiny rows are shorter than most."""
    found = {it.name: it.prompts for it in prompt_sets(tiny("evaluation=vllm_kinds", "evaluation.num_prompts=10"))}
    assert {name: len(prompts) for name, prompts in found.items()} == dict.fromkeys(
        ("chat", "math", "code", "tasks"), 10
    )
    assert len({tuple(prompt) for prompts in found.values() for prompt in prompts}) == 40
