"""What tests of serving share: server configurations, real HTTP servers of a few lines, and processes that must be gone."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import psutil
from omegaconf import OmegaConf

import eyas.conf
from eyas.serving.schema import ServerConfig
from eyas.serving.server import Server
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.schema import VerifierConfig

VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    # One thread that may run anywhere: two that wait for each other crawl where something else uses a core.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # without bytecode, an import of vLLM takes twice as long
    # The engine computes by itself: a worker of its own imports everything once more, a third of a start.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
}
WITH_WORKER = {**VLLM_ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
"""As vLLM starts by itself: where it is its processes that are tested."""


@dataclass(frozen=True)
class Served:
    """A verifier, its checkpoint, and the server of it."""

    verifier: VerifierConfig
    checkpoint: Checkpoint
    server: Server


def server_config(name: str = "local", **changes: object) -> ServerConfig:
    """A file of `conf/server`, with some of its values changed."""
    directory = Path(eyas.conf.__path__[0]) / "server"
    chosen = OmegaConf.load(directory / f"{name}.yaml")
    if "defaults" in chosen:
        del chosen["defaults"]
    local = OmegaConf.load(directory / "local.yaml")
    return cast(
        ServerConfig, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ServerConfig), local, chosen, changes))
    )


def vllm_config(**changes: object) -> ServerConfig:
    """A server by EYAS_VLLM, small enough for a test."""
    program = Path(os.environ["EYAS_VLLM"])
    module = [str(program), "-m", "vllm.entrypoints.openai.api_server", "--model"]
    settings: dict[str, object] = {
        "command": [str(program), "serve"] if program.name == "vllm" else module,
        "env": VLLM_ENVIRONMENT,
        "max_length": 1024,
        "startup_timeout": 240,
        "request_timeout": 60,
    }
    return server_config("cpu", **settings | changes)


def endpoints(*urls: str, **changes: object) -> Server:
    """Running servers that go by the name `model`."""
    return Server("model", [*urls], server_config("endpoints", endpoints=[*urls], **changes))


class QuietServer(ThreadingHTTPServer):
    """Says nothing of clients that hang up."""

    daemon_threads = True
    request_queue_size = 256  # else connections that come at once are reset where the machine is busy

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def http_server(answer: Callable[[str, dict[str, Any]], tuple[int, Any] | None]) -> Iterator[str]:
    """A server on a port of its own: `answer(path, body)` gives status and JSON; None: it never answers."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            made = answer(self.path, json.loads(self.rfile.read(length) or b"{}"))
            if made is None:
                over.wait()
                self.close_connection = True
                return
            content = json.dumps(made[1]).encode()
            self.send_response(made[0])
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def survivors(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Which of these processes are still there after so long; zombies are gone."""
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
