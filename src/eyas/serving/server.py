"""The server as a resource: `with serving(...) as server:` starts `vllm serve`, or takes servers that already run."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eyas.errors import EyasError
from eyas.process import KEEPS_MEMORY, NO_COMPILER, PARENT
from eyas.progress import duration
from eyas.serving.cause import cause, last_line
from eyas.serving.command import command_line, environment_of
from eyas.serving.endpoint import failure, get, is_healthy, served_models
from eyas.serving.guard import start_guarded, stop_guarded
from eyas.serving.schema import ServerConfig
from eyas.verifier.checkpoint import Checkpoint
from eyas.verifier.schema import VerifierConfig

NOT_INHERITED = {
    # Set by Eyas for its own stages, in which nothing compiles and nothing shows a bar.
    *(NO_COMPILER, "TQDM_DISABLE", PARENT),
    # Set by torchrun and SLURM for Eyas's ranks: vLLM would take them for its own.
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"),
}
"""Environment variables of this process that a server must not see."""

PROGRESS_SECONDS = 10.0


class ServerDiedError(EyasError):
    """A server that Eyas started ended by itself, with the cause from its log; starting it again may help."""


@dataclass(frozen=True)
class Server:
    """One or several addresses behind which the same verifier is served."""

    model: str
    """The verifier's name in requests."""
    endpoints: list[str]
    config: ServerConfig
    guard: "subprocess.Popen[bytes] | None" = None
    """The process of a server that Eyas started."""
    log: Path | None = None
    log_start: int = 0
    """Where in the log this server's lines begin, in bytes: an earlier server's may stand before them."""

    @property
    def is_local(self) -> bool:
        return self.guard is not None

    def check(self) -> None:
        """Raise if the server is gone.

        Raises:
            ServerDiedError: Eyas started it, and it ended.
        """
        if self.guard is not None and (code := self.guard.poll()) is not None:
            raise ServerDiedError(
                f"the vLLM server of {self.model} ended: {cause(self.log_lines(), code)}; its whole log: {self.log}"
            )

    def log_lines(self) -> list[str]:
        """What this server has printed so far."""
        if self.log is None:
            return []
        with self.log.open("rb") as stream:
            stream.seek(self.log_start)
            return stream.read().decode(errors="replace").splitlines()

    def metrics(self) -> list[str]:
        """The `/metrics` page of every endpoint (read it with `eyas.serving.metrics`)."""
        return [get(f"{endpoint}/metrics").text for endpoint in self.endpoints]


@contextmanager
def serving(
    config: ServerConfig,
    verifier: VerifierConfig,
    checkpoint: Checkpoint,
    *,
    log: Path,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server that answers; on leaving, one that Eyas started is gone, with all its processes.

    Args:
        log: The file that what the server prints is appended to.
        args, env: What this stage needs, such as the draft to serve; servers that already run can't be given them.

    Raises:
        EyasError: it can't be started, or does not answer in time, or serves another model.
        ServerDiedError: it ended before it answered.
    """
    if config.endpoints is not None:
        yield _connect(config, verifier, [endpoint.rstrip("/") for endpoint in config.endpoints])
        return
    port = _free_port(config)
    command = command_line(config, verifier, checkpoint, args=args, port=port)
    program = shutil.which(command[0])
    if program is None:
        raise EyasError(
            f"server.command: there is no program {command[0]}; install vLLM, in an environment of its own if you like, "
            "and name what starts it: server.command=[/path/to/bin/vllm,serve]"
        )
    log.parent.mkdir(parents=True, exist_ok=True)
    log_start = log.stat().st_size if log.exists() else 0
    guard = start_guarded(command, inherited(program) | environment_of(config, verifier, env or {}), log)
    try:
        server = Server(verifier.name, [f"http://{_reachable(config.host)}:{port}"], config, guard, log, log_start)
        _wait(server)
        yield server
    finally:
        stop_guarded(guard)


def inherited(program: str) -> dict[str, str]:
    """This process's environment, without what is meant for it alone, and with the programs beside the server's own."""
    ours = KEEPS_MEMORY.items()  # another value is the user's
    kept = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED and (key, value) not in ours}
    # As activating its environment would: vLLM compiles kernels with the ninja that is installed there.
    return {**kept, "PATH": f"{Path(program).absolute().parent}{os.pathsep}{kept.get('PATH', os.defpath)}"}


def _wait(server: Server) -> None:
    """Wait until the server is healthy, with a line of progress now and then."""
    started = printed = time.monotonic()
    while not is_healthy(server.endpoints[0]):
        server.check()
        now = time.monotonic()
        if now - started > server.config.startup_timeout:
            raise EyasError(
                f"the vLLM server of {server.model} does not answer after server.startup_timeout="
                f"{server.config.startup_timeout:g} seconds; its last line: {last_line(server.log_lines())} "
                f"(the whole log: {server.log}); give it longer, or look there what it waits for"
            )
        if now - printed >= PROGRESS_SECONDS:
            printed = now
            print(f"server   starting, {duration(now - started)}: {last_line(server.log_lines())[:120]}", flush=True)
        time.sleep(0.5)
    server.check()  # a stranger's server may have taken the port in the meantime, so ours ended
    took = duration(time.monotonic() - started)
    print(f"server   {server.endpoints[0]}  {server.model}, up after {took}; log: {server.log}", flush=True)


def _connect(config: ServerConfig, verifier: VerifierConfig, endpoints: list[str]) -> Server:
    """Running servers, each of which must answer and serve the one model."""
    names = [_model_of(config, verifier, endpoint) for endpoint in endpoints]
    if len({*names}) > 1:
        raise EyasError(
            f"server.endpoints serve different models ({', '.join(map(' as '.join, zip(endpoints, names, strict=True)))}); "
            "set server.model to the name that all of them know"
        )
    print(f"server   {', '.join(endpoints)}  {names[0]}, already running", flush=True)
    return Server(names[0], endpoints, config)


def _model_of(config: ServerConfig, verifier: VerifierConfig, endpoint: str) -> str:
    try:
        names = served_models(endpoint)
    except Exception as error:
        raise EyasError(
            f"server.endpoints: {endpoint} does not answer ({failure(error)}); start a server there, or set server=local"
        ) from None
    wanted = config.model or (names[0] if len(names) == 1 else verifier.name)
    if wanted not in names:
        raise EyasError(
            f"server.endpoints: {endpoint} serves {', '.join(names) or 'nothing'}, and not {wanted}; "
            "set server.model to the verifier's name there"
        )
    return wanted


def _free_port(config: ServerConfig) -> int:
    """`server.port`, which must be free, or any free one."""
    with socket.socket(socket.AF_INET6 if ":" in config.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as vLLM does: lingering connections don't matter
        try:
            probe.bind((config.host, config.port or 0))
        except OSError as error:
            there = f"http://{_reachable(config.host)}:{config.port}"
            served = f"; a server of {', '.join(served_models(there))} answers there" if is_healthy(there) else ""
            raise EyasError(
                f"server.port={config.port} of server.host={config.host} can't be used ({error.strerror}){served}; "
                "set server.port=null for a free one, or use what runs there: server=endpoints "
                f"server.endpoints=[{there}]"
            ) from None
        return int(probe.getsockname()[1])


def _reachable(host: str) -> str:
    """The name by which a server on this machine is reached."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{host}]" if ":" in host else host
