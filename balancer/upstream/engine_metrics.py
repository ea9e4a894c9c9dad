"""Read the load of an inference server from its /metrics: vLLM, SGLang and TensorRT-LLM.

    waiting  vllm:num_requests_waiting         sglang:num_queue_reqs           trtllm_num_requests_waiting
    running  vllm:num_requests_running         sglang:num_running_reqs         trtllm_num_requests_running
    KV usage vllm:kv_cache_usage_perc          sglang:token_usage              trtllm_kv_cache_utilization
    KV size  labels of vllm:cache_config_info  sglang:num_pages and page_size  trtllm_kv_cache_max_blocks and
                                                                               trtllm_kv_cache_tokens_per_block

Before, the third of vLLM was `gpu_cache_usage_perc`, and the last of SGLang labels of `sglang:cache_config_info`.
There is one series per engine behind an address (data parallelism). Requests and blocks are summed. Of the shares the
mean counts, as engines of one server have caches of one size. A quantity is unknown where a series of it is malformed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import nan
from typing import Final

from policies.facts import ReportedLoad

SIZE_LIMIT: Final = 1 << 20
"""Bytes of a worker's metrics; vLLM's are some 100 KB."""

MOST: Final = 1e9
"""Maximum requests, blocks or tokens of a block; a higher value is malformed."""

_WAITING: Final = (b"vllm:num_requests_waiting", b"sglang:num_queue_reqs", b"trtllm_num_requests_waiting")
_RUNNING: Final = (b"vllm:num_requests_running", b"sglang:num_running_reqs", b"trtllm_num_requests_running")
_USAGE: Final = (
    *(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"),
    *(b"sglang:token_usage", b"trtllm_kv_cache_utilization"),
)
_SIZES: Final = (b"sglang:page_size", b"trtllm_kv_cache_tokens_per_block")
_BLOCKS: Final = (b"sglang:num_pages", b"trtllm_kv_cache_max_blocks")
_LABELLED: Final = (b"vllm:cache_config_info", b"sglang:cache_config_info")
"""Names of each quantity. Of several that are there, the first counts."""

_ALL: Final = b"|".join((*_WAITING, *_RUNNING, *_USAGE, *_SIZES, *_BLOCKS, *_LABELLED))
_series_in: Final = re.compile(rb"\n(" + _ALL + rb")(?:\{([^\n]*)\})?[ \t]+(\S+)").finditer
_is_repeated: Final = re.compile(rb'(?:^|,)(?:(?:tp|pp|moe_ep)_rank="0*[1-9]|priority="[^"])').search
"""Series of SGLang that repeat others: those of further ranks of one engine, and of one priority beside all."""

_SIZE_IN: Final = re.compile(rb'(?:^|,)(?:block|page)_size="([0-9]+)"').search
_BLOCKS_IN: Final = re.compile(rb'(?:^|,)num_(?:gpu_blocks|pages)="([0-9]+)"').search


def load_of(text: bytes) -> ReportedLoad | None:
    """Return the load in metrics of an inference server, None if there is none."""
    series: dict[bytes, list[float]] = {}
    sizes, blocks = list[float](), list[float]()
    for name, labels, value in (match.groups() for match in _series_in(b"\n" + text)):
        if labels is not None and _is_repeated(labels) is not None:
            continue
        if name in _LABELLED:
            size, number = _SIZE_IN(labels or b""), _BLOCKS_IN(labels or b"")
            sizes.append(nan if size is None else float(size[1]))
            blocks.append(nan if number is None else float(number[1]))
        else:
            series.setdefault(name, []).append(_number(value))
    waiting, running = _known(series, _WAITING), _known(series, _RUNNING)
    usage = _known(series, _USAGE, most=1.0)
    sizes, blocks = _known(series, _SIZES) or _valid(sizes), _known(series, _BLOCKS) or _valid(blocks)
    load = ReportedLoad(
        in_flight=int(sum(waiting) + sum(running)) if waiting and running else None,
        waiting=int(sum(waiting)) if waiting else None,
        kv_usage=sum(usage) / len(usage) if usage else None,
        kv_tokens=int(sizes[0] * sum(blocks)) or None if blocks and len({*sizes}) == 1 else None,
    )
    return None if load == ReportedLoad() else load


def _known(series: dict[bytes, list[float]], names: Iterable[bytes], most: float = MOST) -> list[float]:
    """Return the values of the first of these names that is there; none if it is malformed."""
    return _valid(next((series[name] for name in names if name in series), []), most)


def _valid(values: list[float], most: float = MOST) -> list[float]:
    return values if all(0 <= value <= most for value in values) else []


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return nan
