"""Names, protocol, and imports that stay light."""

from __future__ import annotations

import json

import pytest

from sinkscope.base.errors import InputError
from sinkscope.decoding.base import decoding_from_options
from sinkscope.models.load import FAMILIES as KNOWN
from sinkscope.tasks import Task, get, names
from sinkscope.tasks.evaluate import decoding_for
from sinkscope.tasks.task import cut, digest

FAMILIES = ("llada", "dream", "mmada", "causal")


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("family", FAMILIES)
def test_every_task_has_a_default_for_every_family(name: str, family: str) -> None:
    task = get(name, family=family)
    assert isinstance(task, Task)
    assert task.name == name
    assert task.scheme.family == family
    decoding = decoding_from_options(family, task.scheme.decoding)
    assert decoding.generates or decoding.length >= 64
    assert decoding.new_tokens >= 64 or not decoding.generates
    settings = task.settings()
    assert json.loads(json.dumps(settings)) == settings
    assert digest(settings) == digest(get(name, family=family).settings())


def test_every_decoding_is_one_of_the_family() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    import sinkscope as ss
    from sinkscope.tasks import gsm8k, humaneval

    kinds = {
        "llada": ss.LladaDecoding, "dream": ss.DreamDecoding, "mmada": ss.MmadaDecoding, "causal": ss.GreedyDecoding,
        "llada_moe": ss.LladaDecoding, "masked": ss.LladaDecoding, "llada2": ss.Llada2Decoding, "sdar": ss.SdarDecoding,
        "fast_dllm_v2": ss.FastDllmDecoding, "a2d": ss.MdlmDecoding, "rnd1": ss.Rnd1Decoding,
        "open_dcoder": ss.OpenDcoderDecoding,
    }  # fmt: skip
    schemes = (*gsm8k.SCHEMES, *humaneval.SCHEMES)
    settings = [(scheme.family, scheme.decoding) for scheme in schemes if scheme.family]
    general = [(family, scheme.decoding) for scheme in schemes if not scheme.family for family in kinds]
    assert len(general) == 2 * len(kinds)
    brief = [(family, kind.brief) for family, kind in kinds.items()]
    for family, options in [*settings, *general, *brief]:
        assert kinds[family](**options).length == options["length"]


@pytest.mark.parametrize("family", sorted(set(KNOWN) - {"llada", "dream", "mmada", "causal"}))
def test_other_families_get_the_general_scheme(family: str) -> None:
    for name in ("gsm8k", "humaneval"):
        task = get(name, family=family)
        assert task.scheme.name == "zero-shot"
        assert decoding_for(task, family).length == (256 if name == "gsm8k" else 512)
    for name in ("word_problems", "small_code"):
        assert decoding_for(get(name, family=family), family).length == 64
        assert decoding_for(get(name), family).length == 64


def test_settings_are_wording_and_grading() -> None:
    """The same questions put to two families are the same task; other wordings are other tasks."""
    generated = {digest(get("word_problems", family=family).settings()) for family in FAMILIES}
    assert len(generated) == 1
    for name in ("gsm8k", "humaneval"):
        assert len({digest(get(name, family=family).settings()) for family in FAMILIES}) == len(FAMILIES)
    assert len({digest(get(name, family="llada").settings()) for name in names()}) == len(names())


def test_unknown_names_answer_with_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean gsm8k"):
        get("gsm8")
    with pytest.raises(InputError, match="did you mean dream-instruct"):
        get("gsm8k:dream-instuct")
    with pytest.raises(InputError, match="did you mean llada"):
        get("gsm8k", family="lada")
    with pytest.raises(InputError, match="did you mean mmada"):
        get("word_problems", family="madda")
    with pytest.raises(InputError, match="schemes are llada-blocks"):
        get("gsm8k")
    with pytest.raises(InputError, match="reads no file"):
        get("small_code", data="x.jsonl")
    with pytest.raises(InputError, match="one scheme"):
        get("word_problems:llada-pure")


def test_no_sandbox_only_by_choice() -> None:
    for name in ("small_code", "humaneval"):
        assert get(name, family="llada").sandbox == "auto"  # type: ignore[attr-defined]
        assert get(name, family="llada", sandbox="none").sandbox == "none"  # type: ignore[attr-defined]
    task = get("small_code", sandbox="none")
    document = task.documents(1)[0]
    assert task.grade(document, document.answer).passed
    assert not task.grade(document, "pass").passed
    with pytest.raises(InputError, match="sandbox 'nothing' is not known"):
        get("small_code", sandbox="nothing").grade(document, "pass")
    assert get("word_problems", sandbox="none") == get("word_problems")


def test_cut_ends_at_the_first_stop() -> None:
    assert cut("one\ntwo Q: three</s>", ("</s>", "Q:")) == "one\ntwo "
    assert cut("one", ("Q:", "")) == "one"
    assert cut("", ("Q:",)) == ""
