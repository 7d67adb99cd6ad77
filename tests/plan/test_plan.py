"""`eyas plan`: what it knows without a checkpoint, without tokens, and without a GPU."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import run
from eyas.cli.compose import compose
from eyas.cli.main import without_data
from eyas.cli.train import prepare
from eyas.config import Config, config_yaml
from eyas.data.positions import TARGETS_AT_ONCE_ON_GPU
from eyas.draft.shape import resolve_shape
from eyas.errors import EyasError
from eyas.plan import fit
from eyas.plan.__main__ import main
from eyas.plan.amounts import states_bytes, token_bytes, training_rate, work
from eyas.plan.ledger import Peak
from eyas.plan.published import published_facts
from eyas.plan.report import bar, gb, time_row
from eyas.plan.step import GATHERED, LOGITS, WEIGHTS, RowLayout, step_memory
from eyas.verifier.facts import resolve
from eyas.verifier.locate import locate
from verifier.test_published import load, write_checkpoint

KIMI = ["verifier=kimi_k25", "trainer=8gpu", "data=none"]


def kimi(*overrides: str) -> Config:
    return compose([*KIMI, *overrides], [])


def test_a_verifier_that_is_not_here_is_planned_by_its_yaml(tmp_path: Path) -> None:
    large = ["plan.tokens=1000000", "plan.training_tokens_per_second=10000", f"outputs={tmp_path}", "capture=online"]
    done = run("-m", "eyas.cli.main", "plan", *KIMI[:2], "plan.device_gb=80", "server.gpus=[0]", *large)
    assert done.stderr == ""
    assert "985,449,472" in done.stdout, "the draft's parameters"
    assert "2,348,817,408" in done.stdout, "the embedding's and the head's, and the norm's"
    assert "61  4 passes; 16 rows of 4,096 tokens a step, 2 on each device" in done.stdout
    assert "6 min 40 s" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" of 80.00 GB on each GPU")


def test_what_does_not_fit_is_said_with_what_would_help(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = ["training.row_length=512", "data.max_length=512", "training.unroll_steps=2"]
    config = kimi("plan.device_gb=16", f"outputs={tmp_path}", *short)
    (tmp_path / "config.yaml").write_text(config_yaml(config))
    with pytest.raises(SystemExit, match="2"):
        main(tmp_path / "config.yaml")
    said = capsys.readouterr().out
    assert "doesn't fit: the training needs" in said
    assert "training.activation_checkpointing=true" in said
    assert "trainer.num_nodes=2" in said
    assert said.splitlines()[-1].startswith("plan     does not fit (memory")


@pytest.mark.parametrize("name", ["kimi_k25", "gemma3_27b", "nemotron3_nano"])
def test_a_published_shape_is_that_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / name, load(name))
    verifier = kimi(f"verifier={name}", f"verifier.path={tmp_path / name}").verifier
    facts, known = resolve(verifier, locate(verifier)), published_facts(verifier)
    for field in ("hidden_size", "num_layers", "vocab_size", "default_layer_ids"):
        assert getattr(known, field) == getattr(facts, field)
    for tensor in ("embedding", "norm", "head", "head_bias"):
        shapes = [stored and stored.shape for stored in (getattr(known, tensor), getattr(facts, tensor))]
        assert shapes[0] == shapes[1]


def test_a_verifier_whose_yaml_says_too_little_needs_its_path(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(config_yaml(kimi("verifier=llama31_8b")))
    with pytest.raises(
        EyasError, match=r"set verifier\.draft\.num_attention_heads, or verifier\.path, whose config has it"
    ):
        main(tmp_path / "config.yaml")
    verifier = kimi("verifier.published.num_layers=null").verifier
    with pytest.raises(EyasError, match=r"no verifier\.path, and its YAML doesn't say verifier\.published\.num_layers"):
        published_facts(verifier)


def test_no_data_are_needed_where_nothing_is_said_of_them() -> None:
    assert without_data(["-cd", "X", "verifier=a", "k=v"]) == ["-cd", "X", "data=none", "verifier=a", "k=v"]
    assert without_data([]) == []
    assert without_data(["verifier=a", "data.path=f"]) == ["verifier=a", "data.path=f"]


def test_sharding_and_recomputing_take_less() -> None:
    config = kimi("training.row_length=2048", "data.max_length=2048", "training.unroll_steps=3")

    def memory(config: Config) -> Peak:
        facts = published_facts(config.verifier)
        found = step_memory(config, facts, resolve_shape(config, facts), RowLayout.full(2048))
        assert found.saved_bytes == pytest.approx(12 * found.trained, rel=1e-2), "AdamW: weights and two states"
        return found.step

    eight = memory(config)
    one = memory(replace(config, trainer=replace(config.trainer, devices=1)))
    again = memory(replace(config, training=replace(config.training, activation_checkpointing=True)))
    assert one.parts[WEIGHTS] == pytest.approx(8 * eight.parts[WEIGHTS], rel=1e-2)
    assert one.parts[GATHERED] == pytest.approx(eight.parts[GATHERED], rel=1e-2)
    assert again.total < eight.total < one.total
    assert eight.parts[LOGITS] > 2 * TARGETS_AT_ONCE_ON_GPU * 32000 * 4, "the draft's and the teacher's, float32"


def test_tokens_that_are_made_are_counted_and_else_stated(tiny: Callable[..., Config]) -> None:
    config = tiny()
    unknown = work(config, has_checkpoint=True)
    assert (unknown.tokens, unknown.steps) == (None, None)
    assert "eyas prepare" in unknown.source
    stated = work(replace(config, plan=replace(config.plan, tokens=10_000)), has_checkpoint=True)
    assert (stated.tokens, stated.steps, stated.trained_tokens) == (10_000, 10, 10 * 2 * 512)
    prepare(config)
    known = work(config, has_checkpoint=True)
    assert known.tokens is not None
    assert known.steps is not None
    assert 0 < int(known.fullest_row.loss_mask_T.sum()) <= config.training.row_length
    assert work(kimi("training.epochs=null", "training.max_steps=7"), has_checkpoint=False).steps == 7


def test_disk_by_what_is_kept_at_a_time() -> None:
    facts = published_facts(kimi().verifier)
    shape = resolve_shape(kimi(), facts)
    assert token_bytes(kimi(), shape) == 4 * 7168 * 2 + 5
    assert states_bytes(kimi(), shape, 10**7) == 10**7 * 57349
    online = kimi("capture=online", "server.gpus=[0]")
    assert states_bytes(online, shape, 10**7) == 10**6 * 57349
    assert states_bytes(kimi("capture=files", "capture.path=x"), shape, 10**7) == 0


def test_what_a_run_measured_is_taken(outputs: Path) -> None:
    like = training_rate(kimi(f"plan.like={outputs}/run"))
    assert like is not None
    assert like.tokens_per_second > 0
    assert like.source == f"measured by {outputs}/run, times 8 devices / 1 there"
    assert training_rate(kimi()) is None
    with pytest.raises(EyasError, match="expected a run's directory"):
        training_rate(kimi("plan.like=/nowhere"))


def test_a_verifier_that_is_too_large_for_the_server_gets_its_number_of_gpus() -> None:
    said = fit.server_problem(kimi(), 600 * 10**9, 80 * 10**9)
    assert said is not None
    assert said.endswith("set server.tensor_parallel=16")
    assert fit.server_problem(kimi("server.tensor_parallel=16"), 600 * 10**9, 80 * 10**9) is None
    assert fit.server_problem(kimi("server=endpoints", "evaluation=none"), 600 * 10**9, 80 * 10**9) is None
    on_cpu = kimi("trainer=cpu", "server=cpu", "capture=online")
    assert fit.server_beside(on_cpu, 10**9) == 10**9 + 2 * 2**30 + fit.PYTHON_BYTES
    assert fit.server_beside(kimi(), 10**9) == 0


def test_a_verifier_that_is_too_large_for_the_capture() -> None:
    large = 160 * 10**9, 80 * 10**9
    said = fit.capture_problem(kimi("capture=transformers"), *large)
    assert said is not None
    assert said.startswith(
        "the verifier's weights, 160 GB, are too large for one GPU of 80 GB; set capture.device_map=auto"
    )
    for enough in (["capture=vllm"], ["trainer=cpu"], ["capture=transformers", "capture.device_map=auto"]):
        assert fit.capture_problem(kimi(*enough), *large) is None
    assert fit.capture_problem(kimi("capture=transformers"), 10**9, 80 * 10**9) is None


def test_amounts_as_a_person_says_them() -> None:
    assert [gb(number) for number in (12_340_000, 1_234_000_000, 123_400_000_000)] == ["12.3 MB", "1.23 GB", "123 GB"]
    assert (bar(0), bar(1e-9), len(bar(1))) == ("", "▏", 24)
    assert time_row("training", 3600, 1.0, "x")[1] == "1 h 00 min"
    assert time_row("training", None, 1000.0, "x")[1] == "16 min 40 s per million tokens"
