"""Bad input: one clear line each, and nothing left half-written."""

import shutil
from pathlib import Path

import pytest

from conftest import run
from eyas.verifier.checkpoint import Checkpoint

BAD = [
    pytest.param(["data.path={tmp}/nope.jsonl"], "there is no such file", id="missing-data"),
    pytest.param(["data.path={tmp}/empty.jsonl"], "the file is empty", id="empty-data"),
    pytest.param(["data.path={tmp}/broken.jsonl"], "broken.jsonl:2: not valid JSON", id="broken-line"),
    pytest.param(["data.path={tmp}/silent.jsonl"], "silent.jsonl:1: no assistant turn", id="no-assistant-turn"),
    pytest.param(["verifier.path={tmp}/hollow"], "holds no *.safetensors weights", id="verifier-without-weights"),
    pytest.param(["draft.layer_ids=[2,4,8]"], "expected distinct ids in ascending order from 0 to 7", id="layer-id"),
    pytest.param(["draft.vocab_size=1000"], "is larger than the vocabulary of tiny_llama, 259", id="draft-vocabulary"),
    pytest.param(["outputs=/proc/outputs"], "can't be written", id="unwritable"),
    pytest.param(
        ["+optimizer.momentum=0.9"], "torch.optim.AdamW got an unexpected keyword argument 'momentum'", id="optimizer"
    ),
    pytest.param(["optimizer._target_=os.system"], "expected an object of one of these packages", id="foreign-target"),
]


@pytest.mark.parametrize(("overrides", "message"), BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    overrides: list[str], message: str, tiny_checkpoint: Checkpoint, tmp_path: Path
) -> None:
    good = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}\n'
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "broken.jsonl").write_text(good + '{"messages": [\n')
    (tmp_path / "silent.jsonl").write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n')
    (tmp_path / "hollow").mkdir()
    shutil.copy(tiny_checkpoint.directory / "config.json", tmp_path / "hollow")
    before = sorted(tmp_path.rglob("*"))
    done = run(
        "train.py",
        "verifier=tiny_llama",
        f"outputs={tmp_path}/outputs",
        *(override.format(tmp=tmp_path) for override in overrides),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("eyas: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert sorted(tmp_path.rglob("*")) == before
