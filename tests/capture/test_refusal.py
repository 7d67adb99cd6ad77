"""What vLLM can't capture is refused by name, before a server is started, with the way out."""

import re
from collections.abc import Callable

import pytest

from eyas.capture.extraction import arguments, check_layer_ids, explained, refuse_whole_prefill
from eyas.capture.refusal import refuse_long_rows, refuse_what_vllm_cannot
from eyas.cli.compose import compose
from eyas.config import Config
from eyas.errors import EyasError
from eyas.serving.server import Server, ServerDiedError
from served import server_config


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["verifier=gemma2_9b"], "no EAGLE-3 interface (verifier.vllm.eagle3: false)"),
        (
            ["verifier=deepseek_v32"],
            "never hands over the state after the last layer (verifier.vllm.last_state: false)",
        ),
        (["verifier=glm5"], "(verifier.vllm.last_state: false)"),
        (["verifier=deepseek_v4_flash"], "several streams (verifier.stream: multiple)"),
        (["verifier=deepseek_v3", "verifier.target=head_input"], "taken at the head (verifier.target: head_input)"),
    ],
)
def test_by_name(overrides: list[str], reason: str) -> None:
    config = compose([*overrides, "verifier.path=/nowhere", "data=demo", "capture=vllm"], [])
    with pytest.raises(EyasError, match=re.escape(reason)) as error:
        refuse_what_vllm_cannot(config)
    assert str(error.value).startswith(f"vLLM can't capture {config.verifier.name}: ")
    assert "set capture=transformers" in str(error.value)


@pytest.mark.parametrize("name", ["deepseek_v3", "qwen3_8b", "kimi_k2", "llama31_8b", "smollm2_135m"])
def test_others_are_not(name: str) -> None:
    refuse_what_vllm_cannot(compose([f"verifier={name}", "verifier.path=/nowhere", "data=demo"], []))


def test_rows_longer_than_the_server_takes() -> None:
    refuse_long_rows([5, 9], 10, "server.max_length=10")
    with pytest.raises(
        EyasError, match=r"2 of 3 rows .*: row 2 has 12 tokens, .*server.max_length=13, or data.max_length=9"
    ):
        refuse_long_rows([10, 9, 12], 10, "server.max_length=10")


def test_the_arguments_and_the_connector(tiny: Callable[..., Config], tmp_path: object) -> None:
    from pathlib import Path

    args, env = arguments(tiny("capture=vllm", "server=cpu"), [2, 4, 5, 8], Path("/files"))
    assert "--no-enable-prefix-caching" in args
    speculative, transfer = (args[args.index(key) + 1] for key in ("--speculative-config", "--kv-transfer-config"))
    assert '"eagle_aux_hidden_state_layer_ids": [2, 4, 5, 8]' in speculative
    assert '"kv_connector_module_path": "eyas_connector"' in transfer
    directory = Path(env["PYTHONPATH"].split(":")[0])
    assert [file.name for file in directory.glob("*.py")] == ["eyas_connector.py"]
    assert "eyas." not in (directory / "eyas_connector.py").read_text().replace("eyas_connector", "")
    args, env = arguments(tiny("capture=vllm"), [2, 4, 5, 8], Path("/files"))
    assert '"kv_connector": "ExampleHiddenStatesConnector"' in args[-1]
    assert "module_path" not in args[-1]
    assert env == {}


def log_of(*lines: str) -> Server:
    class Logged(Server):
        is_local = True  # type: ignore[assignment]

        def log_lines(self) -> list[str]:
            return [*lines]

    return Logged("model", [], server_config())


def test_ids_minus_one_are_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    line = "(Worker pid=1) INFO [gpu_model_runner.py:5243] Using auxiliary layers from speculative config: "
    check_layer_ids(log_of(f"{line}(2, 4, 5, 8)"), [2, 4, 5, 8])
    with pytest.raises(EyasError, match=r"captures layers \[1, 3, 4, 7\], expected \[2, 4, 5, 8\]"):
        check_layer_ids(log_of(f"{line}(1, 3, 4, 7)"), [2, 4, 5, 8])
    check_layer_ids(log_of("nothing"), [2, 4, 5, 8])
    assert "doesn't say which layers" in capsys.readouterr().out


def test_a_server_that_can_not_split_rows() -> None:
    line = "MLA is enabled on a non-GPU platform; forcing chunked prefill and prefix caching to be disabled."
    refuse_whole_prefill(log_of(line), 1024, 1024)
    refuse_whole_prefill(log_of("Chunked prefill is enabled with max_num_batched_tokens=256."), 256, 1024)
    with pytest.raises(EyasError, match=r"would wait for ever; set capture\.tokens_per_batch=1024"):
        refuse_whole_prefill(log_of(line), 256, 1024)


@pytest.mark.parametrize(
    ("cause", "meaning"),
    [
        (
            "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested",
            "capture=tra",
        ),
        (
            "RuntimeError: The expanded size of the tensor (4) must match the existing size (3) at non-singleton dimension 1",
            "not the one after the last",
        ),
        ("RuntimeError: pin_memory=True requires a CUDA or other accelerator backend", "server.connector=host"),
    ],
)
def test_what_a_server_dies_of(cause: str, meaning: str) -> None:
    with pytest.raises(EyasError, match=meaning) as error, explained("kimi"):
        raise ServerDiedError(f"the vLLM server of kimi ended: {cause}")
    assert not isinstance(error.value, ServerDiedError)
    with pytest.raises(ServerDiedError, match="out of memory"), explained("kimi"):
        raise ServerDiedError("the vLLM server of kimi ended: out of memory")
