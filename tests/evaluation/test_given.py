"""Drafts that no run made: measured beside the verifier they are given, converted if need be, or refused in one line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import SHAPE, options
from torch import Tensor

from conftest import run
from eyas.cli.evaluate import evaluate_draft
from eyas.config import Config
from eyas.draft.adopt import adopt
from eyas.draft.export import load_draft, save
from eyas.draft.given import short_name
from eyas.draft.model import Draft, draft_config
from eyas.draft.raw import save_raw
from eyas.errors import EyasError
from eyas.evaluation.prompts import PromptSet, _by_length
from eyas.run import Measurement
from eyas.verifier.checkpoint import Checkpoint

CPU = torch.device("cpu")


@pytest.fixture
def draft(tiny_checkpoint: Checkpoint) -> Draft:
    """A random draft of the tiny verifier's shape."""
    sizes = {"verifier_vocab_size": tiny_checkpoint.config["vocab_size"], "draft_vocab_size": 64}
    shape = type(SHAPE)(**{**vars(SHAPE), **sizes})
    torch.manual_seed(1)
    made = Draft(draft_config(options(), shape, verifier="its/verifier", unroll_steps=3), torch.arange(64) * 3)
    for parameter in made.parameters():
        parameter.data = torch.randn(parameter.shape)
    return made


def adopted(tiny: Callable[..., Config], given: Path) -> Measurement:
    config = tiny(f"draft.init={given}", "name=it")
    directory = Measurement.of(config)
    directory.directory.mkdir(parents=True)
    adopt(config, directory)
    return directory


@pytest.mark.parametrize("write", [save, save_raw], ids=["speculators", "raw"])
def test_it_is_measured_as_it_is(
    tiny: Callable[..., Config], draft: Draft, tmp_path: Path, write: Callable[[Draft, Path], None]
) -> None:
    draft.config.transformer_layer_config.rms_norm_eps = 1e-3  # the verifier's is another: the draft's own counts
    write(draft, tmp_path / "given")
    written = load_draft(adopted(tiny, tmp_path / "given").draft, torch.float32, CPU)
    for name, tensor in draft.state_dict().items():
        assert torch.equal(tensor, written.state_dict()[name]), name
    assert torch.equal(written.draft_ids_D, draft.draft_ids_D)
    for key in ("eagle_aux_hidden_state_layer_ids", "norm_before_fc", "norm_before_residual", "norm_output", "fc_norm"):
        assert getattr(written.config, key) == getattr(draft.config, key), key
    ours, theirs = (it.config.transformer_layer_config for it in (written, draft))
    for key in ("rope_parameters", "rms_norm_eps", "head_dim", "num_key_value_heads", "max_position_embeddings"):
        assert getattr(ours, key) == getattr(theirs, key), key


def test_what_it_leaves_out_is_the_verifiers(
    tiny: Callable[..., Config], draft: Draft, tmp_path: Path, tiny_checkpoint: Checkpoint
) -> None:
    save_raw(draft, tmp_path / "given")
    change(
        tmp_path / "given", tensors=lambda it: it.pop("embed_tokens.weight"), config=lambda it: it.pop("eagle_config")
    )
    written = load_draft(adopted(tiny, tmp_path / "given").draft, torch.float32, CPU)
    assert torch.equal(written.embed_tokens.weight, tiny_checkpoint.tensor("model.embed_tokens.weight").float())
    assert written.target_layer_ids == [2, 4, 5], "EAGLE's own choice for eight layers"


def change(
    directory: Path,
    tensors: Callable[[dict[str, Tensor]], object] = lambda _: None,
    config: Callable[[dict[str, Any]], object] = lambda _: None,
) -> None:
    stored, settings = (
        load_file(directory / "model.safetensors"),
        json.loads((directory / "config.json").read_text()),
    )
    tensors(stored)
    config(settings)
    save_file(stored, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(settings))


def narrower(tensors: dict[str, Tensor]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"][:16, :48].contiguous()
    tensors["midlayer.self_attn.q_proj.weight"] = tensors["midlayer.self_attn.q_proj.weight"][:, :32].contiguous()


def eagle_1(tensors: dict[str, Tensor]) -> None:
    tensors["layers.0.self_attn.q_proj.weight"] = tensors.pop("midlayer.self_attn.q_proj.weight")[:, :32].contiguous()


def medusa(tensors: dict[str, Tensor]) -> None:
    tensors.clear()
    tensors["0.0.linear.weight"] = torch.zeros(32, 32)


def four_layers(tensors: dict[str, Tensor]) -> None:
    tensors["fc.weight"] = torch.zeros(32, 4 * 32)


FAULTS = [
    pytest.param({"tensors": narrower}, "reads states of 16 numbers, tiny_llama has hidden_size 32", id="hidden-size"),
    pytest.param(
        {"tensors": lambda it: it.update(t2d=torch.cat([it["t2d"], torch.zeros(8, dtype=torch.bool)]))},
        r"knows a vocabulary of \d+ tokens \(t2d, vocab_size\), tiny_llama has \d+",
        id="verifier-vocabulary",
    ),
    pytest.param({"tensors": lambda it: it.pop("d2t")}, "its head has 64 rows and its vocabulary", id="no-d2t"),
    pytest.param({"tensors": lambda it: it["d2t"].add_(1)}, "d2t and t2d name different tokens", id="other-d2t"),
    pytest.param(
        {"tensors": four_layers, "config": lambda it: it.pop("eagle_config")},
        r"reads 4 captured layers and its config names none; set eagle_config\..*, one lower than",
        id="no-layer-ids",
    ),
    pytest.param({"tensors": four_layers}, r"reads 4 captured layers and its config names \[2, 4, 5\]", id="layers"),
    pytest.param(
        {"config": lambda it: it["eagle_config"].update(eagle_aux_hidden_state_layer_ids=[1, 3, 20])},
        r"reads the states entering layers \[2, 4, 21\], and tiny_llama has 8 layers",
        id="deeper-verifier",
    ),
    pytest.param({"tensors": eagle_1}, "is no EAGLE-3 draft: it calls itself LlamaForCausalLMEagle3", id="eagle-1"),
    pytest.param(
        {"tensors": medusa, "config": lambda it: it.update(architectures=["MedusaModel"])},
        r"is no EAGLE-3 draft: it calls itself MedusaModel and holds 0\.0\.linear\.weight",
        id="medusa",
    ),
    pytest.param(
        {"config": lambda it: it.update(speculators_model_type="mtp")}, "is a mtp draft, expected eagle3", id="mtp"
    ),
    pytest.param({"tensors": lambda it: it.pop("norm.weight")}, "tensors missing .*norm.weight", id="tensor"),
    pytest.param({"config": lambda it: it.update(num_key_value_heads=4)}, "size mismatch for layers.0", id="sizes"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS)
def test_what_does_not_fit_is_refused_in_one_line(
    tiny: Callable[..., Config], draft: Draft, tmp_path: Path, fault: dict[str, Any], message: str
) -> None:
    save_raw(draft, tmp_path / "given")
    change(tmp_path / "given", **fault)
    with pytest.raises(EyasError, match=message) as raised:
        adopted(tiny, tmp_path / "given")
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def fine_tune(tiny_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny verifier with other queries."""
    directory = Path(shutil.copytree(tiny_checkpoint.directory, tmp_path_factory.mktemp("models") / "fine_tune"))
    change_all = {
        name: tensor * (1.01 if "q_proj" in name else 1)
        for name, tensor in load_file(directory / "model.safetensors").items()
    }
    save_file(change_all, directory / "model.safetensors", {"format": "pt"})
    return directory


def evaluate(*arguments: object) -> tuple[int, str, str]:
    done = run("-m", "eyas.cli.main", "evaluate", *map(str, arguments))
    return done.returncode, done.stdout, done.stderr


def test_an_old_draft_beside_a_new_fine_tune(outputs: Path, fine_tune: Path, tmp_path: Path) -> None:
    old = outputs / "run" / "draft"
    beside = ("verifier=tiny_llama", f"verifier.path={fine_tune}", f"outputs={tmp_path}")
    code, printed, error = evaluate(old, *beside)
    assert (code, error) == (0, "")
    assert f"{old} was trained for another verifier: weights " in printed
    assert printed.splitlines()[-1] == "output identical to plain greedy decoding (4/4)"
    directory = tmp_path / "run-on-fine_tune"
    report = json.loads((directory / "evaluation.json").read_text())
    assert (report["draft"]["run"], report["draft"]["step"], report["num_prompts"]) == ("run", 33, 4)
    assert report["draft"]["trained_for"].startswith("another verifier")
    assert "| trained for | another verifier" in (directory / "report.md").read_text()
    assert (directory / "evaluation.png").stat().st_size > 10_000
    assert not list(tmp_path.glob("store/states")), "nothing is captured"

    moment = (directory / "evaluation.json").stat().st_mtime_ns
    assert evaluate(old, *beside)[0] == 0
    assert (directory / "evaluation.json").stat().st_mtime_ns == moment, "measured once"
    code, _, error = evaluate(old, "verifier=tiny_llama", f"outputs={tmp_path}", "name=run-on-fine_tune")
    assert code == 2
    assert "holds another evaluation of a draft (verifier.weights: " in error


def test_a_refused_draft_leaves_no_directory(outputs: Path, tmp_path: Path) -> None:
    shutil.copytree(outputs / "run" / "draft", tmp_path / "given")
    change(tmp_path / "given", config=lambda it: it.update(eagle_aux_hidden_state_layer_ids=[2, 4]))
    code, _, error = evaluate(tmp_path / "given", "verifier=tiny_llama", f"outputs={tmp_path}/outputs")
    assert code == 2
    assert error.startswith(f"eyas: error: {tmp_path}/given reads 3 captured layers and its config names [2, 4]; ")
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == []


@pytest.mark.parametrize(
    ("target", "overrides", "message"),
    [
        ("verifier=tiny_llama", [], "the first argument is a run directory, a draft's directory or its hub id"),
        ("some/draft", ["evaluation.k=2"], "some/draft is no run directory .* measured beside a verifier"),
    ],
)
def test_what_a_hurried_hand_types(target: str, overrides: list[str], message: str) -> None:
    with pytest.raises(EyasError, match=message):
        evaluate_draft(target, overrides)


def test_a_directory_is_named_by_what_was_measured(outputs: Path, tmp_path: Path) -> None:
    assert short_name(str(outputs / "run" / "draft")) == "run"
    (tmp_path / "my draft (2)").mkdir()
    assert short_name(f"{tmp_path}/my draft (2)") == "my-draft--2"
    assert short_name("someone/EAGLE3-model") == "EAGLE3-model"


def test_prompts_by_length(capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [[0] * length for length in (3, 10, 11, 4, 5, 25)]
    assert _by_length("set", prompts, [], 2) == [PromptSet("set", None, prompts[:2])]
    assert _by_length("set", prompts, [4, 10, 20], 1) == [
        PromptSet("set", "1 to 4 tokens", [prompts[0]]),
        PromptSet("set", "5 to 10 tokens", [prompts[1]]),
        PromptSet("set", "11 to 20 tokens", [prompts[2]]),
        PromptSet("set", "21 tokens or more", [prompts[5]]),
    ]
    assert len(_by_length("set", prompts[:2], [20], 5)) == 1
    assert capsys.readouterr().out == "evaluate set has no prompt of 21 tokens or more: not measured\n"
