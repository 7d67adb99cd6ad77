"""Faults p50 to p53, a format that can't hold the draft, and another verifier deployed: each is a row that says so."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from eyas.artifact import write_file
from eyas.config import Config
from eyas.doctor.draft_checks import as_vllm_reads, examine_export, examine_handover, server_python
from eyas.doctor.findings import Finding, Verdict
from eyas.draft import export
from eyas.draft.given import PROVENANCE_FILE
from eyas.run import Run
from eyas.verifier.checkpoint import Checkpoint

PLAIN = [f"draft.{flag}=false" for flag in ("norm_before_residual", "norm_before_fc", "norm_output")]


def rows(findings: list[Finding]) -> dict[str, Finding]:
    return {it.name: it for it in findings}


def exported(config: Config, weights: str) -> Run:
    """A run with a draft of step 30 that was trained for these weights."""
    run = Run.of(config)
    run.draft.mkdir(parents=True)
    run.identity_file.touch()
    record = {"step": 30, "verifier": {"path": "somewhere", "weights": weights}}
    write_file(run.draft / PROVENANCE_FILE, json.dumps(record))
    return run


def test_all_is_well(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint) -> None:
    found = rows(examine_handover(tiny("name=run")))
    assert {name: it.verdict for name, it in found.items()} == {
        "p52_verifier_path": Verdict.ok,
        "p53_train_and_serve": Verdict.na,
        "export_formats": Verdict.ok,
        "deployment": Verdict.ok,
    }
    assert tiny_checkpoint.identity[:12] in found["p52_verifier_path"].found


SHAPES = [
    pytest.param(["draft.architecture=qwen3", "draft.num_layers=2"], "", id="two-layers-of-qwen3"),
    pytest.param(["draft.vocab_size=null", "draft.trainable_head=false"], "", id="whole-vocabulary"),
    pytest.param(["draft.norm_before_fc=false", "draft.fc_norm=true", "draft.layer_ids=[1,2,3,4]"], "", id="fc-norm"),
    pytest.param([*PLAIN, "export.formats=[vllm,sglang]"], "in both formats", id="raw"),
]


@pytest.mark.parametrize(("options", "says"), SHAPES)
def test_p50_a_small_draft_of_the_same_kind_is_read_back(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, options: list[str], says: str
) -> None:
    row = rows(examine_export(tiny("server=endpoints", *options)))["p50_round_trip"]
    assert row.verdict is Verdict.ok
    assert says in row.found


@pytest.mark.parametrize(
    ("old", "new"), [("embed_tokens.weight", None), ("layers.0.mlp.up_proj.weight", "_orig_mod.up_proj.weight")]
)
def test_p50_a_tensor_that_is_missing_or_renamed(
    tiny: Callable[..., Config],
    tiny_checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str | None,
) -> None:
    save = export.save

    def planted(draft: Any, directory: Path) -> None:
        save(draft, directory)
        tensors = load_file(directory / "model.safetensors")
        tensor = tensors.pop(old)
        save_file(tensors if new is None else {**tensors, new: tensor}, directory / "model.safetensors")

    monkeypatch.setattr(export, "save", planted)
    row = rows(examine_export(tiny("server=endpoints")))["p50_round_trip"]
    assert row.verdict is Verdict.fail
    assert old in row.found


def python_that_reads(directory: Path, values: dict[str, Any] | str) -> list[str]:
    """A server.command whose Python says that it read these values, or fails with this line."""
    program = directory / "python-of-vllm"
    said = f"echo 'READ {json.dumps(values)}'" if isinstance(values, dict) else f"echo '{values}' >&2; exit 1"
    program.write_text(f"#!/bin/sh\n{said}\n")
    program.chmod(0o755)
    return [str(program), "-m", "vllm.entrypoints.openai.api_server", "--model"]


READINGS = [
    pytest.param({}, Verdict.ok, "vLLM reads layers [2, 4, 5]", id="as-meant"),
    pytest.param(
        {"eagle_aux_hidden_state_layer_ids": None},
        Verdict.fail,
        "vLLM reads eagle_aux_hidden_state_layer_ids=None",
        id="ids-ignored",
    ),
    pytest.param({"norm_output": False}, Verdict.fail, "vLLM reads norm_output=False", id="flag-ignored"),
    pytest.param("no vLLM: No module named vllm", Verdict.na, "has no vLLM: No module", id="no-vllm"),
    pytest.param("ValueError: Unsupported", Verdict.fail, "does not read the config that would", id="refused"),
]


@pytest.mark.parametrize(("changes", "verdict", "says"), READINGS)
def test_p51_vllm_reads_other_values(
    tiny: Callable[..., Config],
    tiny_checkpoint: Checkpoint,
    tmp_path: Path,
    changes: dict[str, Any] | str,
    verdict: Verdict,
    says: str,
) -> None:
    config = tiny()
    values = {**as_vllm_reads(config), **changes} if isinstance(changes, dict) else changes
    config.server.command = python_that_reads(tmp_path, values)
    row = rows(examine_export(config))["p51_vllm_config"]
    assert row.verdict is verdict
    assert says in row.found


def test_p51_the_python_of_the_command(tiny: Callable[..., Config], tmp_path: Path) -> None:
    config = tiny()
    (tmp_path / "vllm").write_text("#!/bin/sh\n")
    (tmp_path / "vllm").chmod(0o755)
    for command, expected in (([str(tmp_path / "vllm"), "serve"], None), (["/nowhere/vllm", "serve"], None)):
        config.server.command = command
        assert server_python(config) == expected
    (tmp_path / "python").touch()
    config.server.command = [str(tmp_path / "vllm"), "serve"]
    assert server_python(config) == str(tmp_path / "python")
    assert server_python(tiny("server=endpoints")) is None


def test_p52_a_draft_of_other_weights(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint) -> None:
    config = tiny("name=run")
    exported(config, "f" * 64)
    row = rows(examine_handover(config))["p52_verifier_path"]
    assert row.verdict is Verdict.fail
    assert "was trained for weights ffffffffffff" in row.found
    assert "verifier.path" in row.fix


@pytest.mark.parametrize(("accepted", "verdict"), [(0.3, Verdict.ok), (0.02, Verdict.warn)])
def test_p53_promised_and_not_kept(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, accepted: float, verdict: Verdict
) -> None:
    config = tiny("name=run")
    run = exported(config, tiny_checkpoint.identity)
    run.metrics_file.write_text("step,val/acceptance_0\n30,0.5\n")
    report = {"acceptance": [accepted], "setting": {"engine": "vllm"}, "draft": {"step": 30}}
    write_file(run.evaluation_file, json.dumps(report))
    row = rows(examine_handover(config))["p53_train_and_serve"]
    assert row.verdict is verdict
    assert f"50% right teacher-forced, {accepted:.0%} accepted in vllm" in row.found
    assert verdict is Verdict.ok or "evaluation=transformers" in row.fix


def test_a_format_that_can_not_hold_the_draft(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint) -> None:
    row = rows(examine_handover(tiny("export.formats=[vllm,sglang]")))["export_formats"]
    assert row.verdict is Verdict.fail
    assert "draft.norm_before_residual=true, draft.norm_before_fc=true" in row.found
    assert row.fix == "set export.formats=[vllm]"
    row = rows(examine_handover(tiny("export.formats=[vllm,sglang]", *PLAIN[:2])))["export_formats"]
    assert (row.verdict, "norm_output" in row.found) == (Verdict.warn, True)
    row = rows(examine_handover(tiny("export.formats=[vllm,sglang]", *PLAIN)))["export_formats"]
    assert row.verdict is Verdict.ok


VLLM = "capture=vllm"
DEPLOYMENTS = [
    pytest.param(["verifier.deployment.path=org/other"], "org/other deployed", id="another-model"),
    pytest.param(["verifier.deployment.quantization=fp8"], "quantization none captured, fp8 deployed", id="quantised"),
    pytest.param(["verifier.deployment.kv_cache_dtype=fp8"], "KV cache auto captured, fp8 deployed", id="cache"),
    pytest.param([VLLM, "server.kv_cache_dtype=fp8"], "KV cache fp8 captured, auto deployed", id="cache-of-the-server"),
    pytest.param(
        [VLLM, "server.args=['--quantization=fp8']"], "quantization fp8 captured, none", id="server-arguments"
    ),
    pytest.param(["verifier.vllm.args=[--kv-cache-dtype,fp8]"], "KV cache auto captured, fp8", id="in-transformers"),
    pytest.param([VLLM, "verifier.vllm.args=[--kv-cache-dtype,fp8]"], "", id="both"),
    pytest.param([VLLM, "server.kv_cache_dtype=fp8", "verifier.deployment.kv_cache_dtype=fp8"], "", id="both-said"),
]


@pytest.mark.parametrize(("options", "says"), DEPLOYMENTS)
def test_captured_on_one_thing_deployed_on_another(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, options: list[str], says: str
) -> None:
    row = rows(examine_handover(tiny(*options)))["deployment"]
    assert row.verdict is (Verdict.warn if says else Verdict.ok)
    assert says in row.found


def test_another_directory_is_another_verifier_only_by_its_weights(
    tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    moved = Path(shutil.copytree(tiny_checkpoint.directory, tmp_path / "moved"))
    config = tiny(f"verifier.deployment.path={moved}")
    assert rows(examine_handover(config))["deployment"].verdict is Verdict.ok
    settings = json.loads((moved / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "fp8"}
    (moved / "config.json").write_text(json.dumps(settings))
    row = rows(examine_handover(config))["deployment"]
    assert (row.verdict, "quantization none captured, fp8 deployed" in row.found) == (Verdict.warn, True)
