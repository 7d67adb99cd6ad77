"""What capture by vLLM can't do, refused by name before a server is started; torch-free."""

from collections.abc import Iterator, Sequence

from eyas.config import Config
from eyas.errors import EyasError
from eyas.verifier.schema import Stream, Target

WAY_OUT = (
    "set capture=transformers, which runs the verifier on the machine that trains, or bring the states yourself: "
    "capture=files (docs/capture_files.md)"
)


def refuse_what_vllm_cannot(config: Config) -> None:
    """Verifiers whose states vLLM does not hand over.

    Raises:
        EyasError: no EAGLE-3 interface, no state after the last layer, several streams, or a last state at the head.
    """
    for reason in _reasons(config):
        raise EyasError(f"vLLM can't capture {config.verifier.name}: {reason}; {WAY_OUT}")


def refuse_long_rows(lengths: Sequence[int], longest: int, setting: str) -> None:
    """Rows that the server would refuse, found before anything is sent: a request needs one more token, its answer.

    Raises:
        EyasError: a row of more than `longest` - 1 tokens.
    """
    too_long = [row for row, length in enumerate(lengths) if length + 1 > longest]
    if too_long:
        row = max(too_long, key=lambda row: lengths[row])
        raise EyasError(
            f"{len(too_long)} of {len(lengths)} rows are longer than the server takes: row {row} has {lengths[row]:,} tokens, "
            f"and {setting} leaves {longest - 1:,} beside the one token of an answer; set server.max_length="
            f"{lengths[row] + 1}, or data.max_length={longest - 1}"
        )


def _reasons(config: Config) -> Iterator[str]:
    verifier = config.verifier
    if verifier.stream is Stream.multiple:
        yield (
            "its layers exchange several streams (verifier.stream: multiple), and vLLM hands over another mixture of them "
            "than the head reads"
        )
    if verifier.target is Target.head_input:
        yield (
            "its last state is taken at the head (verifier.target: head_input), and vLLM hands over the one before the "
            "final norm"
        )
    if not verifier.vllm.last_state:
        yield "its class in vLLM never hands over the state after the last layer (verifier.vllm.last_state: false)"
    if verifier.vllm.eagle3 is False:
        yield "its class in vLLM has no EAGLE-3 interface (verifier.vllm.eagle3: false)"
