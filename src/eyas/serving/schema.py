"""How the verifier is served: the values of `conf/server/*.yaml`, checked at the border.

Torch-free, as `eyas.config`. What belongs to the model itself (its own arguments of `vllm serve`) is in `verifier.vllm`.
"""

from dataclasses import dataclass, field
from enum import Enum

from omegaconf import MISSING

from eyas.errors import EyasError
from eyas.fields import OPEN, at_least


class Connector(Enum):
    """What hands captured states over: vLLM's own connector, which needs CUDA, or one of Eyas, which needs none."""

    vllm = "vllm"
    host = "host"


@dataclass(kw_only=True)
class ServerConfig:
    """A vLLM server that Eyas starts and stops, or servers that already run."""

    endpoints: list[str] | None = MISSING
    """Addresses of running servers, such as http://node1:8000, over which requests are spread; null: Eyas starts one."""
    model: str | None = MISSING
    """The name under which the endpoints serve the verifier; null: the only one they have, or the verifier's."""
    command: list[str] = MISSING
    """What starts vLLM, up to the model, in whatever environment it is installed: [/opt/vllm/bin/vllm, serve]."""
    args: list[str] = MISSING
    """More arguments of the command; they stand last, so they win."""
    env: dict[str, str] = field(default=MISSING, metadata=OPEN)
    """More environment variables of the server; they win over `verifier.vllm.env`."""
    gpus: list[int] | None = MISSING
    """The GPUs that the server sees; null: those that Eyas sees."""
    tensor_parallel: int = MISSING
    """GPUs over which each layer is split."""
    data_parallel: int = MISSING
    """Copies of the verifier behind the one address; each takes `tensor_parallel` GPUs."""
    expert_parallel: bool = MISSING
    """Split a mixture of experts by expert, over tensor_parallel x data_parallel GPUs."""
    memory_share: float | None = MISSING
    """Share of each GPU's memory that the server takes; null: vLLM's default."""
    kv_cache_dtype: str = MISSING
    """Type of the KV cache; auto: the verifier's own."""
    max_length: int | None = MISSING
    """Longest sequence in tokens, prompt and answer; null: the verifier's own limit."""
    connector: Connector = MISSING
    """What hands captured states over; host: for a build of vLLM without CUDA."""
    host: str = MISSING
    """The address that the server listens on."""
    port: int | None = MISSING
    """Null: a free one."""
    startup_timeout: float = MISSING
    """Seconds until the server must answer: loading the weights, compiling, capturing CUDA graphs."""
    request_timeout: float = MISSING
    """Seconds after which one request counts as lost."""
    retries: int = MISSING
    """A lost request (no answer, a broken connection, an error inside the server) is sent again so many times."""
    max_in_flight: int = MISSING
    """Requests that one endpoint has at a time; vLLM queues what it can't batch yet."""

    def __post_init__(self) -> None:
        for key in ("tensor_parallel", "data_parallel", "max_in_flight"):
            at_least(f"server.{key}", getattr(self, key), 1)
        for key in ("startup_timeout", "request_timeout"):
            if getattr(self, key) <= 0:
                raise EyasError(f"server.{key}={getattr(self, key)}: must be a positive number of seconds")
        at_least("server.retries", self.retries, 0)
        if self.port is not None and not 1 <= self.port <= 65535:
            raise EyasError(f"server.port={self.port}: must be between 1 and 65535, or null for a free one")
        if self.memory_share is not None and not 0 < self.memory_share <= 1:
            raise EyasError(f"server.memory_share={self.memory_share}: must be above 0 and at most 1")
        if self.max_length is not None and self.max_length < 1:
            raise EyasError(f"server.max_length={self.max_length}: must be at least 1, or null")
        if self.endpoints is None:
            self._check_local()
        else:
            self._check_endpoints(self.endpoints)

    def _check_local(self) -> None:
        if not self.command:
            raise EyasError("server.command is empty: expected what starts vLLM, such as [vllm, serve]")
        wanted = self.tensor_parallel * self.data_parallel
        if self.gpus is not None and len({*self.gpus}) != wanted:
            raise EyasError(
                f"server.gpus={self.gpus}: expected {wanted} different GPUs, for server.tensor_parallel="
                f"{self.tensor_parallel} times server.data_parallel={self.data_parallel}"
            )

    def _check_endpoints(self, endpoints: list[str]) -> None:
        if not endpoints:
            raise EyasError(
                "server.endpoints is empty: name at least one, such as http://127.0.0.1:8000, or server=local"
            )
        for endpoint in endpoints:
            if not endpoint.startswith(("http://", "https://")) or endpoint.rstrip("/").endswith("/v1"):
                raise EyasError(
                    f"server.endpoints: {endpoint!r} is no address of the form http://host:port (without /v1)"
                )
        if len({endpoint.rstrip("/") for endpoint in endpoints}) != len(endpoints):
            raise EyasError(f"server.endpoints={endpoints}: one address stands there twice")
