"""Conversations -> the tokens artifact: the tokens stage.

Run as `python -m eyas.data.prepare CONFIG`. One process reads and deals, several tokenise. A shard is a fixed part of the
conversations, written whole by whoever has it: so the files are the same for any number of processes, a stage that was
killed goes on with the shards that are missing, and memory does not grow with the data.
"""

import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eyas.artifact import building, complete, read_manifest, remove
from eyas.config import Config, load_config
from eyas.data.conversations import Conversation, Example, PlainText
from eyas.data.mixture import Dealt, deal
from eyas.data.render import Row
from eyas.data.rows import RowMaker
from eyas.data.schema import DataConfig
from eyas.data.server_render import RenderIds, ServerRenderer
from eyas.data.spans import RefusedError
from eyas.data.statistics import summarise
from eyas.data.store import shard_name
from eyas.data.tokens import TokenShard, read_token_shard, write_token_shard
from eyas.errors import EyasError
from eyas.process import child_main, die_with
from eyas.progress import Progress
from eyas.serving.server import serving
from eyas.stages import answered_data, regenerates, responses_artifact, tokens_artifact
from eyas.verifier.locate import locate
from eyas.verifier.schema import Renderer

EXAMPLES_PER_SHARD = 1024
CHARACTERS_PER_SHARD = 8 << 20
MAX_PROCESSES = 32
"""More would wait for the one that reads."""


def prepare(config: Config) -> None:
    """Write the tokens artifact, unless it exists.

    Raises:
        EyasError: unusable conversations, or no rows on one side of the split.
    """
    artifact = tokens_artifact(config)
    with building(artifact) as partial:
        if partial is None:
            return
        num_processes = config.data.num_processes or min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
        counts = _left_unanswered(config)
        with rendering(config) as render_ids, _pool(make := RowMaker(config, render_ids), num_processes) as pool:
            try:
                num_shards = _write_shards(pool, 2 * num_processes, answered_data(config), partial, counts)
            except BrokenProcessPool:
                raise EyasError(
                    "a process that tokenises was killed, most likely for want of memory; the same command carries on, "
                    f"with data.num_processes below {num_processes}"
                ) from None
        try:
            complete(artifact, partial, summarise(config, partial, num_shards, counts, make.tokenizer))
        except EyasError:
            remove(partial)  # the same data would be refused again
            raise


def _left_unanswered(config: Config) -> Counter[str]:
    """What was set aside before the others were answered anew; nothing where they are not."""
    if not regenerates(config):
        return Counter()
    counts = read_manifest(responses_artifact(config).directory).get("counts", {})
    return Counter({key: counts[key] for key in ("set_aside", "like_set_aside") if counts.get(key)})


@contextmanager
def rendering(config: Config) -> Iterator[RenderIds | None]:
    """The server as a renderer, where the verifier needs it.

    Raises:
        EyasError: it can't be had, or leaving out the reasoning is asked of it.
    """
    if config.verifier.chat.renderer is Renderer.tokenizer:
        yield None
        return
    if not config.data.reasoning:
        raise EyasError(
            "data.reasoning=false: only a chat template can tell where reasoning ends; the server renders here"
        )
    log = Path(config.outputs) / "store" / "render.log"
    args = ["--enable-scale-out"]  # else vLLM does not render for others
    with serving(config.server, config.verifier, locate(config.verifier), log=log, args=args) as server:
        yield ServerRenderer(server, config.verifier.chat.kwargs)


def _write_shards(pool: Executor, max_at_work: int, data: DataConfig, partial: Path, counts: Counter[str]) -> int:
    """Write the shards that aren't there yet; returns how many there are."""
    refused, progress = _RefusedRows(data), Progress("tokens", None, "conversations")
    at_work: deque[tuple[Path, Future[None] | None]] = deque()

    def finish_oldest() -> None:
        file, written = at_work.popleft()
        if written is not None:
            written.result()
        shard = read_token_shard(file)
        refused.add(shard)
        progress.advance(shard.counts["conversations"])

    num_shards = 0
    for part in _parts(deal(data, counts)):
        file = partial / shard_name(num_shards)
        num_shards += 1
        at_work.append((file, None if file.exists() else pool.submit(_write_shard, file, part)))
        if len(at_work) > max_at_work:
            finish_oldest()
    while at_work:
        finish_oldest()
    refused.finish()
    return num_shards


def _parts(examples: Iterable[Dealt]) -> Iterator[list[Dealt]]:
    """Consecutive examples, so many or so large."""
    part: list[Dealt] = []
    size = 0
    for dealt in examples:
        part.append(dealt)
        size += _size(dealt.example)
        if len(part) == EXAMPLES_PER_SHARD or size >= CHARACTERS_PER_SHARD:
            yield part
            part, size = [], 0
    if part:
        yield part


def _size(example: Example) -> int:
    """About as many characters."""
    if isinstance(example, Conversation):
        return sum(len(str(message["content"])) for message in example.messages)
    return len(example.text) if isinstance(example, PlainText) else 4 * len(example.input_ids)


class _RefusedRows:
    """Conversations that the chat template refuses are bad rows, known only once they are rendered."""

    def __init__(self, data: DataConfig) -> None:
        self.sources = data.sources
        self.rendered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, shard: TokenShard) -> None:
        for name in self.sources:
            self.rendered[name] += shard.counts.get(f"conversations_{name}", 0)
            self.refused[name] += shard.counts.get(f"refused_{name}", 0)
            if name in shard.refused and name not in self.first:
                self.first[name] = shard.refused[name]
                print(f"bad row  {shard.refused[name]}", flush=True)
        self._check(at_least=1000)

    def finish(self) -> None:
        self._check(at_least=1)

    def _check(self, *, at_least: int) -> None:
        for name, source in self.sources.items():
            num_rows, limit = max(self.rendered[name], at_least), source.max_bad_rows
            if self.refused[name] > (limit if limit >= 1 else limit * num_rows):
                raise EyasError(
                    f"{self.first[name]}; {self.refused[name]} of {self.rendered[name]} conversations are refused so, more than "
                    f"data.max_bad_rows={limit:g}"
                )


class _Here(Executor):
    """Runs what is submitted at once."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(function(*args, **kwargs))
        return future


def _pool(make: RowMaker, num_processes: int) -> Executor:
    if num_processes == 1:
        _begin(make)
        return _Here()
    fork = multiprocessing.get_context("fork")  # each has the tokenizer without loading it again
    pool = ProcessPoolExecutor(num_processes, fork, _begin_in_child, (make, os.getpid()))
    pool.submit(os.getpid)  # forks them all now, before reading has started threads of its own
    return pool


_make: RowMaker


def _begin(make: RowMaker) -> None:
    global _make
    _make = make


def _begin_in_child(make: RowMaker, parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _begin(make)


def _write_shard(file: Path, part: list[Dealt]) -> None:
    rows: list[Row] = []
    held_out: list[bool] = []
    counts: Counter[str] = Counter(conversations=len(part))
    refused: dict[str, str] = {}
    for example, source, is_held_out in part:
        counts[f"conversations_{source}"] += 1
        try:
            made = _make(example, counts)
        except RefusedError as error:
            counts["bad_rows"] += 1
            counts["bad_rows_template"] += 1
            counts[f"refused_{source}"] += 1
            refused.setdefault(source, str(error))
            continue
        counts[f"supervised_{source}"] += sum(sum(row.loss_mask) for row in made)
        rows += made
        held_out += [is_held_out] * len(made)
    write_token_shard(file, TokenShard.of(rows, held_out, counts, refused))


def main(config_file: Path) -> None:
    prepare(load_config(config_file))


if __name__ == "__main__":
    child_main(main)
