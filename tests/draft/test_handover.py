"""What goes out with a draft: the line that serves it, and its card."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from small import SHAPE

from eyas.artifact import write_file
from eyas.config import Config
from eyas.draft.given import PROVENANCE_FILE
from eyas.draft.handover import Handover, card, check_provenance, raw_card, serve_line, write_card
from eyas.errors import EyasError
from eyas.run import Run
from eyas.verifier.checkpoint import Checkpoint

DRAFT = {"method": "eagle3", "model": ".", "num_speculative_tokens": 3}
PROVENANCE: dict[str, Any] = {
    "run": "run",
    "step": 30,
    "verifier": {"name": "tiny_llama", "path": None, "hub": None, "weights": "a" * 64},
    "tokens": "b" * 64,
    "states": "c" * 64,
    "versions": {"eyas": "0.1", "torch": "2.13"},
    "git": "d" * 40,
}
METRICS = [
    {"step": 10, "train/loss": 4.0, "val/loss": 4.5, "val/tau_sim": 1.1},
    {"step": 30, "train/loss": 3.25, "val/loss": 3.5, "val/tau_sim": 1.5},
]
SETTING = {"engine": "vllm", "dtype": "bfloat16", "temperature": 0.0, "k": 3, "max_tokens": 64, "prompts": "held_out"}
MEASURED = {
    "setting": {**SETTING, "chat": {"kwargs": {"enable_thinking": False}}},
    "tau": 1.43,
    "acceptance": [0.3, 0.1, 0.03],
    "num_prompts": 20,
    "tokens_per_second": {"plain": 10.0, "speculative": 12.5},
    "verdict": ["measured tau 1.43 (...)", "faster with the draft up to 8 requests at a time"],
    "draft": {"step": 30},
}


def line(prompts: str, k: int, concurrency: int, tau: float) -> dict[str, Any]:
    rate = {"plain": 10.0 * concurrency, "speculative": 12.5 * concurrency}
    return {
        **{"prompts": prompts, "k": k, "concurrency": concurrency, "tau": tau},
        **{"acceptance": [0.3] * k, "tokens_per_second": rate},
    }


@pytest.fixture
def config(tiny: Callable[..., Config]) -> Config:
    return tiny("name=run", "logger=csv")


def handed_over(checkpoint: Checkpoint, **changes: Any) -> Handover:
    values: dict[str, Any] = {
        **{"shape": SHAPE, "checkpoint": checkpoint, "provenance": PROVENANCE, "metrics": METRICS},
        **{"evaluation": MEASURED, "counts": {"train_tokens": 31_000, "train_supervised_tokens": 20_000}},
    }
    return Handover(**{**values, **changes})


def test_the_line_names_the_commit_and_what_the_verifier_needs(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint
) -> None:
    config = tiny(
        "verifier.vllm.args=[--trust-remote-code]",
        "verifier.vllm.env={VLLM_X: 'a b'}",
        "verifier.chat.kwargs={enable_thinking: false}",
    )
    hub = replace(tiny_checkpoint, hub="org/model@abc123")
    words = shlex.split(serve_line(config.verifier, hub, ".", 3))
    assert words[:6] == ["VLLM_X=a b", "vllm", "serve", "org/model", "--revision", "abc123"]
    assert words[6:8] == ["--default-chat-template-kwargs", '{"enable_thinking": false}']
    assert (words[8], words[9], json.loads(words[10])) == ("--trust-remote-code", "--speculative-config", DRAFT)
    assert not {"--dtype", "--quantization", "--kv-cache-dtype", "--load-format"} & {*words}, "formats stay auto"


def test_local_files_are_named_so_that_they_are_found_from_everywhere(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "template.jinja").touch()
    (tmp_path / "model").symlink_to(tiny_checkpoint.directory)
    verifier = tiny("verifier.chat.template=template.jinja", "verifier.tokenizer.path=org/tokenizer").verifier
    words = shlex.split(serve_line(verifier, replace(tiny_checkpoint, directory=Path("model")), ".", 3))
    assert words[2] == str(tmp_path / "model")
    assert words[words.index("--chat-template") + 1] == str(tmp_path / "template.jinja")
    assert words[words.index("--tokenizer") + 1] == "org/tokenizer"


def test_what_is_deployed_wins(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint) -> None:
    deployed = ["path=org/model-FP8", "quantization=fp8", "kv_cache_dtype=fp8_e4m3"]
    verifier = tiny(*(f"verifier.deployment.{it}" for it in deployed)).verifier
    words = shlex.split(serve_line(verifier, replace(tiny_checkpoint, hub="org/model@abc"), "d", 3))
    assert words[2:7] == ["org/model-FP8", "--quantization", "fp8", "--kv-cache-dtype", "fp8_e4m3"]
    assert "--revision" not in words


def test_the_card(config: Config, tiny_checkpoint: Checkpoint) -> None:
    text = card(config, handed_over(replace(tiny_checkpoint, hub="org/model@abc123")))
    header = yaml.safe_load(text.split("---")[1])
    assert header["base_model"] == "org/model"
    assert "license" not in header, "nobody has said which"
    found = re.search(r"```bash\n(.*)\n```", text)
    assert found is not None
    assert json.loads(shlex.split(found[1])[-1]) == DRAFT
    for said in (
        "vllm, bfloat16, temperature 0, chain drafting, 20 prompts (held_out), up to 64 tokens each",
        'chat template with {"enable_thinking": false}',
        "| held_out | 3 | 1 | 1.43 | 30%  10%  3% | 12.5 | 10.0 | 1.25x |",
        "- faster with the draft up to 8 requests at a time",
        "| length | 30 steps of",
        "31,000 tokens, 20,000 of them supervised",
        "| loss, training | 3.250 (kl per target) |",
        "| loss, held out | 3.500 (kl per target) |",
        "| tau, teacher-forced | 1.50 on held-out text",
        "[2, 4, 5]: the residual stream entering",
        "96 of 96 tokens",
        "weights `aaaaaaaaaaaaaaaa`",
        "eyas 0.1, torch 2.13",
    ):
        assert said in text, said


def test_the_card_has_a_row_for_everything_that_was_measured(config: Config, tiny_checkpoint: Checkpoint) -> None:
    lines = [line("chat", 3, 1, 1.5), line("chat", 3, 8, 1.4), line("code", 1, 1, 1.2)]
    text = card(config, handed_over(tiny_checkpoint, evaluation={**MEASURED, "measured": lines}))
    assert "| chat | 3 | 8 | 1.40 | 30%  30%  30% | 100.0 | 80.0 | 1.25x |" in text
    assert "| code | 1 | 1 | 1.20 | 30% |" in text


def test_what_was_not_measured_is_not_there(config: Config, tiny_checkpoint: Checkpoint) -> None:
    text = card(config, handed_over(tiny_checkpoint, evaluation={}, metrics=METRICS[:0], counts={}))
    assert "Nothing yet" in text
    for absent in ("tau", "tokens/s", "loss", "supervised", "base_model"):
        assert absent not in text, absent


def test_numbers_say_what_they_do_not_hold_for(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint) -> None:
    deployed = card(tiny("verifier.deployment.kv_cache_dtype=fp8"), handed_over(tiny_checkpoint))
    assert "not beside what the line above serves" in deployed
    setting = {**MEASURED["setting"], "engine": "transformers"}
    by_loop = card(tiny(), handed_over(tiny_checkpoint, evaluation={**MEASURED, "setting": setting}))
    assert "not of a server" in by_loop
    assert "not beside" not in by_loop


def test_the_raw_format_is_marked(config: Config, tiny_checkpoint: Checkpoint) -> None:
    text = raw_card(config, handed_over(tiny_checkpoint))
    assert "[1, 3, 4] here are [2, 4, 5] there" in text
    assert "**Not served by Eyas.**" in text
    assert "1.43" not in text, "nothing was measured with it"


def test_numbers_of_an_older_draft_are_not_carried_over(config: Config, tiny_checkpoint: Checkpoint) -> None:
    run = Run.of(config)
    run.draft.mkdir(parents=True)
    write_file(run.draft / PROVENANCE_FILE, json.dumps(PROVENANCE))
    write_file(run.evaluation_file, json.dumps(MEASURED))
    write_card(config, run)
    assert "1.43" in (run.draft / "README.md").read_text()
    write_file(run.evaluation_file, json.dumps({**MEASURED, "draft": {"step": 20}}))
    write_card(config, run)
    assert "Nothing yet" in (run.draft / "README.md").read_text()
    assert not run.raw_draft.exists()


def test_a_draft_of_other_weights_is_noticed(config: Config, tiny_checkpoint: Checkpoint) -> None:
    run = Run.of(config)
    check_provenance(config, run)  # nothing exported yet
    run.draft.mkdir(parents=True)
    write_file(run.draft / PROVENANCE_FILE, json.dumps(PROVENANCE))
    with pytest.raises(EyasError, match=r"was trained for weights aaaaaaaaaaaa .* set verifier\.path"):
        check_provenance(config, run)
    verifier = {**PROVENANCE["verifier"], "weights": tiny_checkpoint.identity}
    write_file(run.draft / PROVENANCE_FILE, json.dumps({**PROVENANCE, "verifier": verifier}))
    check_provenance(config, run)
