"""A training that stops growing: it ends there, its best checkpoint stays, and it can be carried on after all."""

from pathlib import Path

from conftest import OPTIONS
from eyas.artifact import read_manifest
from eyas.run import Run, read_metrics
from running import Running

SHORT = ("training.validate_every_n_steps=5", "training.checkpoint_every_n_steps=5", "training.keep_last=1")


def test_a_training_ends_when_tau_sim_no_longer_grows(outputs: Path, tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(outputs / "store")
    options = (*OPTIONS, *SHORT, "evaluation=none", "optimizer.lr=3", "export.checkpoint=best")
    code, printed, said = Running.start(tmp_path, *options, "training.patience=2").end()
    assert (code, said) == (0, "")
    run = Run(tmp_path / "run")
    tau_sims = {int(row["step"]): row["val/tau_sim"] for row in read_metrics(run.metrics_file) if "val/tau_sim" in row}
    last, best = max(tau_sims), max(tau_sims, key=lambda step: tau_sims[step])
    assert best == last - 10 < 23
    assert f"ends at step {last}: tau_sim has not grown for 2 validations; the best was {tau_sims[best]:.3f}" in printed
    assert [read_manifest(path)["step"] for path in run.whole_checkpoints()] == [best, last]
    assert run.exported_step() == best

    code, printed, _ = Running.start(tmp_path, *options, "training.patience=2").end()
    assert code == 0
    assert "already trained" in printed

    code, printed, _ = Running.start(tmp_path, *options).end()
    assert code == 0
    assert f"resumes at step {last}: 33 steps" in printed
    assert run.trained_steps() == 33
