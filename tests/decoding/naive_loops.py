"""The official generation loops, written again the slow and obvious way, on top of nothing but model.logits.

They use torch's global random stream (seeded right before the call, as a user of the official code does), compute every logit of
every position in every step, keep no cache, and know nothing of sinkscope's sampling code.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _extended(mask: Tensor | None, new: int) -> Tensor | None:
    return None if mask is None else functional.pad(mask, (0, new), value=1)


def llada(
    model: Any,
    prompt: Tensor,
    *,
    length: int,
    steps: int,
    block: int,
    temperature: float = 0.0,
    cfg: float = 0.0,
    remasking: str = "low_confidence",
    logits_eos_inf: bool = False,
    confidence_eos_eot_inf: bool = False,
    eos: int | None = None,
    eot: int | None = None,
    float64: bool = False,
    stop_at: int | None = None,
    attention_mask: Tensor | None = None,
    seed: int | None = None,
) -> list[Tensor]:
    """LLaDA's generate.py; with float64 and stop_at MMaDA's copies of it. Gives the states, the first included."""
    if seed is not None:
        torch.manual_seed(seed)
    mask_id = model.ids.mask
    x = torch.cat([prompt, torch.full((len(prompt), length), mask_id)], 1)
    mask = _extended(attention_mask, length)
    prompt_index = x != mask_id
    states = [x.clone()]
    blocks = length // block
    per_block = steps // blocks
    for number in range(blocks):
        begin, end = prompt.shape[1] + number * block, prompt.shape[1] + (number + 1) * block
        many = (x[:, begin:end] == mask_id).sum(1)
        for i in range(per_block):
            mask_index = x == mask_id
            if cfg > 0:
                un_x = x.clone()
                un_x[prompt_index] = mask_id
                both = None if mask is None else torch.cat([mask, mask])
                logits, un_logits = model.logits(torch.cat([x, un_x]), both).chunk(2)
                logits = un_logits + (cfg + 1) * (logits - un_logits)
            else:
                logits = model.logits(x, mask)
            if logits_eos_inf:
                logits[:, :, eos] = -torch.inf
            noisy = logits
            if temperature > 0:
                exact = logits.to(torch.float64)
                noisy = exact.exp() / (-torch.log(torch.rand_like(exact))) ** temperature
            x0 = noisy.argmax(-1)
            if confidence_eos_eot_inf:
                noisy[:, :, eos] = logits[:, :, eot] = -torch.inf
            if remasking == "random":
                confidence = torch.rand(x0.shape)
            else:
                p = functional.softmax(logits.to(torch.float64) if float64 else logits, -1)
                confidence = p.gather(-1, x0[..., None])[..., 0]
            confidence[:, end:] = -torch.inf
            x0 = torch.where(mask_index, x0, x)
            confidence = torch.where(mask_index, confidence, -torch.inf)
            chosen = torch.zeros_like(x0, dtype=torch.bool)
            for row in range(len(x)):
                count = int(many[row]) // per_block + (1 if i < int(many[row]) % per_block else 0)
                chosen[row, torch.topk(confidence[row], k=count).indices] = True
            x = torch.where(chosen, x0, x)
            states.append(x.clone())
        if stop_at is not None and bool((x[:, end - 1] == stop_at).all()):
            break
    return states


def _dream_filtered(logits: Tensor, temperature: float, top_p: float | None, top_k: int | None) -> Tensor:
    if temperature > 0:
        logits = logits / temperature
    low = torch.finfo(logits.dtype).min
    if top_p is not None and top_p < 1:
        ordered, order = torch.sort(logits, descending=True)
        remove = torch.cumsum(functional.softmax(ordered, -1), -1) > top_p
        remove[..., 1:] = remove[..., :-1].clone()
        remove[..., 0] = False
        for row in range(len(logits)):
            logits[row, order[row, remove[row]]] = low
    if top_k is not None:
        top_k = min(top_k, logits.shape[-1])
        logits = logits.masked_fill(logits < torch.topk(logits, top_k)[0][..., -1:], low)
    return logits


def _dream_sample(
    logits: Tensor, temperature: float, top_p: float | None, top_k: int | None, algorithm: str
) -> tuple[Tensor, Tensor]:
    if not len(logits):
        return torch.empty(0), torch.empty(0, dtype=torch.long)
    probs = functional.softmax(_dream_filtered(logits.clone(), temperature, top_p, top_k), -1)
    if temperature > 0:
        x0 = torch.distributions.Categorical(probs=probs).sample()
        confidence = probs.gather(-1, x0[:, None])[:, 0]
    else:
        confidence, x0 = probs.max(-1)
    if algorithm == "topk_margin":
        top = torch.sort(probs, -1, descending=True).values
        confidence = top[:, 0] - top[:, 1]
    if algorithm == "entropy":
        confidence = torch.sum(probs * torch.log(probs + 1e-10), -1)
    return confidence, x0


def dream(
    model: Any,
    prompt: Tensor,
    *,
    length: int,
    steps: int,
    algorithm: str,
    temperature: float = 0.0,
    top_p: float | None = None,
    top_k: int | None = None,
    alg_temp: float | None = 0.0,
    eps: float = 1e-3,
    attention_mask: Tensor | None = None,
    seed: int | None = None,
) -> list[Tensor]:
    """Dream's diffusion_generate. Gives the states, the first included."""
    if seed is not None:
        torch.manual_seed(seed)
    mask_id = model.ids.mask
    x = functional.pad(prompt, (0, length), value=mask_id)
    mask = _extended(attention_mask, length)
    states = [x.clone()]
    times = torch.linspace(1, eps, steps + 1)
    for i in range(steps):
        masked = x == mask_id
        raw = model.logits(x, mask)
        logits = torch.cat([raw[:, :1], raw[:, :-1]], 1)[masked]
        t, s = times[i], times[i + 1]
        last = i == steps - 1
        if algorithm == "origin":
            x0 = torch.full((len(logits),), mask_id)
            transfer = torch.rand(len(logits)) < (1 if last else 1 - s / t)
            _, x0[transfer] = _dream_sample(logits[transfer], temperature, top_p, top_k, algorithm)
            x = x.clone()
            x[masked] = x0
        else:
            confidence, x0 = _dream_sample(logits, temperature, top_p, top_k, algorithm)
            mean = masked.sum() / len(x)
            count = int(mean) if last else int(mean * (1 - s / t))
            full = torch.full(x.shape, -torch.inf)
            full[masked] = confidence
            if count > 0:
                if not alg_temp:
                    chosen = torch.topk(full, count).indices
                else:
                    chosen = torch.multinomial(functional.softmax(full / alg_temp, -1), num_samples=count)
                candidate = torch.full_like(x, mask_id)
                candidate[masked] = x0
                x = x.clone().scatter_(1, chosen, candidate.gather(1, chosen))
        states.append(x.clone())
    return states


def picture(
    model: Any,
    ids: Tensor,
    *,
    first: int,
    size: int,
    offset: int,
    codes: int,
    timesteps: int,
    guidance: float,
    temperature: float,
    attention_mask: Tensor | None,
    unconditional: tuple[Tensor, Tensor] | None,
    seed: int,
) -> tuple[list[Tensor], Tensor]:
    """MMaDA's t2i_generate. Gives the states, the first included, and the codes."""
    generator = torch.Generator().manual_seed(seed)
    mask_id = model.ids.mask
    x = ids.clone()
    last = first + size
    states, sampled = [x.clone()], torch.empty(0)
    for step in range(timesteps):
        known = torch.where(x[:, first:last] == mask_id, mask_id, x[:, first:last] - offset)
        if guidance > 0:
            assert unconditional is not None
            twin = torch.cat([unconditional[0][:, :first], x[:, first:]], 1)
            masks = torch.cat([attention_mask, unconditional[1]])
            cond, uncond = model.logits(torch.cat([x, twin]), masks).chunk(2)
            logits = (1 + guidance) * cond - guidance * uncond
        else:
            logits = model.logits(x, attention_mask)
        probs = logits[:, first:last, offset : offset + codes].softmax(-1)
        drawn = torch.multinomial(probs.reshape(-1, codes), 1, generator=generator)[:, 0].view(len(x), size)
        unknown = known == mask_id
        sampled = torch.where(unknown, drawn, known)
        ratio = (step + 1) / timesteps
        chosen = probs.gather(-1, sampled[..., None])[..., 0]
        chosen = torch.where(unknown, chosen, torch.finfo(chosen.dtype).max)
        keep_masked = torch.floor(size * torch.cos(torch.tensor(ratio) * math.pi * 0.5))
        masks_left = torch.max(
            torch.tensor([1.0]), torch.min(unknown.sum(-1, keepdim=True).float() - 1, keep_masked[None, None])
        )
        temperature = temperature * (1.0 - ratio)
        uniform = torch.zeros_like(chosen).uniform_(0, 1, generator=generator)
        gumbel = -torch.log((-torch.log(uniform.clamp(min=1e-20))).clamp(min=1e-20))
        confidence = torch.log(chosen.clamp(min=1e-20)) + temperature * gumbel
        cut = torch.gather(torch.sort(confidence, -1).values, 1, masks_left.long())
        x = x.clone()
        x[:, first:last] = torch.where(confidence < cut, mask_id, sampled + offset)
        states.append(x.clone())
    return states, sampled


def causal(
    model: Any,
    prompt: Tensor,
    *,
    length: int,
    ends: tuple[int, ...] = (),
    filler: int = 0,
    temperature: float | None = None,
    top_p: float = 1.0,
    attention_mask: Tensor | None = None,
    seed: int | None = None,
) -> Tensor:
    """transformers' greedy search and sampling without a cache. Gives the sequences."""
    from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

    if seed is not None:
        torch.manual_seed(seed)
    x, mask = prompt.clone(), attention_mask
    alive = torch.ones(len(x), dtype=torch.bool)
    for _ in range(length):
        logits = model.logits(x, mask)[:, -1].float()
        if temperature is None:
            token = logits.argmax(-1)
        else:
            logits = TemperatureLogitsWarper(temperature)(x, logits)
            if top_p < 1:
                logits = TopPLogitsWarper(top_p)(x, logits)
            token = torch.multinomial(logits.softmax(-1), num_samples=1)[:, 0]
        x = torch.cat([x, torch.where(alive, token, filler)[:, None]], 1)
        mask = _extended(mask, 1)
        for end in ends:
            alive = alive & (token != end)
        if not bool(alive.any()):
            break
    return x


def native(model: Any) -> Any:
    """A copy of the network with transformers' own attention, in which a query that may see nothing gets 0."""
    network = copy.deepcopy(model.network)
    network.set_attn_implementation("sdpa")
    return network


def bd3lm(
    network: Any, prompt: Tensor, *, length: int, block: int, steps: int, shifted: bool, mask_id: int, pad: int, ends: Any
) -> list[Tensor]:  # fmt: skip
    """dllm's BD3LM sampler at temperature 0, of rows padded on the left to whole blocks. Gives the states."""

    def logits(x: Tensor, frozen: Tensor) -> Tensor:
        """Of the whole canvas; what is hidden was decided when the block began, with the ids `frozen`."""
        valid, blocks = frozen != pad, torch.arange(x.shape[1]) // block
        seen = valid[:, None, :, None] & valid[:, None, None, :] & (blocks[:, None] >= blocks)
        positions = (valid.long().cumsum(1) - 1).masked_fill(~valid, 0)
        found: Tensor = network(input_ids=x, attention_mask=seen, position_ids=positions).logits
        return found

    x, states, number = prompt, [], -(-length // block)
    for first in range(0, length, block):
        start, size = x.shape[1], min(block, length - first)
        before = logits(x, x)[:, -1:]
        x = frozen = functional.pad(x, (0, size), value=mask_id)
        left, each = size, -(-steps // number)
        for step in range(each, 0, -1):
            now, then = torch.tensor(step / each), torch.tensor((step - 1) / each)
            due = 1 - ((1 - (1 - then)) / (1 - (1 - now))).double()  # of the masks, under α(t) = 1 − t
            count = min(int(torch.round(left * due)), left)
            left -= count
            if not count:
                continue
            states.append(x)
            found = logits(x, frozen)[:, start:]
            found = torch.cat([before, found[:, :-1]], 1) if shifted else found
            chance, token = found.softmax(-1).max(-1)
            best = chance.masked_fill(x[:, start:] != mask_id, -torch.inf).topk(count).indices
            chosen = torch.zeros_like(token, dtype=torch.bool).scatter(1, best, True)
            x = torch.cat([x[:, :start], torch.where(chosen, token, x[:, start:])], 1)
        if torch.isin(x[:, prompt.shape[1] :], torch.tensor(ends)).any(1).all():
            break
    return [*states, x]
