"""The run directory, metrics and schedules: what needs no training."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eyas.artifact import write_manifest
from eyas.config import Config
from eyas.draft.given import PROVENANCE_FILE
from eyas.errors import EyasError
from eyas.run import Run, length, read_metrics
from eyas.training import schedule
from eyas.training.metrics import acceptance
from eyas.training.record import MetricsCsv
from eyas.training.third_party import check
from eyas.verifier.checkpoint import Checkpoint


def checkpoint(run: Run, step: int, manifest: dict[str, object] | None = None, suffix: str = "") -> Path:
    directory = run.checkpoints / f"step-{step:08d}{suffix}"
    directory.mkdir(parents=True)
    if manifest is not None:
        write_manifest(directory, {"step": step, **manifest})
    return directory


def test_the_newest_complete_checkpoint_wins(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.newest_checkpoint() is None
    checkpoint(run, 10, {})
    whole = checkpoint(run, 20, {})
    checkpoint(run, 30)  # no manifest: not complete
    checkpoint(run, 40, {}, suffix=".partial")
    assert run.newest_checkpoint() == whole


def test_checkpoints_but_none_complete_is_no_fresh_start(tmp_path: Path) -> None:
    run = Run(tmp_path)
    checkpoint(run, 10)
    with pytest.raises(EyasError, match="none is complete"):
        run.newest_checkpoint()


def test_trained_means_to_the_length_that_is_asked_for(tiny: Callable[..., Config], tmp_path: Path) -> None:
    run, config = Run(tmp_path), tiny()
    checkpoint(run, 23, {"finished_length": length(config)})
    assert run.is_trained(config)
    assert not run.is_trained(tiny("training.epochs=2"))


def test_exported_means_in_every_format_that_is_asked_for(tiny: Callable[..., Config], tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert not run.is_exported(tiny())
    checkpoint(run, 20, {})
    for directory, step, expected in ((run.draft, 10, False), (run.draft, 20, True), (run.raw_draft, 10, True)):
        directory.mkdir(exist_ok=True)
        (directory / PROVENANCE_FILE).write_text(f'{{"step": {step}}}')
        assert run.is_exported(tiny()) is expected
    assert not run.is_exported(tiny("export.formats=[vllm,sglang]"))
    (run.raw_draft / PROVENANCE_FILE).write_text('{"step": 20}')
    assert run.is_exported(tiny("export.formats=[vllm,sglang]"))


def test_identity_ignores_hardware_logging_and_length(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint) -> None:
    run = Run.of(tiny("name=a"))
    with run.opened(tiny("name=a"), ["verifier=tiny_llama"], []):
        pass
    for same in (
        *("trainer=1gpu", "logger=wandb", "evaluation.k=5", "training.epochs=9", "training.log_every_n_steps=7"),
        *("export.formats=[vllm,sglang]", "verifier.deployment.kv_cache_dtype=fp8"),
    ):
        run.check(tiny("name=a", same))
    for other in (
        "draft.num_layers=2",
        "training.loss=ce",
        "optimizer.lr=1",
        "seed=3",
        "data.max_length=90",
        "capture.dtype=bfloat16",
    ):
        with pytest.raises(EyasError, match="holds another run"):
            run.check(tiny("name=a", other))


def test_a_directory_that_is_no_run_is_left_alone(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint) -> None:
    run = Run.of(tiny("name=a"))
    run.directory.mkdir(parents=True)
    (run.directory / "thesis.tex").touch()
    with pytest.raises(EyasError, match="is no run of Eyas"):
        run.check(tiny("name=a"))


def test_metrics_are_appended_and_a_resumed_run_drops_what_it_will_do_again(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    logger = MetricsCsv(file, resume_step=0)
    logger.log_metrics({"train/loss": 3.0, "epoch": 0}, 5)
    logger.log_metrics({"val/loss": 2.5}, 5)
    logger.log_metrics({"train/loss": 2.0}, 10)
    rows = [{"step": 5, "train/loss": 3.0}, {"step": 5, "val/loss": 2.5}, {"step": 10, "train/loss": 2.0}]
    assert read_metrics(file) == rows
    MetricsCsv(file, resume_step=5).log_metrics({"train/loss": 1.0}, 10)
    assert read_metrics(file) == [*rows[:2], {"step": 10, "train/loss": 1.0}]


def test_acceptance_and_tau() -> None:
    #                       loss      trained   supervised  reached   accepted   at steps 0 and 1
    totals = torch.tensor([[30.0, 8], [10.0, 8], [20.0, 10], [20.0, 6], [12.0, 3]])
    values = acceptance(totals, torch.tensor([1.0, 0.5]))
    assert float(values["loss"]) == pytest.approx((30 + 4) / (10 + 4))
    assert [float(values[f"acceptance_{step}"]) for step in (0, 1)] == pytest.approx([0.6, 0.3])
    assert [float(values[f"acceptance_cond_{step}"]) for step in (0, 1)] == pytest.approx([0.6, 0.5])
    assert float(values["tau_sim"]) == pytest.approx(1.9)


@pytest.mark.parametrize(("kind", "middle"), [("linear", 0.5), ("cosine", 0.5)])
def test_schedules_warm_up_and_decay(kind: str, middle: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = getattr(schedule, kind)(optimizer, num_steps=110, warmup_ratio=0.1, final_ratio=0.0)
    rates = []
    for _ in range(110):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates[:3] == pytest.approx([1 / 11, 2 / 11, 3 / 11])
    assert max(rates) == rates[10] == 1.0
    assert rates[60] == pytest.approx(middle, abs=0.02)
    assert rates[109] < 0.02


def test_third_party_arguments_are_checked_without_building() -> None:
    check("optimizer", {"_target_": "torch.optim.AdamW", "_partial_": True, "lr": 1e-3})
    with pytest.raises(EyasError, match=r"unexpected keyword argument 'learning_rate'; it takes: params, lr, betas"):
        check("optimizer", {"_target_": "torch.optim.AdamW", "learning_rate": 1e-3})
    with pytest.raises(EyasError, match="there is no such object"):
        check("optimizer", {"_target_": "torch.optim.AdamWW"})
    with pytest.raises(EyasError, match="expected an object of one of these packages"):
        check("optimizer", {"_target_": "subprocess.run"})
