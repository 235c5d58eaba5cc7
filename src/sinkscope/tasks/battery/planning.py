"""Planning k moves in a small world: a way around walls, where k moves are the fewest. Every way that arrives is right.

A 4 by 4 grid. Walls: 2,2; 3,4; 1,3. Go from 1,1 to 3,2.
"""

from __future__ import annotations

import json
from random import Random

from sinkscope.tasks.battery.skill import Skill, words
from sinkscope.tasks.generated import Draft
from sinkscope.tasks.task import Document

Square = tuple[int, int]
SIZE, WALLS = 4, 3
MOVES = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}
SQUARES = [(column, row) for column in range(1, SIZE + 1) for row in range(1, SIZE + 1)]


def draft(rng: Random, moves: int) -> Draft:
    """One question; its answer is the first of the shortest ways, in the order of MOVES."""
    while True:
        start, goal, *walls = rng.sample(SQUARES, WALLS + 2)
        way = shortest(start, goal, set(walls))
        if way is not None and len(way) == moves:
            break
    told = "; ".join(f"{column},{row}" for column, row in walls)
    question = (
        f"A {SIZE} by {SIZE} grid. Walls: {told}. Go from {start[0]},{start[1]} to {goal[0]},{goal[1]}."
    )
    world = json.dumps([start, goal, sorted(walls)])
    return Draft(f"planning:{world}", question, f"#### {' '.join(way)}", {"world": world})


def shortest(start: Square, goal: Square, walls: set[Square]) -> list[str] | None:
    """The first of the shortest ways by breadth-first search; None when there is none."""
    ways: dict[Square, list[str]] = {start: []}
    waiting = [start]
    for square in waiting:
        if square == goal:
            return ways[square]
        for move in MOVES:
            reached = step(square, move)
            if reached in SQUARES and reached not in walls and reached not in ways:
                ways[reached] = [*ways[square], move]
                waiting.append(reached)
    return None


def step(square: Square, move: str) -> Square:
    """The square after a move."""
    across, along = MOVES[move]
    return square[0] + across, square[1] + along


def right(document: Document, given: str) -> bool:
    """Moves and nothing else, which stay on the grid, avoid the walls and end at the goal."""
    start, goal, walls = json.loads(document.extra["world"])
    square = (start[0], start[1])
    for move in words(given):
        if move not in MOVES:
            return False
        square = step(square, move)
        if square not in SQUARES or list(square) in walls:
            return False
    return bool(list(square) == goal)


SKILL = Skill(
    "planning", "moves", (2, 4, 6), 1, 7,
    "the moves, separated by spaces: right and left change the first number of a square by +1 and -1, up and down the second",
    draft, right,
)  # fmt: skip
