"""Causal models: whatever transformers supports through its attention interface (Llama, Qwen, Mistral, SmolLM, …).

transformers itself builds the network and converts weights; sinkscope adds the strictness (nothing missing, nothing
unexpected, safetensors only, no remote code) and its attention function.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from sinkscope.attention.interface import NAME, register
from sinkscope.base.errors import CheckpointError, SinkscopeError, nearest
from sinkscope.base.fast import fast
from sinkscope.base.files import one_line
from sinkscope.base.text import listed
from sinkscope.models.backbone import BackboneFamily
from sinkscope.models.checkpoint import LISTED, ORIGINAL, Checkpoint, complain
from sinkscope.models.family import FAMILIES, TEXT_ORDERS, Family
from sinkscope.models.settings import check_computing

MEDIA = ("vision", "audio")
"""config.json describes towers as sections such as vision_config."""
TOWERS = ("vision", "visual", "multi_modal", "image", "audio")
"""Parts of the names of their weights."""
MOST_KEPT = 1 << 28
"""Numbers in buffers of a network: 1 GiB in float32."""


LLAMA = BackboneFamily("causal", causal=True, backbone="Llama")
"""Llama's network, filled tensor by tensor, for what another distribution changes in it."""


class Causal(Family):
    """Every causal model on the hub whose architecture is part of transformers."""

    def config(self, checkpoint: Checkpoint) -> Any:
        return architecture(checkpoint)[1].get_text_config()

    def build(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> nn.Module:
        if checkpoint.change is not None:  # transformers builds only what it knows
            return LLAMA.build(checkpoint, device, dtype)
        network_class, config = architecture(checkpoint)
        # A text network may have been stored with the towers that it reads images and sounds by.
        beside = TOWERS if any(name.removesuffix("_config") in MEDIA for name in checkpoint.config) else ()
        network = pretrained(checkpoint, network_class, config, device, dtype, beside)
        self.adopt(network)
        if fast(device):
            from sinkscope.gpu.fused_forward import has_llama_layers
            from sinkscope.gpu.stacked import lay_side_by_side

            if has_llama_layers(network):
                lay_side_by_side(network)
        return network


def pretrained(
    checkpoint: Checkpoint,
    network_class: Any,
    config: Any,
    device: torch.device,
    dtype: torch.dtype,
    unused: tuple[str, ...] = (),
) -> nn.Module:
    """A network that transformers builds and fills, with sinkscope's attention and its strictness.

    Args:
        unused: parts of the names of weights that the checkpoint may hold and the network does not have.
    """
    without_weights(checkpoint, network_class, config)  # it opens every shard: a broken one is named here
    placed = {"device_map": {"": device}} if device.type != "cpu" else {}
    try:
        with _quiet(bars=sys.stderr.isatty()):
            network, report = network_class.from_pretrained(
                str(checkpoint.folder),
                config=config,
                dtype=dtype,
                attn_implementation=NAME,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are in the report, and then in our error
                **placed,
            )
    except SinkscopeError:
        raise
    except Exception as error:  # anything from KeyError to RuntimeError for a bad checkpoint
        kind = f", which is quantised with {checkpoint.quantised}," if checkpoint.quantised else ""
        raise CheckpointError(f"{checkpoint.source}{kind} could not be loaded: {one_line(error)}") from error
    # A quantizer that turned weights back into full numbers is gone, and has left `is_quantized` False.
    if checkpoint.quantised and not any(hasattr(network, name) for name in ("hf_quantizer", "is_quantized")):
        from transformers import __version__

        raise CheckpointError(
            f"{checkpoint.source} is quantised with {checkpoint.quantised}, which transformers {__version__} does not undo: its "
            "packed weights would be taken for plain numbers; give the original checkpoint"
        )
    misshapen = sorted(
        f"{name} {list(stored)} instead of {list(expected)}" for name, stored, expected in report["mismatched_keys"]
    )
    surplus = sorted(name for name in report["unexpected_keys"] if not any(part in name for part in unused))
    complain(checkpoint.source, sorted(report["missing_keys"]), surplus, misshapen)
    # transformers puts quantised layers where their kernels run.
    loaded: nn.Module = network if checkpoint.quantised else network.to(device)
    return loaded.eval().requires_grad_(False)


HEADLESS = (
    "Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForPreTraining"
)  # fmt: skip
"""How transformers' names of networks without a language-model head end; GPT2LMHeadModel has one."""


def architecture(checkpoint: Checkpoint, head: str = "CAUSAL") -> tuple[Any, Any]:
    """transformers' network class and config object for a checkpoint, without asking `auto_map`; head: "CAUSAL" or "MASKED"."""
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = checkpoint.model_type
    if checkpoint.config.get("is_encoder_decoder"):
        raise CheckpointError(
            f"{checkpoint.source}: {kind} is an encoder–decoder; sinkscope measures networks with one stack of self-attention"
        )
    names = getattr(modeling_auto, f"MODEL_FOR_{head}_LM_MAPPING_NAMES")
    if kind not in names:
        types = [*names, "llada", "Dream", "mmada"]
        near = nearest(kind, types)
        hint = near if len(near) < 200 else "see `sinkscope models` for the families"
        if kind in CONFIG_MAPPING:
            hint = f"transformers has no {'causal' if head == 'CAUSAL' else 'masked'} language model of this type"
        raise CheckpointError(f"{checkpoint.source}: model_type {kind!r} is not one that sinkscope can load; {hint}")
    name = names[kind]
    network_class = getattr(transformers, name if isinstance(name, str) else name[0])
    # A network that rotates a part of each head names the setting; others would fail at their first forward.
    checkpoint.check_sizes("partial_rotary_factor" in inspect.getsource(sys.modules[network_class.__module__]))
    try:
        # A copy: transformers writes into nested settings, and the checkpoint's digest is over what its file says.
        settings = _plain_floats(checkpoint.config)
        if not checkpoint.quantised:  # a config may speak of a file that the weights were made from
            settings.pop("quantization_config", None)
        settings["model_type"] = kind  # of a changed network, that of the one it was made from
        config = CONFIG_MAPPING[kind].from_dict(settings)
    except Exception as error:  # a config class may raise anything for a missing or wrong key
        _require_sizes(checkpoint, CONFIG_MAPPING[kind])
        raise CheckpointError(
            f"{checkpoint.source}: config.json does not describe a {kind} model: {one_line(error)}"
        ) from error
    _require_sizes(checkpoint, config)
    check_computing(checkpoint, type(config))
    if isinstance(checkpoint.config.get("text_config"), dict):
        inner = getattr(config, "text_config", config)
        if isinstance(inner, dict):  # of a class that has no such part
            raise checkpoint.misfit("text_config", f"which no {kind} model has; {ORIGINAL}")
        check_computing(checkpoint.section("text_config"), type(inner))
    if network_class.config_class is (getattr(config, "sub_configs", None) or {}).get("text_config"):
        config = config.get_text_config()  # a text network, of a checkpoint that holds towers for images beside it
    return network_class, config


def _plain_floats(value: Any) -> Any:
    """A copy in which what transformers writes for infinite numbers, {"__float__": "Infinity"}, is a number again."""
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {name: _plain_floats(one) for name, one in value.items()}
    return [_plain_floats(one) for one in value] if isinstance(value, list) else value


def without_weights(checkpoint: Checkpoint, network_class: Any, config: Any) -> Any:
    """The network on the meta device, with sinkscope's attention, refused where the checkpoint cannot fill it.

    Before transformers makes room for it: a config may declare much more than the weights hold, and no head may be stored.
    """
    stored = sum(math.prod(shape) for shape in checkpoint.shapes.values())
    register()
    try:
        with checkpoint.described(), torch.device("meta"):
            network = network_class._from_config(config, attn_implementation=NAME)
    except CheckpointError as error:
        if isinstance(error.__cause__, KeyError) and error.__cause__.args == (NAME,):
            raise CheckpointError(
                f"{checkpoint.source}: transformers' {network_class.__name__} chooses its attention from a list of its own and "
                "not through transformers' attention interface, so it cannot be measured"
            ) from None
        raise
    parameters = dict(network.named_parameters())
    declared = sum(parameter.numel() for parameter in parameters.values())
    masks = sum(buffer.numel() for buffer in network.buffers())  # masks and tables that follow from the config
    architectures = checkpoint.config.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    body, tied = f"{network.base_model_prefix}.", network.all_tied_weights_keys
    head = [each for each in parameters if not each.startswith(body) and each not in tied]
    lost = not any(each in checkpoint.shapes for each in head)
    if head and lost and name.endswith(HEADLESS) and not name.endswith("LMHeadModel"):
        raise CheckpointError(
            f"{checkpoint.source} holds a {name}, which has no language-model head ({listed(head, LISTED)} missing); "
            "give a checkpoint with one, such as …ForCausalLM or …ForMaskedLM"
        )
    if not checkpoint.quantised and (declared > 2 * stored or masks > MOST_KEPT):  # quantised tensors are packed
        raise CheckpointError(
            f"{checkpoint.source}: config.json declares {declared + masks:,} numbers, but the weights hold {stored:,}; "
            "check that config.json and the weights belong together"
        )
    return network


def _require_sizes(checkpoint: Checkpoint, config: Any) -> None:
    """A config class fills a missing size with a default of its own, and a wrong head count may even fit the weights.

    Args:
        config: a config object, or the class where no object could be made.
    """
    if isinstance(checkpoint.config.get("text_config"), dict):
        return
    aliases: dict[str, str] = getattr(config, "attribute_map", None) or {}
    for name in ("num_attention_heads", "hidden_size", "num_hidden_layers", "vocab_size"):
        used = aliases.get(name, name)
        derived = isinstance(getattr(config if isinstance(config, type) else type(config), used, None), property)
        if hasattr(config, used) and not derived and checkpoint.config.get(used) is None:
            checkpoint.setting(name)


def takes_positions(network: nn.Module) -> bool:
    """Whether the network's forward accepts position ids (some compute them from the attention mask)."""
    return "position_ids" in inspect.signature(network.forward).parameters


@contextmanager
def _quiet(bars: bool) -> Iterator[None]:
    """transformers' loading bar belongs on a terminal, not in a log file; its table of misfits becomes our error."""
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    (logging.enable_progress_bar if bars and shown else logging.disable_progress_bar)()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        (logging.enable_progress_bar if shown else logging.disable_progress_bar)()
        logging.set_verbosity(verbosity)


FAMILY = FAMILIES.add(
    Causal(
        name="causal",
        about="any causal model of transformers: next-token prediction with a KV cache",
        label="autoregressive",
        causal=True,
        probed=True,
        texts={"eot": "<|eot_id|>"},
        orders=TEXT_ORDERS,
    )
)
