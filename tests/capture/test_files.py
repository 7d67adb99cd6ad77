"""States that somebody else has written: by the writer of the docs, and by writers that are wrong."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from conftest import ROOT, run
from eyas.capture.files import adopt, explains
from eyas.capture.modules import find_modules
from eyas.capture.parity import own_logits
from eyas.capture.stage import capture
from eyas.capture.tap import load_verifier
from eyas.capture.transformers import in_transformers
from eyas.cli.compose import compose
from eyas.config import Config
from eyas.data.row_files import RowStore, row_file
from eyas.data.store import StateStore
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.stages import draft_shape, parity_file, states_artifact, tokens_artifact, verifier_facts
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.locate import locate
from eyas.verifier.schema import NormKind
from eyas.verifier.teacher import Teacher
from eyas.verifier.tokenizer import load_tokenizer


@pytest.fixture
def written(captured: Callable[..., Config], tmp_path: Path) -> Config:
    """A configuration whose files the writer of docs/capture_files.md has written."""
    config = captured("capture=files", f"capture.path={tmp_path}/states")
    [writer] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "capture_files.md").read_text(), re.DOTALL)
    (tmp_path / "write_states.py").write_text(writer)
    layers = ",".join(map(str, draft_shape(config).layer_ids))
    directory = locate(config.verifier).directory
    arguments = [tokens_artifact(config).directory, f"{tmp_path}/states", directory, layers]
    done = run(str(tmp_path / "write_states.py"), *map(str, arguments))
    assert done.returncode == 0, done.stderr
    return config


def changed(config: Config, row: int, **tensors: torch.Tensor) -> None:
    file = row_file(Path(config.capture.path or ""), row)
    save_file(load_file(file) | tensors, file)


def test_they_are_what_transformers_captures(
    written: Config, captured: Callable[..., Config], capsys: pytest.CaptureFixture[str]
) -> None:
    adopt(written)
    assert "capture  parity argmax 100.0% of" in capsys.readouterr().out
    tokens = Tokens(tokens_artifact(written).directory)
    ours = RowStore(states_artifact(written).directory, tokens)
    alone = captured("capture=transformers", "capture.tokens_per_shard=300")
    capture(alone, in_transformers)
    theirs = StateStore(states_artifact(alone).directory)
    ours.verify()
    for row in range(tokens.num_rows):
        for one, other in zip(vars(ours.read(row)).values(), vars(theirs.read(row)).values(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
    assert not list(states_artifact(written).directory.glob("*.safetensors")), "nothing is copied"

    row_file(ours.directory, 4).unlink()
    with pytest.raises(EyasError, match=r"hs_4\.safetensors is missing"):
        ours.verify()


def test_files_of_another_row_or_another_model_are_refused(written: Config) -> None:
    first, directory = load_file(row_file(Path(written.capture.path or ""), 0)), states_artifact(written).directory
    for tensors, message in (
        ({"token_ids": first["token_ids"]}, r"hs_3\.safetensors captured other tokens than it was given"),
        (
            {"hidden_states": first["hidden_states"][:, :-1].contiguous()},
            r"hs_3\.safetensors hands over states of shape",
        ),
    ):
        whole = load_file(row_file(Path(written.capture.path or ""), 3))
        changed(written, 3, **tensors)
        with pytest.raises(EyasError, match=message):
            adopt(written)
        changed(written, 3, **whole)
    logits = load_file(Path(written.capture.path or "") / "parity.safetensors")["logits"]
    save_file({"logits": logits.flip(-1).contiguous()}, Path(written.capture.path or "") / "parity.safetensors")
    with pytest.raises(EyasError, match="the teacher's logits are not the verifier's own"):
        adopt(written)
    (Path(written.capture.path or "") / "parity.safetensors").unlink()
    with pytest.raises(
        EyasError, match=r"nats a token.*: verifier\.norm, .* parity\.safetensors gives a sharper proof"
    ):
        adopt(written)
    save_file({"logits": logits}, Path(written.capture.path or "") / "parity.safetensors")
    row_file(Path(written.capture.path or ""), 13).unlink()
    with pytest.raises(
        EyasError, match=r"hs_13\.safetensors is missing: every row of the tokens artifact needs its file"
    ):
        adopt(written)
    assert not directory.exists()
    assert not parity_file(written).exists()


def test_without_logits_the_right_reading_must_explain_best(smollm2_checkpoint: Checkpoint) -> None:
    config = compose(["verifier=smollm2_135m"], [])
    facts, cpu = verifier_facts(config), torch.device("cpu")
    model = load_verifier(smollm2_checkpoint, config.verifier, torch.float32, cpu)
    lines = map(json.loads, (ROOT / "conf" / "data" / "demo.jsonl").read_text().splitlines()[:10])
    tokenizer = load_tokenizer(config.verifier, smollm2_checkpoint)
    rows = [torch.tensor(tokenizer(line["conversations"][1]["content"])["input_ids"][:150]) for line in lines]
    _, state_NH, _ = own_logits(model, find_modules(model, config.verifier, facts.num_layers), config.verifier, rows)
    before_N = torch.cat([torch.arange(len(ids_T)) < len(ids_T) - 1 for ids_T in rows])
    state_NH, next_N = state_NH[before_N], torch.cat([ids_T[1:] for ids_T in rows])
    teacher = Teacher.from_checkpoint(smollm2_checkpoint, facts, torch.float32)
    nats, like = explains(teacher, state_NH, next_N)
    assert nats < 2.5
    assert like == ["norm layernorm"], "these states have almost no mean, which is all that it would subtract"
    for kind in (NormKind.none, NormKind.rms_plus_one):
        wrong = Teacher(replace(teacher.arithmetic, norm=kind), teacher.head, norm_H=teacher.norm)
        with pytest.raises(EyasError, match="is not what this model does"):
            explains(wrong, state_NH, next_N)
