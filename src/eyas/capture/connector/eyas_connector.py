"""Loaded by vLLM, in its own process: hands captured states over as files, where there is no CUDA.

vLLM's own connector copies states through a CUDA stream. Here they are in the machine's memory already; the rest (lock
files, names, what is told to the client) is vLLM's. This directory alone is on the server's PYTHONPATH: nothing of Eyas is
imported.

Shapes: T tokens, B blocks of the cache, S slots of a block, L layers, H hidden size.
"""

import os
from functools import partial
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (  # type: ignore[import-not-found]
    ExampleHiddenStatesConnector,
    PendingSave,
)


class HostStatesConnector(ExampleHiddenStatesConnector):  # type: ignore[misc]
    """`hidden_states` [T, L, H] and `token_ids` [T] of each request; the file also says which layers these are."""

    def _submit_async_write(self, pending: PendingSave) -> None:
        if not self._is_tp_rank_zero:
            return
        # A request that its client has given up may have blocks for a part of its tokens, or for none. Nobody reads its file.
        num_tokens = min(len(pending.token_ids), len(pending.block_ids) * self._block_size)
        cache_BLSH, place_T = self._kv_cache, torch.arange(num_tokens)
        block_T = torch.tensor(pending.block_ids, dtype=torch.long)[place_T // self._block_size]
        # Indexing copies: the blocks may be given to another request from here on.
        hidden_TLH = cache_BLSH[block_T, :, place_T % self._block_size].contiguous()
        tensors = {"hidden_states": hidden_TLH, "token_ids": pending.token_ids[:num_tokens].clone()}
        layer_ids = self._vllm_config.speculative_config.draft_model_config.hf_config.eagle_aux_hidden_state_layer_ids
        lock = self._lock_fds.pop(pending.req_id, None)
        future = self._executor.submit(_write, tensors, pending.filename, {"layer_ids": str([*layer_ids])}, lock)
        self._req_copy_events[pending.req_id] = _Done()
        self._req_futures[pending.req_id] = future
        future.add_done_callback(partial(self._on_write_done, pending.req_id))


class _Done:
    """In place of a CUDA event."""

    def query(self) -> bool:
        return True


def _write(tensors: dict[str, Any], file: str, notes: dict[str, str], lock: int | None) -> None:
    try:
        save_file(tensors, file, metadata=notes)
    finally:
        if lock is not None:
            os.close(lock)  # whoever waits for the file may read it
