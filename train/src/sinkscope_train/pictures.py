"""Pictures of 8×8 palette colours, each described by one sentence, and an exact rule for both directions.

A picture is one to three shapes, each filling its own quadrant, on a plain background. The sentence names all of it, so a
drawing is right when every cell is right, and a caption is right when it describes exactly the shapes that are there. No
image decoder is needed: a code is a colour.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

SIDE = 8
CELLS = SIDE * SIDE
"""Image tokens per picture."""

COLOURS = (
    "black", "white", "grey", "red", "green", "blue", "yellow", "orange", "purple", "pink", "brown", "cyan", "navy", "lime",
    "gold", "teal",
)  # fmt: skip
"""The code of a colour is its place here."""
CODES = len(COLOURS)
SHAPES: dict[str, tuple[str, ...]] = {
    "square": ("####", "####", "####", "####"),
    "ring": ("####", "#..#", "#..#", "####"),
    "cross": ("#..#", ".##.", ".##.", "#..#"),
    "bar": ("....", "####", "####", "...."),
    "pole": (".##.", ".##.", ".##.", ".##."),
    "dot": ("....", ".##.", ".##.", "...."),
    "diamond": (".##.", "####", "####", ".##."),
    "corner": ("#...", "#...", "#...", "####"),
}
PLACES = {"top left": (0, 0), "top right": (0, 4), "bottom left": (4, 0), "bottom right": (4, 4)}
"""Place → row and column of the quadrant's first cell, in reading order."""


@dataclass(frozen=True)
class PictureShape:
    """One shape of one colour in one quadrant."""

    kind: str
    colour: str
    place: str


@dataclass(frozen=True)
class Scene:
    """The content of a picture; shapes in reading order."""

    background: str
    shapes: tuple[PictureShape, ...]


def scene(seed: int, held_out: bool = False) -> Scene:
    """A random scene; the same seed gives the same scene.

    Args:
        held_out: draw from the sixteenth of all scenes that training never sees; the sentence decides which those are.
    """
    random = Random(seed)  # noqa: S311 (pictures, not secrets)
    while True:
        drawn = _draw(random)
        if (zlib.crc32(caption(drawn).encode()) % 16 == 0) == held_out:
            return drawn


def _draw(random: Random) -> Scene:
    background, *inks = random.sample(COLOURS, 4)
    count = random.choice((1, 2, 2, 3, 3, 3))
    chosen = random.sample(tuple(PLACES), count)
    places = [place for place in PLACES if place in chosen]
    shapes = tuple(
        PictureShape(random.choice(tuple(SHAPES)), ink, place) for ink, place in zip(inks, places, strict=False)
    )
    return Scene(background, shapes)


def render(drawn: Scene) -> tuple[int, ...]:
    """The picture as 64 colour codes, row by row."""
    codes = [COLOURS.index(drawn.background)] * CELLS
    for shape in drawn.shapes:
        top, left = PLACES[shape.place]
        for row, line in enumerate(SHAPES[shape.kind]):
            for column, mark in enumerate(line):
                if mark == "#":
                    codes[(top + row) * SIDE + left + column] = COLOURS.index(shape.colour)
    return tuple(codes)


def caption(drawn: Scene) -> str:
    """The sentence that describes a scene.

    >>> caption(Scene("white", (PictureShape("ring", "red", "top left"), PictureShape("dot", "blue", "bottom right"))))
    'A red ring top left and a blue dot bottom right on white.'
    """
    named = [f"a {shape.colour} {shape.kind} {shape.place}" for shape in drawn.shapes]
    listed = ", ".join(named[:-1]) + " and " + named[-1] if len(named) > 1 else named[0]
    return f"A{listed[1:]} on {drawn.background}."


_SHAPE = re.compile(rf"\ban? ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)}) ({'|'.join(PLACES)})\b")
_BACKGROUND = re.compile(rf" on ({'|'.join(COLOURS)})\.$")


def parse(text: str) -> Scene | None:
    """The scene that a sentence describes, or None when it is not such a sentence.

    The order of the shapes is free; everything else must be as `caption` writes it.
    """
    text = " ".join(text.split())
    lowered = text[:1].lower() + text[1:]
    background = _BACKGROUND.search(lowered)
    shapes = [PictureShape(kind, colour, place) for colour, kind, place in _SHAPE.findall(lowered)]
    if background is None or not shapes or len({shape.place for shape in shapes}) < len(shapes):
        return None
    rest = _SHAPE.sub("x", lowered[: background.start()])
    if not re.fullmatch(r"x(?:, x)*(?: and x)?", rest):
        return None
    order = list(PLACES)
    return Scene(background.group(1), tuple(sorted(shapes, key=lambda shape: order.index(shape.place))))


def describes(text: str, codes: Sequence[int]) -> bool:
    """True when 64 codes are exactly the picture that the sentence describes: the drawing is right, or the caption."""
    described = parse(text)
    return described is not None and tuple(codes) == render(described)
