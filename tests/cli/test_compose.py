import resource
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, run
from eyas.capture.schema import CaptureEngine
from eyas.cli.compose import compose
from eyas.config import Config, config_yaml, load_config, to_dict
from eyas.errors import EyasError
from eyas.evaluation.schema import Engine

OPTIONS = sorted(
    f"{path.parent.relative_to(ROOT / 'conf')}={path.stem}"
    for path in (ROOT / "conf").glob("*/*.yaml")
    if path.parent.name not in ("sweeps", "verifier")  # tests/verifier/test_published.py composes every verifier
)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_file_composes(option: str) -> None:
    needs = {"data=mine": ["data.path=some.jsonl"], "capture=files": ["capture.path=states"]}
    config = compose([option, *needs.get(option, [])], [])
    assert isinstance(config, Config)


def test_kimi_k25_is_right_with_nothing_else_said() -> None:
    config = compose(["verifier=kimi_k25", "trainer=8gpu", "data.path=some.jsonl"], [])
    verifier = config.verifier
    engines = config.capture.engine, config.evaluation.engine
    assert (*engines, config.data.name) == (CaptureEngine.vllm, Engine.vllm, "mine")
    assert (config.trainer.accelerator.name, config.trainer.devices) == ("cuda", 8)
    assert (verifier.draft.head_dim, verifier.draft.layer_ids) == (128, [2, 30, 58])
    assert (verifier.config.path, verifier.keys.prefix) == ("text_config", "language_model.")
    assert (config.training.unroll_steps, config.training.row_length) == (7, 4096)


def test_default_is_the_demo() -> None:
    config = compose([], [])
    assert (config.name, config.trainer.accelerator.name, config.trainer.devices) == (
        "smollm2_135m-demo-eagle3",
        "cpu",
        1,
    )


def test_verifier_chooses_in_other_groups_and_yields_to_the_command_line(tmp_path: Path) -> None:
    verifier = tmp_path / "verifier" / "mine.yaml"
    verifier.parent.mkdir()
    verifier.write_text(
        "defaults:\n  - arch/llama@_here_\n  - override /experiment@_global_.experiment: none\nname: mine\n"
    )
    assert compose(["verifier=mine"], [str(tmp_path)]).training.unroll_steps == 7
    assert compose(["verifier=mine", "experiment=demo"], [str(tmp_path)]).training.unroll_steps == 3


WRONG = [
    pytest.param(
        "draft.vocab_sizee=3", "draft.vocab_sizee: there is no such key; did you mean draft.vocab_size?", id="misspelt"
    ),
    pytest.param(
        "+draft.layer_idss=[1]", "draft.layer_idss: there is no such key; did you mean draft.layer_ids?", id="added"
    ),
    pytest.param(
        "optimizer.lrr=1", "optimizer.lrr: there is no such key; did you mean optimizer.lr?", id="third-party"
    ),
    pytest.param("vocab_size=1", "vocab_size: there is no such key; did you mean draft.vocab_size?", id="other-place"),
    pytest.param(
        "draft.vocab_size=many", "draft.vocab_size=many: Value 'many' of type 'str' could not be converted", id="type"
    ),
    pytest.param(
        "training.loss=kll",
        "training.loss=kll: Invalid value 'kll', expected one of [kl, ce, nla, lk_hybrid]",
        id="enum",
    ),
    pytest.param(
        "verifier=smollm2_135", "verifier=smollm2_135: there is no such option; did you mean smollm2_135m?", id="option"
    ),
    pytest.param("data=mine", "data.path must be set", id="missing"),
    pytest.param("training.unroll_steps=0", "training.unroll_steps=0: must be at least 1", id="range"),
    pytest.param("data.max_length=500", "make them equal", id="row-length"),
    pytest.param("training.clip_norm=0", "each must be positive", id="clip-norm"),
    pytest.param("training.max_steps=5", "exactly one of them sets the length", id="two-lengths"),
    pytest.param(
        "draft.sliding_window=16 training.unroll_steps=16", "the last steps would see nothing but drafted", id="window"
    ),
    pytest.param("draft.fc_norm=true", "exclude each other", id="contradiction"),
    pytest.param("name=../elsewhere", "is no run name", id="name"),
]


@pytest.mark.parametrize(("override", "message"), WRONG)
def test_wrong_values_are_one_clear_line(override: str, message: str) -> None:
    with pytest.raises(EyasError) as error:
        compose(override.split(), [])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_misspelt_key_in_a_users_file_is_refused(tmp_path: Path) -> None:
    experiment = tmp_path / "experiment" / "mine.yaml"
    experiment.parent.mkdir()
    experiment.write_text("# @package _global_\ntraining: {epochss: 3}\n")
    with pytest.raises(EyasError, match=r"training\.epochss: there is no such key; did you mean training\.epochs\?"):
        compose(["experiment=mine"], [str(tmp_path)])


def test_the_command_line_says_it_in_one_line() -> None:
    done = run("train.py", "draft.vocab_sizee=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "eyas: error: draft.vocab_sizee: there is no such key; did you mean draft.vocab_size?\n"


def processor_seconds(code: str) -> float:
    """What one process takes: other tests run beside this one."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_cfg_job_takes_a_second_and_no_torch() -> None:
    """Less than 3 times as long as importing Hydra, which takes 0.4 s on an idle core (and longer on a busy one, as this)."""
    composing = "import sys; sys.argv = ['train.py', '--cfg', 'job']; import train; train.main(); assert 'torch' not in sys.modules"
    importing = "import hydra.main, hydra.utils"
    pairs = []
    for _ in range(10):  # noise only ever adds: the least of each is what it takes
        pairs.append((processor_seconds(composing), processor_seconds(importing)))
        ours, hydras = map(min, zip(*pairs, strict=True))
        if ours < 3 * hydras:
            return
    raise AssertionError(f"--cfg job takes {ours:.2f} s of processor time, importing Hydra {hydras:.2f} s")


def test_config_survives_its_own_yaml(tmp_path: Path) -> None:
    config = compose(["verifier=tiny_llama"], [])
    file = tmp_path / "config.yaml"
    file.write_text(config_yaml(config))
    assert to_dict(load_config(file)) == to_dict(config)


def test_keys_of_the_users_own_need_no_plus() -> None:
    config = compose(
        [
            "data.columns={prompt: q, response: a}",
            "server.env.MY_VARIABLE='1'",
            "verifier.chat.kwargs={enable_thinking: false}",
        ],
        [],
    )
    assert config.data.columns == {"prompt": "q", "response": "a"}
    assert config.server.env["MY_VARIABLE"] == "1"
    assert config.verifier.chat.kwargs == {"enable_thinking": False}
