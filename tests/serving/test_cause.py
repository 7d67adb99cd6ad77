"""The true cause, from what vLLM 0.32 printed (shortened) when it died in these ways."""

import pytest

from eyas.serving.cause import cause, last_line

IN_FLIGHT = """\
(Worker pid=13774) ERROR 11-30 00:42:46 [multiproc_executor.py:1063] WorkerProc hit an exception.
(Worker pid=13774) ERROR 11-30 00:42:46 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=13774) ERROR 11-30 00:42:46 [multiproc_executor.py:1063]     return self._op(*args, **kwargs)
(Worker pid=13774) ERROR 11-30 00:42:46 [multiproc_executor.py:1063] RuntimeError: Unsupported CPU attention configuration: head_dim=8
(Worker pid=13774) ERROR 11-30 00:42:46 [multiproc_executor.py:1063] 
(EngineCore pid=13728) ERROR 11-30 00:42:46 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=13728) ERROR 11-30 00:42:46 [core.py:1512] RuntimeError: Worker failed with error 'Unsupported CPU attention'
(APIServer pid=13600) ERROR 11-30 00:42:46 [async_llm.py:906] vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
INFO:     Shutting down
"""

AT_START = """\
(EngineCore pid=9) INFO 11-30 00:42:46 [core.py:1] Initializing a V1 LLM engine
(EngineCore pid=9) ERROR 11-30 00:42:46 [core.py:9] Traceback (most recent call last):
(EngineCore pid=9) ERROR 11-30 00:42:46 [core.py:9] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
(EngineCore pid=9) ERROR 11-30 00:42:46 [core.py:9] 
(EngineCore pid=9) ERROR 11-30 00:42:46 [core.py:9] The above exception was the direct cause of the following exception:
(EngineCore pid=9) ERROR 11-30 00:42:46 [core.py:9] RuntimeError: CUDA out of memory when warming up; lower `max_num_seqs`.
(APIServer pid=8) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""

SETTING = """\
(APIServer pid=8) Traceback (most recent call last):
(APIServer pid=8)   File "config.py", line 3, in __init__
(APIServer pid=8) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=8)   Value error, User-specified max_model_len (99999) is greater than the derived max_model_len (512). [type=value_error]
(APIServer pid=8)     For further information visit https://errors.pydantic.dev/2.12/v/value_error
"""


@pytest.mark.parametrize(
    ("log", "code", "said"),
    [
        (IN_FLIGHT, 0, "RuntimeError: Unsupported CPU attention configuration: head_dim=8"),
        (AT_START, 1, "RuntimeError: CUDA out of memory when warming up; lower `max_num_seqs`."),
        (
            SETTING,
            1,
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig Value error, User-specified "
            "max_model_len (99999) is greater than the derived max_model_len (512). [type=value_error]",
        ),
        ("api_server.py: error: unrecognized arguments: --no-such\n", 2, "unrecognized arguments: --no-such"),
        (
            "INFO: loading\n",
            137,
            "it was ended by SIGKILL (often: out of memory, see dmesg); its last line: INFO: loading",
        ),
        (
            "(Worker pid=1) WARNING 11-30 00:42:46 [a.py:1] ImportError: no flash\nValueError: true\n",
            1,
            "ValueError: true",
        ),
        (
            "(Worker pid=1) WARNING 11-30 00:42:46 [a.py:1] ImportError: no flash\n",
            134,
            "it was ended by SIGABRT; its last line: ImportError: no flash",
        ),
        ("", 3, "it ended with exit code 3 and named no exception; its last line: (nothing was printed)"),
        (
            "(EngineCore pid=9) INFO 11-30 00:42:46 [core.py:1] Initializing\n(APIServer pid=8) RuntimeError: Engine core "
            "initialization failed.\n",
            1,
            "one of its processes was killed or crashed without an exception (often: out of memory, see dmesg); then it said: "
            "RuntimeError: Engine core initialization failed.",
        ),
    ],
)
def test_cause(log: str, code: int, said: str) -> None:
    assert cause(log.splitlines(), code) == said


def test_last_line_without_prefix() -> None:
    assert last_line(["(Worker pid=1) INFO 11-30 00:42:46 [a.py:1] Loading weights", "", "  "]) == "Loading weights"
