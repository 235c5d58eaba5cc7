"""How the files of a package become documents: one reader for each kind of source that `lab/english_text.py` collects.

A reader takes (name, bytes) of the wanted files and yields documents as lists of paragraphs of running English.
"""

from __future__ import annotations

import html
import json
import re
import struct
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

Files = list[tuple[str, bytes]]
Paragraphs = list[str]


# ---- what counts as prose ------------------------------------------------------------------------

COMMON = (
    "a all an and any are as at be been but by can for from had has have he her his i if in into is it its may me more my "
    "no not of on one or our so that the their them then there these they this to two was we were what when which who will "
    "with you"
)
STOP_WORDS = frozenset(COMMON.split())
LETTERS = re.compile(r"[A-Za-z]+")
SYMBOLS = re.compile(r"[<>{}\[\]|\\=_^~@#$%*/+]")


def clean(text: str) -> str:
    """One paragraph on one line, without characters that nobody sees."""
    shown = "".join(sign for sign in text if sign.isprintable() or sign.isspace())
    return " ".join(shown.split())


def is_prose(text: str, strict: bool = True) -> bool:
    """A sentence or more of English; not strict: a short line that belongs to a story or a talk."""
    words = LETTERS.findall(text)
    letters = sum(map(len, words))
    if len(words) < (12 if strict else 2) or len(SYMBOLS.findall(text)) > 0.02 * len(text):
        return False
    if not strict:
        return letters > 0.6 * len(text)
    common = sum(word.lower() in STOP_WORDS for word in words)
    ends = text.rstrip("\"'”’)")[-1:] in ".!?:;"
    return ends and letters > 0.7 * len(text) and common > 0.25 * len(words) and letters > 3.2 * len(words)


def kept(parts: Iterator[str] | list[str], strict: bool = True) -> Paragraphs:
    """The paragraphs that are prose."""
    return [text for part in parts if (text := clean(part)) and is_prose(text, strict)]


# ---- readers: the files of a package to documents ------------------------------------------------


def decoded(data: bytes) -> str:
    """UTF-8, else Latin-1."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


BLOCK_TAGS = (
    "p div li ul ol dl dt dd h1 h2 h3 h4 h5 h6 td th tr table section article blockquote br hr body title"
)
SKIPPED_TAGS = "script style pre nav footer header head svg math code table"


class _Blocks(HTMLParser):
    """Text by block elements; what is no running text is skipped."""

    BLOCKS = frozenset(BLOCK_TAGS.split())
    SKIPPED = frozenset(SKIPPED_TAGS.split())

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[str] = [""]
        self.skipping: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag in self.SKIPPED:
            self.skipping.append(tag)
        if tag in self.BLOCKS:
            self.blocks.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.skipping:
            del self.skipping[self.skipping.index(tag) :]
        if tag in self.BLOCKS:
            self.blocks.append("")

    def handle_data(self, data: str) -> None:
        if not self.skipping:
            self.blocks[-1] += data


def blocks_of(text: str) -> list[str]:
    """The text of each block of an HTML page."""
    parser = _Blocks()
    parser.feed(text)
    parser.close()
    return [block.rstrip().rstrip("¶§") for block in parser.blocks]


def pages(files: Files) -> Iterator[Paragraphs]:
    """HTML pages."""
    for _, data in files:
        yield kept(blocks_of(decoded(data)))


def books(files: Files) -> Iterator[Paragraphs]:
    """Project Gutenberg's texts, without what it says before and behind them."""
    for _, data in files:
        text = decoded(data).replace("\r\n", "\n")
        begin = re.search(r"^\*.*(?:START OF|END.? ?THE SMALL PRINT).*$", text, re.MULTILINE)
        end = re.search(
            r"^.{0,4}END OF (?:THE |THIS )?PROJECT GUTENBERG.*$", text, re.MULTILINE | re.IGNORECASE
        )
        text = text[begin.end() if begin else 0 : end.start() if end else None]
        yield kept([part.replace("_", "") for part in re.split(r"\n[ \t]*\n", text)], strict=False)


def speeches(files: Files) -> Iterator[Paragraphs]:
    """One paragraph a line."""
    for _, data in files:
        yield kept(decoded(data).splitlines(), strict=False)


def encyclopaedia(files: Files) -> Iterator[Paragraphs]:
    """Articles of a MediaWiki dump."""
    page = re.compile(r"<title>([^<]*)</title>.*?<text[^>]*>(.*?)</text>", re.DOTALL)
    for _, data in files:
        for title, source in page.findall(decoded(data)):
            text = html.unescape(source)
            if ":" not in title and not text.lstrip().upper().startswith("#REDIRECT"):
                yield kept(_article(text))


_ENDING = re.compile(
    r"^==+ *(?:see also|external links?|references|further reading|notes|bibliography|sources|footnotes)\b.*",
    re.I | re.M | re.S,
)


def _article(text: str) -> list[str]:
    """The lines of running text in a MediaWiki source."""
    text = re.sub(
        r"<!--.*?-->|<(math|ref|gallery|nowiki|pre|table|div|code)\b[^>]*[^/]>.*?</\1>",
        "",
        text,
        flags=re.S | re.I,
    )
    text = _ENDING.sub("", text)
    for pattern in (r"\{\{[^{}]*\}\}", r"\{\|(?:(?!\{\||\|\}).)*\|\}"):
        count = 1
        while count:
            text, count = re.subn(pattern, "", text, flags=re.S)
    text = re.sub(r"\[\[[^\[\]|:]*:(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]", "", text)
    text = re.sub(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]", r"\1", text)
    text = re.sub(r"\[\w+:[^\s\]]*\s*([^\]]*)\]", r"\1", text)
    text = html.unescape(re.sub(r"<[^>]*>|'{2,}", "", text))
    return [
        line.lstrip("*#:; ") for line in text.split("\n") if not line.startswith(("=", "|", "!", "{", "}"))
    ]


def summaries(files: Files) -> Iterator[Paragraphs]:
    """Beginnings of articles, as JSON."""
    for _, data in files:
        for entry in json.loads(data).values():
            yield kept(entry["extract"].split("\n"))


def profiles(files: Files) -> Iterator[Paragraphs]:
    """Country profiles, as nested JSON."""

    def texts(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            for value in node.values():
                yield from texts(value)
        elif isinstance(node, str):
            yield from re.split(r"\+\+|<br\s*/?>|</p>|\n", node)

    for _, data in files:
        yield kept([re.sub(r"<[^>]*>", " ", text) for text in texts(json.loads(data))])


def conversations(files: Files) -> Iterator[Paragraphs]:
    """Two people who write to each other: one paragraph a turn."""
    for _, data in files:
        for talk in json.loads(data).values():
            turns = [clean(" ".join(message["text"] for message in turn)) for turn in talk["messages"]]
            if len(turns) >= 8:
                yield [f"- {turn}" for turn in turns if turn]


def commentary(files: Files) -> Iterator[Paragraphs]:
    """A SWORD module: an index of (offset, size, size unpacked) beside compressed blocks."""
    data = dict(files)
    for name in sorted(data):
        if not name.endswith("zs"):
            continue
        packed = data[f"{name[:-1]}z"]
        for offset, size, _ in struct.iter_unpack("<III", data[name]):
            if size:
                yield kept(blocks_of(decoded(zlib.decompress(packed[offset : offset + size]))))


def dictionary(files: Files) -> Iterator[Paragraphs]:
    """A dictd file: headwords at the margin, definitions indented; fifty entries make a document."""
    for _, data in files:
        text = re.sub(r"\[(?:1913 Webster|PJC|WordNet)[^\[\]]*\]|[{}]", "", decoded(data))
        entries: Paragraphs = []
        for entry in re.split(r"\n(?=\S)", text):
            head, _, body = entry.partition("\n")
            word = re.split(r"\s*[\\(,\[]| {2}", head)[0].strip()
            senses = [
                clean(re.sub(r"^\s*(?:\d+\.|\([a-z]\))", "", part)) for part in re.split(r"\n\s*\n", body)
            ]
            senses = [sense for sense in senses if len(sense) > 40 and is_prose(sense, strict=False)]
            if senses and 0 < len(word) < 40 and not word.startswith("00"):
                entries += [f"{word}: {senses[0]}", *senses[1:]]
            if len(entries) >= 50:
                yield entries
                entries = []
        yield entries
