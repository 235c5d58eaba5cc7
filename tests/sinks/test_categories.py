"""Token categories: as vocabularies spell them, as decoded text, inside chat headers, for the real
tokenizers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tests.sinks import synthetic

from sinkscope.base.errors import InputError
from sinkscope.sinks.categories import CATEGORIES, category_codes, category_of, readable, text_category, token_texts
from sinkscope.sinks.dataset import sample_state


@pytest.mark.parametrize(
    ("token", "category"),
    [
        ("<|mdm_mask|>", "mask"),
        ("<|mask|>", "mask"),
        ("<mask>", "mask"),
        ("[MASK]", "mask"),
        ("Ċ", "newline"),
        ("ĊĊ", "newline"),
        (".ĊĊ", "newline"),
        ("ĠĊ", "newline"),
        ("č", "newline"),
        ("<0x0A>", "newline"),
        ("\n", "newline"),
        ("Ġ", "whitespace"),
        ("ĠĠĠ", "whitespace"),
        ("ĉ", "whitespace"),
        ("▁▁", "whitespace"),
        (".", "punctuation"),
        ("Ġ(", "punctuation"),
        ("ãĢĤ", "punctuation"),  # the ideographic full stop in byte-level letters
        ("Ġ=", "punctuation"),
        ("▁$", "punctuation"),
        ("<|start_header_id|>", "control"),
        ("<|end_header_id|>", "control"),
        ("<|eot_id|>", "control"),
        ("<|im_start|>", "control"),
        ("<|startoftext|>", "control"),
        ("<|beginoftext|>", "control"),
        ("<s>", "control"),
        ("[iPAD]", "control"),
        ("<user>", "control"),
        ("<|endoftext|>", "end"),
        ("<|end_of_text|>", "end"),
        ("</s>", "end"),
        ("7", "digit"),
        ("Ġ12", "digit"),
        ("3.", "digit"),
        ("Ġthe", "word"),
        ("istant", "word"),
        ("▁word", "word"),
        ("Ġdon't", "word"),
        ("x2", "word"),
        ("ä½ł", "word"),
        ("Ã", "word"),  # half of a character
        ("⟨131072⟩", "unknown"),
    ],
)
def test_categories_of_vocabulary_entries(token, category):
    assert category_of(token) == category


def test_plain_texts_are_not_read_as_bytes():
    assert text_category("£") == "punctuation"
    assert text_category("½") == "digit"
    assert category_of("Â£") == "punctuation"
    assert readable("Ġthe") == " the"
    assert readable("▁the") == " the"
    assert readable(" Ġ") == " Ġ"


def texts_of(trace) -> dict[int, str]:
    return token_texts(trace)


def test_a_trace_may_hold_spelled_or_plain_texts():
    data = synthetic.trace(lengths=(9,), answer=4, block=2)
    spelled = texts_of(data)
    assert spelled[synthetic.NEWLINE] == "\n"
    assert spelled[12] == " word12"
    plain = data.assign_attrs(token_texts=json.dumps({"4": "\n", "12": " the", "13": "£"}))
    assert texts_of(plain) == {4: "\n", 12: " the", 13: "£"}


def codes_of(data, **options) -> np.ndarray:
    return np.asarray(CATEGORIES)[category_codes(data, sample_state(data, 0), **options)]


def test_role_names_inside_headers_are_control():
    """The `istant` of the paper's table 2."""
    data = synthetic.trace(lengths=(8,), answer=4, block=2)
    texts = {
        10: "<|start_header_id|>", 11: "<|end_header_id|>", 12: "ass", 13: "istant", 4: "Ċ", 14: "Ġhi", 1: "<|mdm_mask|>",
    }  # fmt: skip
    tokens = data["tokens"].values.copy()
    tokens[0, :, :8] = [10, 12, 13, 11, 4, 14, 13, 4]
    data = data.assign(tokens=(data["tokens"].dims, tokens)).assign_attrs(
        token_texts=json.dumps({str(k): v for k, v in texts.items()})
    )
    assert codes_of(data)[0, :8].tolist() == [*["control"] * 4, "newline", "word", "word", "newline"]
    chatml = texts | {10: "<|im_start|>", 14: "Ġhi"}
    tokens[0, :, :8] = [10, 12, 13, 4, 14, 13, 4, 14]
    data = data.assign(tokens=(data["tokens"].dims, tokens)).assign_attrs(
        token_texts=json.dumps({str(k): v for k, v in chatml.items()})
    )
    assert codes_of(data)[0, :5].tolist() == ["control", "control", "control", "newline", "word"]


def test_special_ids_come_before_texts_and_the_given_before_all():
    data = synthetic.trace(lengths=(9,), answer=4, block=2)
    bare = data.assign_attrs(token_texts="")
    assert set(codes_of(bare)[0]) == {"unknown", "mask"}
    named = codes_of(bare, categories={synthetic.MASK: "word", **{int(i): "digit" for i in synthetic.ORDINARY}})
    assert set(named[0]) <= {"digit", "unknown", "mask"}
    with pytest.raises(InputError, match="did you mean newline"):
        codes_of(bare, categories={4: "newlin"})


def test_any_object_that_decodes_is_a_tokenizer():
    class Decoder:
        def decode(self, ids):
            return "\n" if ids[0] == synthetic.NEWLINE else " word"

    class Converter:
        def convert_ids_to_tokens(self, ids):
            return ["Ċ" if i == synthetic.NEWLINE else "Ġword" for i in ids]

    data = synthetic.trace(lengths=(9,), answer=4, block=2).assign_attrs(token_texts="")
    a, b = (codes_of(data, tokenizer=t) for t in (Decoder(), Converter()))
    assert (a == b).all()
    assert {"newline", "word", "mask"} == set(a[0])
    with pytest.raises(InputError, match="convert_ids_to_tokens or decode"):
        codes_of(data, tokenizer=3)


REAL = Path(os.environ.get("SINKSCOPE_TOKENIZERS", Path(__file__).parents[3] / "shared" / "tokenizers"))
REAL_TOKENS = {
    "llada": {
        "Ċ": "newline", "<|mdm_mask|>": "mask", "<|endoftext|>": "end", "<|start_header_id|>": "control",
    },
    "llama3": {"Ċ": "newline", "ĠĊ": "newline", "<|end_of_text|>": "end", "<|begin_of_text|>": "control"},
    "dream": {
        "<|mask|>": "mask", "<|endoftext|>": "end", "<|im_start|>": "control", "<|beginoftext|>": "control",
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_TOKENS)
def test_real_vocabularies(name):
    folder = REAL / name
    if not folder.is_dir():
        pytest.skip(f"the real {name} tokenizer is not here; set SINKSCOPE_TOKENIZERS to the folder that holds it")
    if (folder / "tokenizer.json").exists():
        stored = json.loads((folder / "tokenizer.json").read_text())
        vocabulary = {*stored["model"]["vocab"], *(t["content"] for t in stored["added_tokens"])}
    else:
        vocabulary = {*json.loads((folder / "added_tokens.json").read_text())}
    for token, category in REAL_TOKENS[name].items():
        assert token in vocabulary
        assert category_of(token) == category
    special = {token for token in vocabulary if token.startswith("<|") and token.endswith("|>")}
    assert {category_of(token) for token in special} <= {"control", "mask", "end"}
