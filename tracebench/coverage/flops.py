"""FLOPs of one op: torch's own formulas (``torch.utils.flop_counter``), and these formulas for fused forms of the same.

Torch's registry knows the attention kernels of GPUs. The kernel of the CPU does the same arithmetic, and the fused
attention and encoder layer, which eager takes in inference where a compiled graph does not, are matrix products and
attention in one op. Counted by the formulas of their parts, they compare. No other op is guessed at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, mm_flop, sdpa_backward_flop_count, sdpa_flop_count

#: Ops that multiply matrices or attend, yet may lack a formula.
_HEAVY = ("attention", "conv", "mm", "bmm", "matmul", "linear", "gru", "lstm", "rnn", "einsum", "bilinear")


def flops(func: Any, args: Any, kwargs: Any, result: Any, without_formula: set[str]) -> int:
    """Return the FLOPs of one call; the name of a heavy op without a formula goes to ``without_formula``."""
    packet = getattr(func, "_overloadpacket", func)
    formula = flop_registry.get(packet)
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=result))
    name = str(packet).removeprefix("aten.")
    fused = _FUSED.get(name)
    if fused is not None:
        return int(fused(*args))
    words = name.strip("_")
    if any(word in words.split("_") or words.startswith(word) or words.endswith(word) for word in _HEAVY):
        without_formula.add(str(packet))
    return 0


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))


def _attention_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any
) -> int:
    return int(sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape))


def _multi_head(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, width: int, heads: int, *_: Any) -> int:
    """Projections of query, key and value (B, T, W), attention of ``heads`` heads, and the projection of its output."""
    batch = query.shape[0]
    projections = sum(mm_flop((batch * part.shape[1], width), (width, width)) for part in (query, key, value, query))
    split = [(batch, heads, part.shape[1], width // heads) for part in (query, key, value)]
    return int(projections + sdpa_flop_count(*split))


def _encoder_layer(source: torch.Tensor, width: int, heads: int, *rest: Any) -> int:
    """Self-attention, then two linear layers, whose weights are arguments 14 and 16 of the op."""
    batch, length, _width = source.shape
    weights = (rest[11], rest[13])
    linear = sum(mm_flop((batch * length, weight.shape[1]), (weight.shape[1], weight.shape[0])) for weight in weights)
    return _multi_head(source, source, source, width, heads) + int(linear)


_FUSED: dict[str, Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_native_multi_head_attention": _multi_head,
    "_transformer_encoder_layer_fwd": _encoder_layer,
}
