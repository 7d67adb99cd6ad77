"""A new architecture is a YAML file, never code: six of them, trained or refused by name, and a wrong field of each caught."""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
import yaml
from safetensors.torch import load_file

from conftest import ROOT, run
from eyas.capture.tap import load_verifier
from eyas.cli.compose import compose
from eyas.errors import EyasError
from eyas.run import read_metrics
from eyas.verifier.facts import resolve
from eyas.verifier.locate import locate
from eyas.verifier.teacher import Teacher

LIBRARY = Path(__file__).parent / "new_verifiers" / "verifier"

TRAINED = ("kimi_finetune", "qwen3_next", "gemma3_vlm", "inhouse")

REFUSED = {
    "packed": "packed: transformers can't load it: compressed-tensors",
    "consolidated": "is read in the layout of params.json, which transformers does not load: set verifier.path",
}

ADD = ""
WRONG = [
    pytest.param(
        *("kimi_finetune", ADD, "config: {path: language_config}"),
        "verifier.config.path='language_config': config.json has no language_config there; "
        "a language model's config seems to be at 'text_config'",
        id="kimi_finetune-config.path",
    ),
    pytest.param(
        *("gemma3_vlm", "tied: true", "tied: false"),
        "nothing in the checkpoint begins with lm_head. or language_model.lm_head.; set verifier.tied: true",
        id="gemma3_vlm-tied",
    ),
    pytest.param(
        *("inhouse", "trust_remote_code: {config: true, model: true}\n", ADD),
        "read the code, then set verifier.trust_remote_code={config: true, model: true}",
        id="inhouse-trust_remote_code",
    ),
    pytest.param(
        *("packed", ADD, "keys: {head: [model.layers.0.mlp.up_proj.weight]}"),
        "verifier.keys.head: model.layers.0.mlp.up_proj.weight is packed",
        id="packed-keys.head",
    ),
    pytest.param(
        *("consolidated", ADD, "norm: {eps: {config: rms_norm_eps}}"),
        "verifier.norm.eps: params.json has no 'rms_norm_eps'",
        id="consolidated-norm.eps",
    ),
]


@dataclass(frozen=True)
class Lab:
    """The six checkpoints, conversations, and outputs that all runs share: the tokens are the same for all."""

    directory: Path

    @property
    def outputs(self) -> Path:
        return self.directory / "outputs"

    def checkpoint(self, name: str) -> Path:
        return self.directory / name

    def call(self, *command: str) -> "CompletedProcess[str]":
        """A command with the tiny experiment's settings and as little data as there can be."""
        settings = [
            *("experiment=tiny", "trainer=cpu", "evaluation=none", "data=demo", "data.held_out=2"),
            *(f"data.path={self.directory}/sums.jsonl", f"outputs={self.outputs}"),
            *(
                "training.epochs=null",
                "training.max_steps=4",
                "training.row_length=128",
                "training.log_every_n_steps=2",
            ),
        ]
        return run(*command, *settings)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("lab")
    done = run("-m", "tests.distributed.new_verifiers.checkpoints", str(directory))
    assert done.returncode == 0, done.stderr
    with (directory / "sums.jsonl").open("w") as lines:
        for n in range(14):
            turns = [("user", f"What is {n} plus 7?"), ("assistant", f"{n} plus 7 is {n + 7}.")]
            lines.write(json.dumps({"messages": [{"role": role, "content": text} for role, text in turns]}) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_MODULES_CACHE", str(directory / "modules"))  # where transformers copies a checkpoint's code
        yield Lab(directory)


@pytest.fixture
def added(lab: Lab, tmp_path: Path) -> Callable[..., list[str]]:
    """A --config-dir that holds one new verifier, and the arguments that choose it."""

    def add(name: str, old: str = ADD, new: str = ADD) -> list[str]:
        text = (LIBRARY / f"{name}.yaml").read_text()
        assert old in text
        (tmp_path / "verifier").mkdir()
        (tmp_path / "verifier" / f"{name}.yaml").write_text(text.replace(old, new) if old else f"{text}{new}\n")
        return [f"--config-dir={tmp_path}", f"verifier={name}", f"verifier.path={lab.checkpoint(name)}"]

    return add


def assert_refused(done: "CompletedProcess[str]", message: str) -> None:
    """Exit code 2, and one line of Eyas, the last one, which says what is wrong."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("eyas: ") == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("eyas: error: ")
    assert message in last


def trained_steps(directory: Path) -> list[float]:
    """The losses of a finished run that left a draft."""
    assert (directory / "draft" / "model.safetensors").exists()
    assert (directory / "checkpoints" / "step-00000004").exists()
    return [row["train/loss"] for row in read_metrics(directory / "metrics.csv") if "train/loss" in row]


@pytest.mark.parametrize("name", [*TRAINED, *REFUSED])
def test_it_is_under_ten_lines_of_yaml(name: str) -> None:
    lines = (LIBRARY / f"{name}.yaml").read_text().splitlines()
    assert sum(not line.startswith("#") for line in lines) < 10
    assert not (ROOT / "conf" / "verifier" / f"{name}.yaml").exists()


def test_another_norm_is_caught_before_any_state_is_kept(lab: Lab, added: Callable[..., list[str]]) -> None:
    wrong = added("qwen3_next", "kind: rms_plus_one", "kind: rms")
    done = lab.call("-m", "eyas.cli.main", "capture", *wrong, "name=wrong_norm")
    assert_refused(done, "verifier.norm")
    assert not list((lab.outputs / "store" / "states").glob("*/manifest.json"))
    assert not (lab.outputs / "wrong_norm").exists()


@pytest.mark.parametrize("name", TRAINED)
def test_a_new_verifier_trains(name: str, lab: Lab, added: Callable[..., list[str]]) -> None:
    done = lab.call("train.py", *added(name), f"name={name}")
    assert done.returncode == 0, done.stderr
    losses = trained_steps(lab.outputs / name)
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))
    config = yaml.safe_load((lab.outputs / name / "config.yaml").read_text())
    assert (config["verifier"]["name"], config["capture"]["engine"]) == (name, "transformers")


def test_kimi_k25_on_eight_devices(lab: Lab) -> None:
    """Its own YAML, on a checkpoint of its layout and names with 61 small layers: capture, training, export, evaluation."""
    words = ["verifier=kimi_k25", f"verifier.path={lab.checkpoint('kimi_k25')}", "trainer=8cpu", "data=mine"]
    words += [f"data.path={lab.directory}/sums.jsonl", "data.responses=keep", "data.held_out=2", "capture=transformers"]
    words += ["evaluation=transformers", "evaluation.max_tokens=4", "evaluation.num_prompts=1", "name=kimi_k25"]
    words += [
        "training.row_length=128",
        "data.max_length=128",
        "training.unroll_steps=3",
        "training.rows_per_step=8",
        "draft.vocab_size=128",
    ]
    done = run("train.py", *words, f"outputs={lab.outputs}", "training.epochs=null", "training.max_steps=2")
    assert done.returncode == 0, done.stderr
    assert "28 checks passed" in done.stdout
    assert "layers [2, 30, 58] and the last, bfloat16" in done.stdout
    assert done.stdout.endswith("output identical to plain greedy decoding (1/1)\n")
    draft = json.loads((lab.outputs / "kimi_k25" / "draft" / "config.json").read_text())
    assert draft["eagle_aux_hidden_state_layer_ids"] == [2, 30, 58]
    assert len(list((lab.outputs / "kimi_k25" / "logs").glob("rank-*.log"))) == 8


def test_another_norm_is_caught_where_states_exist(lab: Lab, added: Callable[..., list[str]]) -> None:
    assert (lab.outputs / "qwen3_next").exists()
    wrong = added("qwen3_next", "kind: rms_plus_one", "kind: rms")
    assert_refused(lab.call("-m", "eyas.cli.main", "capture", *wrong), "verifier.norm")


@pytest.mark.parametrize("name", REFUSED)
def test_what_transformers_cannot_run_is_read_and_refused_by_name(
    name: str, lab: Lab, added: Callable[..., list[str]], tmp_path: Path
) -> None:
    arguments = added(name)
    verifier = compose(arguments[1:], [str(tmp_path)]).verifier
    checkpoint = locate(verifier)
    facts = resolve(verifier, checkpoint)
    assert (facts.hidden_size, facts.num_layers, facts.vocab_size) == (64, 8, 320)
    llama = load_file(lab.directory / "llama.safetensors")
    teacher = Teacher.from_checkpoint(checkpoint, facts, torch.float32)
    assert torch.allclose(teacher(llama["state"]), llama["logits"], atol=1e-5)

    if name == "packed" and find_spec("compressed_tensors"):
        return  # where that package is installed (vLLM brings it) transformers can run this one
    with pytest.raises(EyasError, match=REFUSED[name]) as refusal:  # what the capture stage says, in one line
        load_verifier(checkpoint, verifier, torch.float32, torch.device("cpu"))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("name", "old", "new", "message"), WRONG)
def test_a_wrong_field_is_caught_before_step_1(
    name: str, old: str, new: str, message: str, lab: Lab, added: Callable[..., list[str]]
) -> None:
    done = lab.call("train.py", *added(name, old, new), f"name=wrong_{name}")
    assert_refused(done, message)
    assert not (lab.outputs / f"wrong_{name}").exists()


def test_auto_needs_nothing_but_the_path_and_reads_as_the_yaml_does(lab: Lab) -> None:
    assert (lab.outputs / "qwen3_next").exists()
    done = lab.call("-m", "eyas.cli.main", "capture", "verifier=auto", f"verifier.path={lab.checkpoint('qwen3_next')}")
    assert done.returncode == 0, done.stderr
    assert "auto     model type qwen3_next is listed in verifier/arch/rms_plus_one.yaml" in done.stderr
    assert "capture  " not in done.stdout, "the states of the YAML's run are its own"


def test_inspect_prints_a_yaml_to_keep(lab: Lab, tmp_path: Path) -> None:
    name, directory = "gemma3_vlm", lab.checkpoint("gemma3_vlm")
    done = run("-m", "eyas.cli.main", "inspect", str(directory), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    text = done.stdout.partition("or into a --config-dir:\n")[2]
    (tmp_path / "verifier").mkdir()
    (tmp_path / "verifier" / "kept.yaml").write_text(text)
    kept = compose(["verifier=kept"], [str(tmp_path)]).verifier
    assert (kept.name, kept.path) == (name, str(directory))
    shutil.copy(LIBRARY / f"{name}.yaml", tmp_path / "verifier")
    ours = compose([f"verifier={name}", f"verifier.path={directory}"], [str(tmp_path)]).verifier
    facts, own = (resolve(verifier, locate(verifier)) for verifier in (kept, ours))
    assert (facts.arithmetic, facts.tensors) == (own.arithmetic, own.tensors)
