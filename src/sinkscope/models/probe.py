"""What a network does with attention, tried on a few tokens: names and attributes of transformers' classes do not tell.

Run when a network that transformers built is loaded or wrapped. Layers may lack softmax attention (state-space layers, linear
attention): they have none to measure. What cannot be measured is refused here with its reason: attention that the network
computes by itself, scores changed on the way, heads that give no logits. Where attention is gated behind the softmax, the module
that takes the gated output is noted, so that a trace can say how far gates are open.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sinkscope.attention.context import AttentionCall, CallRecorder
from sinkscope.attention.interface import FULL_MASKS, NAME, UNMEASURED
from sinkscope.base.errors import CheckpointError, InputError, SinkscopeError
from sinkscope.base.files import one_line

if TYPE_CHECKING:
    from sinkscope.models.checkpoint import Checkpoint
    from sinkscope.models.family import Family
    from sinkscope.models.model import Model

TOKENS = 12
"""Tokens of the probe: more than the windows of no released model, but few."""
OFF = {torch.float64: 1e-5, torch.float32: 2e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
"""‖ours − transformers'‖ / ‖transformers'‖ of logits, above which two attention functions do not compute the same thing: rounding
explains less, also where it sends a token to another expert; a bias, mask or scale that got lost, more."""
LEAK = {False: 1e-3, True: 2e-2}
"""Change of earlier tokens' logits, in their norm, above which they saw the last token; with experts (True), whose products round
by which tokens share them, more is rounding."""
EVEN = 0.02
"""Spread over tokens, relative to the mean, below which numbers differ by rounding alone, in bfloat16 too."""
RECURRENT = (
    "mamba", "ssm", "linear", "delta", "conv", "rwkv", "lstm", "lightning", "recurrent", "kda", "rglru", "cross",
)  # fmt: skip
"""Parts of the names of modules that mix tokens without a softmax, or that a plain text does not reach."""


@dataclass(frozen=True)
class Attending:
    """What the probe saw.

    Attributes:
        layers: those whose attention can be measured. gates: layer → the module that takes its gated attention output.
        learned: layers with a learned sink, one more score in the softmax.
    """

    layers: tuple[int, ...]
    gates: dict[int, nn.Module]
    learned: tuple[int, ...] = ()


class LooksBothWaysError(CheckpointError):
    """A network that sees later tokens; masks in full would hide that from the probe, and not from who runs it."""


def number_layers(network: nn.Module) -> None:
    """Tell attention modules which layer they are in, where they do not say."""
    for index, layer in enumerate(_layers(network)):
        for module in layer.modules():
            if "Attention" in type(module).__name__ and getattr(module, "layer_idx", None) in (None, -1):
                setattr(module, "layer_idx", index)  # noqa: B010 (torch types attributes of modules as tensors)


def probe(model: Model) -> Attending:
    """Runs a few tokens, and refuses what cannot be measured.

    Networks that read masks themselves, or do not say that a window is theirs, get their masks in full and are tried again.
    """
    try:
        return _probe(model)
    except LooksBothWaysError:
        raise
    except CheckpointError:
        if not model.spec.causal:
            raise
        config = model.network.config.get_text_config()
        setattr(config, FULL_MASKS, True)
        return _probe(model)


def dry_probe(checkpoint: Checkpoint, family: Family) -> None:
    """Refuse an architecture of transformers that cannot be measured, without its weights, for the reason that `ss.load` gives.

    Says nothing where a network without weights cannot be run to its end: most look at numbers on the way.
    """
    from sinkscope.models.causal import architecture, without_weights
    from sinkscope.models.model import Model

    if not family.probed or checkpoint.change is not None:
        return
    network_class, config = architecture(checkpoint, "CAUSAL" if family.causal else "MASKED")
    network = without_weights(checkpoint, network_class, config)
    try:
        family.adopt(network)
        probe(Model(checkpoint, family, network.eval(), None, torch.device("meta")))
    except CheckpointError as error:
        # What a network without numbers raised is no reason; what sinkscope says of its attention is.
        if error.__cause__ is None or isinstance(error.__cause__, SinkscopeError):
            raise
    except Exception:  # a network may raise anything where it has no numbers
        return


def _probe(model: Model) -> Attending:
    name = type(model.network).__name__
    canvas = int(getattr(model.network.config, "canvas_length", 0))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.shape.vocabulary, (1, TOKENS + canvas), generator=generator).to(model.device)
    listener = _Listener(ids.shape[1])
    headless = CheckpointError(
        f"{model.source}: transformers' {name} has no language-model head; give the network with one, such as "
        "…ForCausalLM or …ForMaskedLM"
    )
    try:
        with ExitStack() as hooks:
            for module in model.network.modules():
                if getattr(getattr(module, "weight", None), "dim", int)() == 2:
                    hooks.enter_context(module.register_forward_pre_hook(listener.enters))
            logits = model.forward(ids, model.context(recorder=listener))
    except InputError as error:
        raise CheckpointError(f"{model.source}: {error}") from error
    except SinkscopeError:
        raise
    except Exception as error:  # a network may raise anything for an input that it was not made for
        if getattr(error, "name", "") == "logits":
            raise headless from error
        raise CheckpointError(
            f"{model.source}: transformers' {name} fails on a few text tokens ({one_line(error)}); sinkscope measures "
            "networks that read token ids alone"
        ) from error
    if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[-1] != model.shape.vocabulary:
        raise headless
    _check_calls(model, name, listener.calls)
    if model.spec.causal:
        _compare(model, name, ids, logits)
    others = _other_keys(model, listener) if model.spec.causal else set()
    layers = tuple(sorted(set(listener.calls) - others))
    if not layers:
        raise CheckpointError(
            f"{model.source}: the keys of every layer of transformers' {name} are summaries of several tokens; there is no "
            "attention to tokens to measure"
        )
    learned = tuple(sorted(listener.learned - others))
    return Attending(layers, {layer: listener.gates[layer] for layer in layers if layer in listener.gates}, learned)


def _other_keys(model: Model, listener: _Listener) -> set[int]:
    """Layers whose keys are not the tokens: some attend to summaries of many (DeepSeek V4). They are not measured."""
    layers = _layers(model.network)
    others = {
        layer
        for layer, keys in listener.keys.items()
        if keys != listener.tokens or any(getattr(module, "compressor", None) for module in layers[layer].modules())
    }
    for module in (module for layer in others for module in layers[layer].modules()):
        setattr(module, UNMEASURED, True)
    return others


def _check_calls(model: Model, name: str, calls: Counter[int]) -> None:
    """Refuse a network of which not every softmax attention was seen, or one of them twice."""
    quiet = {
        type(module).__name__
        for number, layer in enumerate(_layers(model.network))
        if number not in calls
        for module in layer.modules()
        if "Attention" in type(module).__name__
    }
    soft = sorted(kind for kind in quiet if not any(word in kind.lower() for word in RECURRENT))
    if not calls and not soft:
        raise CheckpointError(
            f"{model.source}: no layer of transformers' {name} has softmax attention, so it has no attention sinks to measure"
        )
    if soft:
        raise CheckpointError(
            f"{model.source}: transformers' {name} computes attention by itself ({', '.join(soft)}) and not through "
            "transformers' attention interface, so it cannot be measured"
        )
    often = sorted(layer for layer, times in calls.items() if times != model.spec.passes)
    if often or max(calls) >= model.shape.layers:
        raise CheckpointError(
            f"{model.source}: layers of transformers' {name} attend several times in a forward "
            f"(layer {(often or [max(calls)])[0]}), as looped networks do and those with cross-attention; sinkscope measures one "
            "attention a layer"
        )


def _compare(model: Model, name: str, ids: Tensor, ours: Tensor) -> None:
    """Refuse a causal network to which transformers' own attention gives other logits."""
    other = ids.clone()
    other[:, -1] = (other[:, -1] + 1) % model.shape.vocabulary
    try:
        theirs, changed = eager_logits(model, ids), eager_logits(model, other)
    except Exception as error:
        raise CheckpointError(
            f"{model.source}: transformers' own attention fails in {name} ({one_line(error)}), so that nothing shows that "
            "sinkscope's is the same"
        ) from error
    sizes = vars(model.network.config.get_text_config()).items()
    experts = any("expert" in name and isinstance(size, int) and size > 1 for name, size in sizes)
    if distance(changed[:, :-1], theirs[:, :-1]) > LEAK[experts]:
        raise LooksBothWaysError(
            f"{model.source} is a {model.checkpoint.model_type} model whose attention looks both ways, and none of the diffusion "
            "families; sinkscope measures causal models and those families"
        )
    off = distance(ours, theirs)
    if not off <= OFF[model.dtype]:
        raise CheckpointError(
            f"{model.source}: with transformers' own attention {name} gives other logits (off by {off:.2g} of their norm): "
            "it changes scores or masks in a way that its attention interface does not say, so it cannot be measured"
        )


def distance(logits: Tensor, reference: Tensor) -> float:
    """‖logits − reference‖ / ‖reference‖: the largest single rounding error of logits grows with depth."""
    logits, reference = logits.double(), reference.double()
    return float((logits - reference).norm() / reference.norm().clamp(min=1e-12))


def eager_logits(model: Model, ids: Tensor) -> Tensor:
    """Logits under transformers' own attention, which every architecture has; sinkscope's is back in place afterwards."""
    config, modes = model.network.config, model.spec.modes
    looks = config.is_causal if modes else True
    try:
        model.network.set_attn_implementation("eager")
        if modes:  # transformers' own masks follow the config, which may say the other mode
            config.is_causal = True
        return model.forward(ids)
    finally:
        model.network.set_attn_implementation(NAME)
        if modes:
            config.is_causal = looks


def _layers(network: Any) -> list[nn.Module]:
    """The decoder layers: the first list of modules that is as long as the network is deep, not among those of images.

    Where a layer attends twice (LongCat-Flash), and counts as two, what holds its number.
    """
    depth = network.config.get_text_config().num_hidden_layers
    bodies = [network.get_decoder(), network] if hasattr(network, "get_decoder") else [network]
    modules = [module for body in bodies for module in body.modules()]
    lists = (part for part in modules if isinstance(part, nn.ModuleList) and len(part) == depth)
    numbered = {getattr(module, "layer_idx", None): module for module in reversed(modules)}
    return list(next(lists, [numbered[layer] for layer in range(depth) if layer in numbered]))


class _Listener(CallRecorder):
    """Counts the attention calls of each layer, and watches what becomes of their outputs."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.calls: Counter[int] = Counter()
        self.keys: dict[int, int] = {}
        self.learned: set[int] = set()
        self.gates: dict[int, nn.Module] = {}
        self._last: AttentionCall | None = None

    def record(self, call: AttentionCall) -> None:
        self.calls[call.layer] += 1
        self.keys[call.layer] = call.key.shape[2]
        if call.sink is not None:
            self.learned.add(call.layer)
        self._last = call

    def enters(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """What enters the linear layer behind an attention call: its output, or its output times a gate.

        The gate's own layer comes before it, and takes what attention took.
        """
        if self._last is None or not inputs or not isinstance(inputs[0], Tensor):
            return
        output = self._last.output.transpose(1, 2).float()  # [B, Q, H, E]
        if inputs[0].shape != output.flatten(2).shape:
            return
        taken = inputs[0].float().view_as(output)
        if torch.equal(taken, output):
            self._last = None
        elif _gates(taken, output):
            self.gates[self._last.layer] = module
            self._last = None


def _gates(taken: Tensor, output: Tensor) -> bool:
    """Whether one Float [B, Q, H, E] is the other times a gate: it leaves every number its sign, and is no norm."""
    share = taken / output
    nonzero = share.isfinite().flatten(2).all(-1)  # a token whose output is 0 somewhere tells nothing
    share, output = share[nonzero][None], output[nonzero][None]
    if not bool(share.ge(0).all()) or share.shape[1] < 2:
        return False
    # A norm, of heads or of all, divides by what it is a norm of: times that only its weights are left, the same for all tokens.
    sizes = (output.square().mean(dims, keepdim=True).sqrt() for dims in (-1, (-2, -1)))
    left = ((share * size).flatten(0, 1) for size in sizes)
    return not any(float((part.std(0) / part.mean(0)).nanmedian()) < EVEN for part in left)
