"""Capture with the verifier in a vLLM server: every row is one request, whose states vLLM writes to a file.

Each file is checked, kept for its shard and removed at once. Where the server dies, it is started again and goes on with
the rows that are missing.

Shapes: N positions, T tokens, L chosen layers, H hidden size, K tokens that the server reports.
"""

import shlex
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eyas.artifact import remove
from eyas.capture.assembly import Assembly, Queue, request
from eyas.capture.expected import Expected
from eyas.capture.extraction import arguments, check_layer_ids, explained, longest_sequences, refuse_whole_prefill
from eyas.capture.handover import Handover, LostStatesError, remove_states
from eyas.capture.parity import Parity, Reported, alternatives, refuse_another_reading
from eyas.capture.refusal import refuse_long_rows, refuse_what_vllm_cannot
from eyas.capture.stage import SCRATCH
from eyas.config import Config
from eyas.data.store import Document
from eyas.data.tokens import Tokens
from eyas.errors import EyasError
from eyas.progress import Progress
from eyas.serving import canary
from eyas.serving.client import send
from eyas.serving.server import Server, ServerDiedError, serving
from eyas.stages import canary_file, verifier_facts
from eyas.verifier.locate import locate
from eyas.verifier.teacher import Teacher

RESTARTS = 3
"""A server that dies is started so often without a shard in between."""

BATCHES_IN_FLIGHT = 4
"""Tokens on their way, in forwards of the server: it always has the next one, and the disk not many files."""

SHARDS_KEPT = 2
"""Documents in memory, in shards."""

PARITY_POSITIONS = 256
TOP = 20
"""Tokens that a server reports at most, unless it is told otherwise."""


@contextmanager
def in_vllm(config: Config, tokens: Tokens, directory: Path) -> Iterator["VllmEngine"]:
    """A server that captures, or running ones that were started so.

    Raises:
        EyasError: vLLM can't capture this verifier, or these rows are too long for the server.
    """
    refuse_what_vllm_cannot(config)
    if config.server.max_length is not None and config.server.endpoints is None:
        refuse_long_rows(tokens.lengths, config.server.max_length, f"server.max_length={config.server.max_length}")
    engine = VllmEngine(config, tokens, directory.absolute())
    try:
        with explained(config.verifier.name):
            engine.start()
        yield engine
    finally:
        engine.stop()


class VllmEngine:
    """The verifier behind HTTP. `start` before use; `stop` leaves no process and no file of states."""

    def __init__(self, config: Config, tokens: Tokens, directory: Path) -> None:
        self.config, self.tokens = config, tokens
        self.log, self.scratch = directory / "server.log", directory / SCRATCH
        self.expected = Expected.of(config)
        self.handover = Handover(self.expected, config.server.request_timeout)
        self._resources = ExitStack()
        self._server: Server | None = None

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    def start(self) -> None:
        """Start the server (or find the running ones), and see whether it is the one that is meant.

        Raises:
            EyasError: it takes only shorter rows, captures other layers, or serves other weights than before.
            ServerDiedError: it ended by itself.
        """
        self.stop()
        self.scratch.mkdir()
        config, checkpoint = self.config, locate(self.config.verifier)
        args, env = arguments(config, self.expected.layer_ids, self.scratch)
        if config.server.endpoints is not None:
            print(f"capture  running servers must have been started with {shlex.join(args)}", flush=True)
        self._server = self._resources.enter_context(
            serving(config.server, config.verifier, checkpoint, log=self.log, args=args, env=env)
        )
        for endpoint, longest in longest_sequences(self.server).items():
            refuse_long_rows(self.tokens.lengths, longest, f"max_model_len={longest} of {endpoint}")
            refuse_whole_prefill(self.server, config.capture.tokens_per_batch, longest)
        check_layer_ids(self.server, self.expected.layer_ids)
        canary.check(self.server, canary_file(config))

    def stop(self) -> None:
        self._resources.close()
        self._server = None
        remove(self.scratch)

    def prove(self) -> Parity:
        """The teacher on the captured last states, against what the server says at the same positions."""
        with explained(self.config.verifier.name):
            state_NH, reported = self._observed()
        checkpoint, facts = locate(self.config.verifier), verifier_facts(self.config)
        teacher = Teacher.from_checkpoint(checkpoint, facts, self.expected.dtype)
        parity = reported.compare(teacher(state_NH), self.expected.dtype)
        refuse_another_reading(parity, alternatives(teacher, state_NH, reported.divergence), self.expected.dtype)
        return parity

    def shards(self, missing: Mapping[int, range], progress: Progress) -> Iterator[tuple[int, list[Document]]]:
        max_kept = SHARDS_KEPT * self.config.capture.tokens_per_shard
        assembly = Assembly(missing, self.tokens, max_in_flight=self.max_in_flight, max_kept=max_kept)
        for row, states_TLH in self.states(assembly):
            whole = assembly.add(row, states_TLH)
            progress.advance(len(states_TLH))
            if whole is not None:
                yield whole

    @property
    def max_in_flight(self) -> int:
        """Tokens on their way."""
        copies = len(self.server.endpoints) * self.config.server.data_parallel
        return BATCHES_IN_FLIGHT * self.config.capture.tokens_per_batch * copies

    def states(self, queue: Queue) -> Iterator[tuple[int, Tensor]]:
        """(row, its states [T, L + 1, H]) of all that is in `queue`, as they come, through deaths of the server.

        Raises:
            EyasError: a file that isn't what was asked for, or a row lost too often.
            ServerDiedError: the server died too often.
        """
        deaths = received = 0
        while not queue.is_done:
            try:
                if self._server is None:
                    self.start()
                self._remove_files(older_than=0.0)  # of the canary and the proof; nothing is in flight
                for row, states_TLH in self._received(queue):
                    yield row, states_TLH
                    received += len(states_TLH)
                    if received >= self.config.capture.tokens_per_shard:
                        deaths = received = 0
                        # Of requests that were given up and sent again: nobody will ask for these.
                        self._remove_files(older_than=2 * self.config.server.request_timeout)
            except ServerDiedError as error:
                deaths, received = deaths + 1, 0
                if deaths > RESTARTS:
                    raise
                print(f"capture  {error}", flush=True)
                print(f"capture  starts it again ({deaths} of {RESTARTS} times without a shard in between)", flush=True)
                queue.ask_again(*queue.in_flight)
                self.stop()

    def _received(self, queue: Queue) -> Iterator[tuple[int, Tensor]]:
        """(row, its states [T, L + 1, H]) as they come; rows whose file was lost are asked for again.

        Raises:
            EyasError: a file that isn't what was asked for, or a row lost too often.
            ServerDiedError: the server is gone.
        """
        lost: Counter[int] = Counter()
        for answer in send(self.server, queue):
            row = answer.key
            try:
                states_TLH = self.handover.take(answer.body, self.tokens.row(row)[0])
            except LostStatesError as error:
                self.server.check()
                lost[row] += 1
                if lost[row] > self.config.server.retries:
                    raise EyasError(
                        f"the states of row {row} were lost {lost[row]} times, which is all that server.retries allows: "
                        f"{error}; look into {self.log}"
                    ) from None
                print(f"capture  row {row} is asked for again: {error}", flush=True)
                queue.ask_again(row)
                continue
            yield row, states_TLH

    def _observed(self) -> tuple[Tensor, Reported]:
        """The last states [N, H] of some positions, and what the server says there."""
        ids, num_positions = {}, 0
        for row, length in enumerate(self.tokens.lengths):
            if length > 1:
                ids[row] = self.tokens.row(row)[0][: PARITY_POSITIONS - num_positions + 1]
                num_positions += len(ids[row]) - 1
            if num_positions == PARITY_POSITIONS:
                break
        states, said = [], list[dict[str, Any]]()
        for answer in send(self.server, [request(row, ids_T, prompt_logprobs=TOP) for row, ids_T in ids.items()]):
            states_TLH = self.handover.take(answer.body, ids[answer.key])
            # What is said of a position was predicted from the one before it; of the first, nothing is.
            states.append(states_TLH[:-1, -1])
            said.extend(answer.body["choices"][0]["prompt_logprobs"][1:])
        best = [sorted(((it["logprob"], int(id)) for id, it in entry.items()), reverse=True)[:TOP] for entry in said]
        num_said = min(len(entry) for entry in best)
        named_NK2 = torch.tensor([entry[:num_said] for entry in best], dtype=torch.float64)
        return torch.cat(states), Reported(named_NK2[..., 1].long(), named_NK2[..., 0])

    def _remove_files(self, older_than: float) -> None:
        """Remove what is in the server's directory and was written so many seconds ago or earlier."""
        limit = time.time() - older_than
        for file in self.scratch.glob("*.safetensors"):
            with suppress(FileNotFoundError):
                if file.stat().st_mtime <= limit:
                    remove_states(file)
