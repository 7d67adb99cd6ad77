"""How a vLLM server is made to hand its states over, and how to see that it does what was asked."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from eyas.capture.refusal import WAY_OUT
from eyas.config import Config
from eyas.errors import EyasError
from eyas.serving.endpoint import get
from eyas.serving.schema import Connector
from eyas.serving.server import Server, ServerDiedError

CONNECTOR = Path(__file__).parent / "connector"
"""The only directory of ours on the server's PYTHONPATH."""

KNOWN_CAUSES = {
    "does not support EAGLE3": f"its class in vLLM has no EAGLE-3 interface; {WAY_OUT}",
    r"expanded size of the tensor \(\d+\) must match the existing size \(\d+\) at non-singleton dimension 1": (
        f"it hands over fewer layers than it was asked for, mostly not the one after the last; {WAY_OUT}"
    ),
    "pin_memory|not compiled with CUDA": (
        "its own connector needs CUDA; set server.connector=host, or server=cpu where there is no GPU at all"
    ),
}
"""What a server dies of, and what that means."""


def arguments(config: Config, layer_ids: Sequence[int], directory: Path) -> tuple[list[str], dict[str, str]]:
    """What a server needs to capture: (arguments of `vllm serve`, environment).

    Args:
        layer_ids: All that are captured, the one after the last layer included.
        directory: Where it writes a file for each request.
    """
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [*layer_ids]}},
    }
    transfer: dict[str, object] = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(directory)},
    }
    env = {}
    if config.server.connector is Connector.host:
        transfer |= {"kv_connector": "HostStatesConnector", "kv_connector_module_path": "eyas_connector"}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CONNECTOR), os.environ.get("PYTHONPATH")]))
    args = [
        *("--dtype", config.capture.dtype.name),
        *("--max-num-batched-tokens", str(config.capture.tokens_per_batch)),
        *("--max-num-seqs", str(min(config.server.max_in_flight, config.capture.tokens_per_batch))),
        # Each position is computed, not looked up: what a row gives doesn't depend on the rows before it.
        "--no-enable-prefix-caching",
        *("--speculative-config", json.dumps(speculative)),
        *("--kv-transfer-config", json.dumps(transfer)),
    ]
    return args, env


def longest_sequences(server: Server) -> dict[str, int]:
    """The longest sequence that each endpoint takes, where it says so."""
    limits = {}
    for endpoint in server.endpoints:
        for model in get(f"{endpoint}/v1/models").json()["data"]:
            if model["id"] == server.model and model.get("max_model_len"):
                limits[endpoint] = int(model["max_model_len"])
    return limits


def check_layer_ids(server: Server, layer_ids: Sequence[int]) -> None:
    """Compare what a server of ours says that it captures; shape and parity do not see other ids below the last.

    Raises:
        EyasError: it captures other layers.
    """
    if not server.is_local:
        return
    said = [
        found[1] for line in server.log_lines() if (found := re.search(r"auxiliary layers .*: [(\[](.*?),?[)\]]", line))
    ]
    if not said:
        print(f"capture  the server doesn't say which layers it captures; it was asked for {[*layer_ids]}", flush=True)
        return
    captured = [int(id) for id in said[-1].split(",")]
    if captured != [*layer_ids]:
        raise EyasError(
            f"the server captures layers {captured}, expected {[*layer_ids]}: an argument in verifier.vllm.args or server.args "
            "sets another --speculative-config; remove it"
        )


def refuse_whole_prefill(server: Server, tokens_per_batch: int, longest: int) -> None:
    """Where vLLM turns chunked prefill off (latent attention without a GPU), a longer row would wait for ever, in silence.

    Args:
        longest: Tokens of the longest sequence that the server takes.

    Raises:
        EyasError: the server can't run every row in one forward, and says that it must.
    """
    says_so = any(re.search(r"chunked prefill .*disabled", line) for line in server.log_lines())
    if says_so and longest > tokens_per_batch:
        raise EyasError(
            f"the server runs each row of this verifier in one forward (it says: chunked prefill is disabled), takes rows of up "
            f"to {longest:,} tokens, and capture.tokens_per_batch={tokens_per_batch}: longer ones would wait for ever; set "
            f"capture.tokens_per_batch={longest}"
        )


@contextmanager
def explained(verifier: str) -> Iterator[None]:
    """What a server dies of while it starts and at its first requests is mostly a setting: named, where it is known.

    Raises:
        EyasError: instead of a ServerDiedError whose cause is known.
    """
    try:
        yield
    except ServerDiedError as error:
        for cause, meaning in KNOWN_CAUSES.items():
            if re.search(cause, str(error)):
                raise EyasError(f"vLLM can't capture {verifier}: {meaning} ({error})") from None
        raise
