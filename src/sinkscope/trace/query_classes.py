"""Classes of queries under `by_query`: masked, decided, of the prompt, and two random ones."""

from __future__ import annotations

import torch
from torch import Tensor

from sinkscope.decoding.step import Request
from sinkscope.policies.numbers import mixed


def query_classes(request: Request, mask_id: int | None, first: int, last: int | None) -> Tensor:
    """Float [B·branches, C, Q]: which queries belong to each class; first, last: columns of the answer."""
    # By comparison, on the device: writing a constant into a slice is a copy from the host, which no CUDA graph can repeat.
    masked = request.masked(mask_id)
    columns = torch.arange(masked.shape[1], device=masked.device)
    last = masked.shape[1] if last is None else last
    answer = ((columns >= first) & (columns < last)).expand_as(masked)
    # The prompt of a block loop is run before there is an answer.
    drawn = _drawn(masked, columns - first, max(1, last - first)) & answer
    decided, prompt = ~masked & answer, ~masked & ~answer
    classes = [torch.ones_like(masked), masked, decided, prompt, drawn, ~drawn & answer]
    if request.active is not None:
        active = (columns >= request.queries.stop - request.active).expand_as(masked)
        classes = [part[:, request.queries] for part in (active, *classes)]
    return torch.stack(classes, 1).float().repeat(1 if request.twin is None else 2, 1, 1)


def _drawn(masked: Tensor, places: Tensor, length: int) -> Tensor:
    """Bool [B, S]: as many of the answer's queries as there are masks, drawn at random (anything outside of the answer).

    places: Long [S]: columns counted from the answer's first. The order of drawing depends on the answer's length alone, so that
    a row has the same classes alone and in any batch.
    """
    order = mixed(torch.arange(length, device=masked.device)).argsort().argsort()
    return order[places.clamp(0, length - 1)] < masked.sum(1, keepdim=True)
