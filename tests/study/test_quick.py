"""`sinkscope study quick --model X` for any language model, and tasks that are read in every stage of a study."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from tests.helpers import golden
from tests.helpers.byte_tokenizer import checkpoint_with_tokenizer
from tests.helpers.tokenizers import golden_with_tokenizer
from tests.study import small
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from sinkscope.base.errors import InputError
from sinkscope.report.study.source import diagnoses
from sinkscope.study import spec
from sinkscope.study.cells import outline
from sinkscope.study.facts import Facts
from sinkscope.verdicts.wording import of_model


def masked_lm(folder: Path) -> Path:
    """A tiny BERT with random weights, and the tokenizer of a golden checkpoint."""
    golden_with_tokenizer("llada", folder)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    for file in [*folder.glob("*.safetensors*"), folder / "config.json"]:
        file.unlink()
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=512, pad_token_id=0,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def quick(folder: Path, out: Path, *more: str) -> dict[str, pd.DataFrame]:
    """The tables of the study `quick` on the model in a folder."""
    small.run_here(Path("quick"), out, "--model", str(folder), "--samples", "4", "--no-report", *more)
    return {path.stem: pd.read_parquet(path) for path in out.glob("tables/*.parquet")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["causal", "diffusion", "block diffusion", "masked"])
def test_any_language_model_is_read_and_traced(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    if kind == "masked":
        masked_lm(folder)
    elif kind == "block diffusion":
        checkpoint_with_tokenizer("fast_dllm_v2", folder)
        config = json.loads((folder / "config.json").read_text())
        mask = {"mask_token_id": golden.manifest("fast_dllm_v2")["special_ids"]["mask"]}
        (folder / "config.json").write_text(json.dumps(config | mask))
    else:
        golden_with_tokenizer({"causal": "llama", "diffusion": "llada"}[kind], folder)
    tables = quick(folder, tmp_path / "out")
    read = tables["likelihood"].set_index("policy")
    assert len(read) == 4
    assert read["nll"].notna().all()
    assert read.filter(regex="^top:1", axis=0)["control"].notna().all()
    assert set(tables["sinks"]["task"]) == {"text"}
    # What is left of the sinks under the mask and under its control is seen too.
    assert sorted(policy.startswith("random(") for policy in set(tables["sinks"]["policy"]) - {"none"}) == [False, True]
    # It answers nothing, so nothing is asked under a mask, and the table says why.
    (left,) = tables["left_out"].to_dict("records")
    assert (left["task"], left["accuracy"], left["floor"]) == ("word_problems", 0.0, 0.2)
    assert set(tables["results"]["policy"]) == {"none"}
    (told,) = diagnoses(tables).values()
    assert of_model(told).endswith("; what masking each head’s strongest sink costs is undecided: 4 texts are too few.")


@pytest.mark.slow
def test_another_task_takes_the_place_of_the_questions_alone(tmp_path: Path) -> None:
    golden_with_tokenizer("llama", tmp_path / "model")
    tables = quick(tmp_path / "model", tmp_path / "out", "--task", "blimp")
    assert set(tables["likelihood"]["task"]) == {"text"}
    assert set(tables["results"]["task"]) == {"blimp"}
    assert set(tables["sinks"]["task"]) == {"text"}


def test_a_task_that_is_read_is_put_as_it_can_be_or_refused_before_anything_is_computed() -> None:
    facts = {
        name: Facts(name, family, "float32", "0", 2, 4, 1000)
        for name, family in (("organism/causal", "causal"), ("organism/scratch", "llada"))
    }
    for name in ("quick", "organisms"):
        for task in ("text", "blimp"):
            for cell in outline(spec.changed(name, list(facts), task, 2), facts):
                generates = cell.experiment.decoding.generates
                assert generates == (cell.kind != "evaluate" or cell.task not in ("text", "blimp"))
    base = {
        "name": "s",
        "models": list(facts),
        "decodings": {"short": {"causal": {"length": 8}, "diffusion": {"length": 32}}},
    }
    for section, said in (
        (
            {"evaluate": [{"task": "blimp", "decodings": ["short"], "samples": 2}]},
            "blimp is read, which decoding 'short'",
        ),
        ({"trace": [{"task": "blimp", "samples": 2}]}, "no texts to go on from"),
    ):
        with pytest.raises(InputError, match=said):
            outline(spec.from_data({**base, **section}), facts)
