# fmt: off
# ruff: noqa: I001 (a line for each module)
from .base.errors import CheckpointError as CheckpointError, InputError as InputError, SinkscopeError as SinkscopeError
from .base.version import __version__ as __version__
from .decoding.base import Decoding as Decoding
from .decoding.causal import CausalDecoding as CausalDecoding, GreedyDecoding as GreedyDecoding
from .decoding.causal import SamplingDecoding as SamplingDecoding
from .decoding.diffusion_gemma import DiffusionGemmaDecoding as DiffusionGemmaDecoding
from .decoding.dream import DreamDecoding as DreamDecoding
from .decoding.fast_dllm_v2 import FastDllmDecoding as FastDllmDecoding
from .decoding.reading import GivenText as GivenText
from .decoding.llada import LladaDecoding as LladaDecoding
from .decoding.llada2 import Llada2Decoding as Llada2Decoding
from .decoding.mdlm import MdlmDecoding as MdlmDecoding
from .decoding.mdlm_blocks import Bd3lmDecoding as Bd3lmDecoding
from .decoding.llada import MmadaDecoding as MmadaDecoding
from .decoding.mmada_image import MmadaImageDecoding as MmadaImageDecoding
from .decoding.nemotron import NemotronCausalDecoding as NemotronCausalDecoding, NemotronDecoding as NemotronDecoding
from .decoding.open_dcoder import OpenDcoderDecoding as OpenDcoderDecoding
from .decoding.reading import CausalReading as CausalReading, DenoisingReading as DenoisingReading
from .decoding.reading import MaskedReading as MaskedReading
from .decoding.rnd1 import Rnd1Decoding as Rnd1Decoding
from .decoding.sdar import SdarDecoding as SdarDecoding
from .generation.generate import generate as generate
from .generation.replay import Replay as Replay, replay as replay
from .generation.run import Run as Run
from .inspection.lens import Lens as Lens, lens as lens
from .inspection.patch import Patch as Patch, patch as patch
from .models.load import load as load
from .models.model import Model as Model
from .models.wrap import wrap as wrap
from .policies.keep_top import KeepTop as KeepTop
from .policies.mask_above import MaskAbove as MaskAbove
from .policies.mask_first import MaskFirst as MaskFirst
from .policies.mask_keys import MaskKeys as MaskKeys
from .policies.mask_learned import MaskLearned as MaskLearned
from .policies.mask_random import MaskRandom as MaskRandom
from .policies.mask_tokens import MaskKind as MaskKind, MaskToken as MaskToken
from .policies.mask_top import MaskTop as MaskTop
from .policies.policy import FixedRule as FixedRule, Policy as Policy, ScoredRule as ScoredRule
from .policies.text import parse_policy as parse_policy
from .policies.window import Window as Window
from .reuse.drift import DriftReuse as DriftReuse
from .reuse.prefix import PrefixReuse as PrefixReuse
from .reuse.rule import Reuse as Reuse
from .reuse.sparse import SparseReuse as SparseReuse
from .reuse.text import parse_reuse as parse_reuse
from .sinks import compare_traces as compare_traces, detect as detect, sink_table as sink_table
from .sinks import summary as summary
from .tasks.evaluate import evaluate as evaluate
from .tasks.evaluation import Evaluation as Evaluation
from .tasks.registry import register as register
from .trace.capture import Capture as Capture
from .trace.trace import Trace as Trace
from .verdicts.diagnosis import diagnose as diagnose
