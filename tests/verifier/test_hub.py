"""A verifier on the hub: only the files of the tensors that are read are fetched. Against a small server of the hub's API."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "someone/sharded"

READ = """
import sys
from eyas.cli.compose import compose
from eyas.verifier.facts import resolve
from eyas.verifier.locate import locate
from eyas.verifier.tensors import read_tensor
verifier = compose(["verifier=arch/llama", "verifier.name=it", "verifier.path=someone/sharded", *sys.argv[1:]], []).verifier
checkpoint = locate(verifier)
facts = resolve(verifier, checkpoint)
print([tuple(read_tensor(checkpoint, stored).shape) for stored in facts.tensors], checkpoint.hub)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Four shards; the three tensors are in two of them."""
    directory = tmp_path / "repository"
    directory.mkdir()
    shards = {
        1: {"model.embed_tokens.weight": torch.ones(96, 8)},
        2: {"model.layers.0.mlp.weight": torch.ones(8, 8)},
        3: {"model.layers.1.mlp.weight": torch.ones(8, 8)},
        4: {"model.norm.weight": torch.ones(8), "lm_head.weight": torch.ones(96, 8)},
    }
    names = {number: f"model-0000{number}-of-00004.safetensors" for number in shards}
    for number, tensors in shards.items():
        save_file(tensors, directory / names[number])
    weight_map = {key: names[number] for number, tensors in shards.items() for key in tensors}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    config = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 2, "vocab_size": 96, "rms_norm_eps": 1e-5}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def hub(repository: Path) -> Iterator[tuple[str, list[str]]]:
    """(address, the files that were fetched)."""
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            if self.path.startswith("/api/models/"):
                files = [
                    {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": path.name}
                    for path in sorted(repository.iterdir())
                ]
                siblings = [{"rfilename": file["path"]} for file in files]
                answer = files if "/tree/" in self.path else {"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}
                content, kind = json.dumps(answer).encode(), "application/json"
            else:
                file = repository / self.path.rpartition("/")[2]
                if not file.exists():
                    self.send_error(404)
                    return
                content, kind = file.read_bytes(), "application/octet-stream"
                if body:
                    fetched.append(file.name)
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{abs(hash(content))}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", fetched
    server.shutdown()
    server.server_close()


def test_only_the_files_of_the_tensors_that_are_read_are_fetched(hub: tuple[str, list[str]], tmp_path: Path) -> None:
    address, fetched = hub
    environment = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "cache"), "PATH": "", "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run([sys.executable, "-c", READ], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == f"[(96, 8), (8,), (96, 8)] {REPOSITORY}@{COMMIT}"
    weights = sorted(name for name in fetched if name.endswith(".safetensors"))
    assert weights == ["model-00001-of-00004.safetensors", "model-00004-of-00004.safetensors"]


def test_a_hub_id_without_a_network_is_one_clear_line(tmp_path: Path) -> None:
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", READ], env=environment, capture_output=True, text=True, timeout=120)
    assert "verifier.path=someone/sharded is no local directory, and the hub did not give it" in done.stderr
