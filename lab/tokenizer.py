"""Makes the organisms' tokenizer, `organisms/data/tokenizer.json`, from the generators alone: python -m lab.tokenizer"""

from __future__ import annotations

from typing import Any

from sinkscope_train import documents as sources
from sinkscope_train.vocabulary import FILE, SPECIAL

VOCABULARY = 2048
"""Upper bound on the number of tokens; the generators' text may give fewer."""

PATTERN = r"\n|\d| ?\p{L}+| ?[^\s\p{L}\d]+ (?=\d)| ?[^\s\p{L}\d]+| +|\s"
"""Pre-tokens: a newline, one digit, a word or a run of marks with the space before it, a run of spaces.

Marks take the space between them and a digit too (" = " in "6 = 24"): digits stay bare, and sums stay short.
"""


def build(texts: list[str], vocabulary: int = VOCABULARY) -> Any:
    """Trains the tokenizer on the given texts."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


LEARNED_FROM = ("word_problems", "small_code", "prose", "captions")
"""The sources that the tokenizer is trained on. The others came later, and docstrings differ from Python to Python."""


def sample_texts(documents: int = 6000) -> list[str]:
    """The texts that the shipped tokenizer is trained on: those of the generators, and the role names."""
    texts = ["user\nassistant\nsystem"] * (documents // 4)
    for name in LEARNED_FROM:
        for seed in range(documents // len(LEARNED_FROM)):
            texts += [part for part in sources.document(name, seed) if part]
    return texts


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    made = build(sample_texts())
    made.save(str(FILE), pretty=False)
    print(f"{FILE.name}: {made.get_vocab_size()} tokens, {FILE.stat().st_size / 1000:.0f} kB")
