"""A vLLM server without vLLM: HTTP of a few lines, whose states transformers captures and a test may spoil."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer

from eyas.capture.modules import find_modules
from eyas.capture.tap import Tap, load_verifier
from eyas.config import Config
from eyas.data.prepare import prepare
from eyas.stages import draft_shape, verifier_facts
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.locate import locate
from served import http_server

Spoil = Callable[["FakeVllm", int, dict[str, Tensor]], dict[str, Tensor] | None]


@dataclass
class FakeVllm:
    """Answers as vLLM does when it captures; how it goes wrong is told by `spoil` (of the n-th row, its tensors)."""

    config: Config
    directory: Path
    max_model_len: int = 1024
    spoil: Spoil = lambda fake, number, tensors: tensors
    logits: Callable[[Tensor], Tensor] = lambda logits: logits
    sizes: list[int] = field(default_factory=list)
    """Tokens of each row that it was asked for, apart from the canary and the proof."""

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        checkpoint = locate(self.config.verifier)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(checkpoint.directory)
        self.model: Any = load_verifier(checkpoint, self.config.verifier, torch.float32, torch.device("cpu"))
        modules = find_modules(self.model, self.config.verifier, verifier_facts(self.config).num_layers)
        self.tap = Tap(modules, draft_shape(self.config).layer_ids, self.config.verifier)
        self.directory.mkdir(parents=True, exist_ok=True)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        with self.lock:
            return self._answer(path, body)

    def _answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path != "/v1/completions":
            return 200, {"data": [{"id": "tiny_llama", "max_model_len": self.max_model_len}]}
        prompt = body["prompt"]
        is_row = isinstance(prompt, list)
        ids_S = torch.tensor(prompt if is_row else self.tokenizer(prompt)["input_ids"])
        with torch.inference_mode(), self.tap:
            logits_SV = self.model(ids_S[None], use_cache=False).logits[0]
            hidden_1SLH, last_1SH = self.tap.take()
        choice: dict[str, Any] = {"text": "x"}
        if (top := body.get("prompt_logprobs")) is not None:
            choice["prompt_logprobs"] = reported(self.logits(logits_SV), ids_S, top)
        tensors: dict[str, Tensor] | None = {
            "hidden_states": torch.cat([hidden_1SLH[0], last_1SH[0][:, None]], 1).contiguous(),
            "token_ids": ids_S,
        }
        if is_row and top is None:
            self.sizes.append(len(ids_S))
            tensors = self.spoil(self, len(self.sizes), tensors or {})
        file = self.directory / f"{uuid4()}.safetensors"
        if tensors is not None:
            save_file(tensors, file)
            file.with_name(f"{file.name}.lock").touch()
        return 200, {"choices": [choice], "kv_transfer_params": {"hidden_states_path": str(file)}}


def reported(logits_SV: Tensor, ids_S: Tensor, top: int) -> list[dict[str, Any] | None]:
    """`prompt_logprobs` in vLLM's words."""
    logprobs_SV = logits_SV.log_softmax(-1)
    said: list[dict[str, Any] | None] = [None]
    for position, token in enumerate(ids_S.tolist()[1:]):
        best = logprobs_SV[position].topk(top).indices.tolist()
        said.append({str(id): {"logprob": float(logprobs_SV[position, id])} for id in {token, *best}})
    return said


@pytest.fixture
def captured(tiny: Callable[..., Config], tiny_checkpoint: Checkpoint, tmp_path: Path) -> Callable[..., Config]:
    """A configuration whose tokens are there: 14 conversations in shards of a few rows."""

    def composed(*overrides: str) -> Config:
        file = tmp_path / "conversations.jsonl"
        with file.open("w") as lines:
            for n in range(14):
                text = f"{n} plus 7 is {n + 7}." + " So it is." * (n % 4)
                turns = [{"role": "user", "content": f"What is {n} plus 7?"}, {"role": "assistant", "content": text}]
                lines.write(json.dumps({"messages": turns}) + "\n")
        config = tiny("data=demo", f"data.path={file}", "data.held_out=2", "capture.tokens_per_shard=300", *overrides)
        prepare(config)
        return config

    return composed


@pytest.fixture
def fake(captured: Callable[..., Config], tmp_path: Path) -> Iterator[Callable[..., tuple[Config, FakeVllm]]]:
    """A configuration that captures in a running fake server, and the fake."""
    with ExitStack() as stack:

        def started(*overrides: str, **wrong: Any) -> tuple[Config, FakeVllm]:
            config = captured("capture=vllm", "capture.tokens_per_shard=300", "server=endpoints", *overrides)
            server = FakeVllm(config, tmp_path / "files", **wrong)
            config.server.endpoints = [stack.enter_context(http_server(server.answer))]
            return config, server

        yield started
