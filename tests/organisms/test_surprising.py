"""Text that is hard to foresee: the same seed gives the same text, docstrings come from whole files, and a corpus can be read."""

from __future__ import annotations

from pathlib import Path

from sinkscope.organisms.corpus import make
from sinkscope.organisms.sources import read_corpus
from sinkscope.organisms.surprising import docstrings, record
from sinkscope.organisms.vocabulary import shipped

LONG = "This paragraph of a docstring is long enough to be taken, because it has more than eighty characters in it."


def test_records_differ_and_ask_again_for_what_they_introduced() -> None:
    texts = [record(seed) for seed in range(200)]
    assert len(set(texts)) == 200
    registers = [text for text in texts if ";\n" in text]
    assert len(registers) > 30
    for text in registers:
        told = [line for line in text.split("\n") if line.endswith(";")]
        asked = [line.rstrip(".") for line in text.split("\n") if line.endswith(".")]
        assert len(asked) == 3
        introduced = {part for line in told for part in line.rstrip(";").split(", ")}
        for line in asked:
            assert sum(part in line for part in introduced) >= 2, line


def test_docstrings_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "test").mkdir()
    (tmp_path / "good.py").write_text(f'def f():\n    """Short.\n\n    {LONG}\n    """\n')
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "test" / "left_out.py").write_text(f'"""{LONG}"""\n')
    assert list(docstrings(tmp_path)) == [LONG]


def test_the_standard_library_has_plenty() -> None:
    some = [text for text, _ in zip(docstrings(), range(300), strict=False)]
    assert len(some) == 300
    assert all(len(text) >= 80 for text in some)


def test_a_corpus_takes_them_in(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join(record(seed) for seed in range(50)))
    words = shipped("llama")
    made = make(100, 0, words, read_corpus(str(path)), 0.4, workers=1)
    texts = [
        words.decode(row[:length].tolist())
        for row, length in zip(made.answers, made.answer_lengths, strict=True)
    ]
    whole = {record(seed) for seed in range(50)}
    # A longer one is cut to the length of a row.
    taken = [text for text in texts if any(one.startswith(text) for one in whole)]
    assert 35 <= len(taken) <= 45
