"""One process, two and eight: the same losses, noise, gradients and weights, also where a run goes on with another number of them."""

import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from conftest import OPTIONS as ORDINARY
from eyas.process import PREEMPTED
from eyas.run import Run
from running import Running, compare_metrics

OPTIONS = (
    *ORDINARY,
    *("training.rows_per_step=8", "training.row_length=128", "training.max_steps=70", "evaluation=none"),
    *("training.log_every_n_steps=1", "training.validate_every_n_steps=10", "training.checkpoint_every_n_steps=10"),
    *("training.keep_last=9", "training.state_noise=0.05"),
)


def test_one_then_eight_then_two_devices(outputs: Path, tmp_path: Path) -> None:
    """Told to end twice (SIGTERM), and carried on with other devices: the losses and gradients of one device, undisturbed."""
    shutil.copytree(outputs / "store", tmp_path / "one" / "store")
    shutil.copytree(outputs / "store", tmp_path / "many" / "store")
    assert Running.start(tmp_path / "one", *OPTIONS).end()[0] == 0

    steps = [0]
    for devices, enough in ((1, 3), (8, 50)):
        running = Running.start(tmp_path / "many", *OPTIONS, f"trainer.devices={devices}")
        running.wait_for(partial(has_done, running, steps[-1] + enough))
        running.supervisor.send_signal(signal.SIGTERM)
        code, printed, said = running.end()
        assert code == PREEMPTED
        assert said == (
            "eyas: eyas.training was told to end (SIGTERM); the same command carries on from what is complete\n"
        )
        steps.append(running.run.trained_steps())
        assert f"checkpoint at step {steps[-1]}\n" in printed
    assert steps[1] + 50 <= steps[2] < 70
    code, printed, said = Running.start(tmp_path / "many", *OPTIONS, "trainer.devices=2").end()
    assert (code, said) == (0, "")
    assert f"resumes at step {steps[2]}: 70 steps" in printed

    one, many = (Run(tmp_path / name / "run") for name in ("one", "many"))
    compare_metrics(many, one)
    compare_gradients(many, one, steps[2] // 10 * 10)  # the last checkpoint of eight devices that one device has too


def compare_gradients(ours: Run, theirs: Run, step: int) -> None:
    for one, other in zip(gradients(ours, step), gradients(theirs, step), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


def has_done(running: Running, steps: int) -> bool:
    return running.steps() >= steps


def gradients(run: Run, step: int) -> list[Tensor]:
    """AdamW's running mean of them, as a checkpoint has it: nine tenths are of the last 22 steps."""
    whole = run.directory / f"step-{step}.pt"
    dcp_to_torch_save(run.checkpoints / f"step-{step:08d}", whole)
    state: dict[str, Any] = torch.load(whole, weights_only=False)["optimizer_0"]["state"]
    return [state[name]["exp_avg"] for name in sorted(state)]
