"""The nine skills of the battery: questions of any difficulty, and what is right where that is more than the same words in order.

Questions have one dial for difficulty; every function that makes them begins with one. Every answer ends in a line `#### …`, as
in the word problems. What stands before it is not graded: steps of work where a small model could not do without them, nothing
elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random

from sinkscope.tasks.generated import Draft, split_of
from sinkscope.tasks.sources import shipped_words
from sinkscope.tasks.task import Document

MARK = "####"
_WORDS = shipped_words("battery")
NAMES, THINGS, ADJECTIVES = (_WORDS[kind] for kind in ("names", "things", "adjectives"))


def same_words(document: Document, given: str) -> bool:
    """The gold words in their order, whatever stands between them."""
    return words(given) == words(after_mark(document.answer))


def words(text: str) -> list[str]:
    """The words and numbers of a text, in small letters; a minus belongs to its number, and "and" only joins words.

    >>> words("Pen, _cup_ and -7.")
    ['pen', 'cup', '-7']
    """
    tokens: list[str] = re.findall(r"-\d+|[^\W_]+", text.lower().replace("−", "-"))
    return [word for word in tokens if word != "and"]


def after_mark(text: str, lenient: bool = False) -> str:
    """The rest of the line after the last `####`; without any: "", or where `lenient` the last line that is not empty.

    >>> after_mark("Ben, then Leo."), after_mark("Ben, then Leo.", lenient=True)
    ('', 'Ben, then Leo.')
    """
    marked = [line.rpartition(MARK)[2].strip() for line in text.splitlines() if MARK in line]
    if marked or not lenient:
        return marked[-1] if marked else ""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


@dataclass(frozen=True)
class Skill:
    """One skill.

    Attributes:
        dial: what its difficulty counts.
        levels: the difficulties that are asked; they fit the organisms' 52 tokens for a question and 64 for an answer.
        least, most: the difficulties that can be asked for.
        form: what stands after the mark, in words for an instruct model.
        make: (random numbers, difficulty) → a question.
        right: (document, what stands after the mark) → whether it is right.
        guessed: difficulty → the accuracy of drawing an answer from those that a question offers; 0 where it offers none,
            because the answer is computed, or as long as whoever answers makes it.
    """

    name: str
    dial: str
    levels: tuple[int, ...]
    least: int
    most: int
    form: str
    make: Callable[[Random, int], Draft]
    right: Callable[[Document, str], bool] = same_words
    guessed: Callable[[int], float] = lambda level: 0.0


def retrieval(rng: Random, facts: int) -> Draft:
    """Retrieval among n facts; the same facts in another order are the same problem.

    Mia has the pen. Ben has the cup. What does Ben have?
    """
    pairs = list(zip(rng.sample(NAMES, facts), rng.sample(THINGS, facts), strict=True))
    who, what = rng.choice(pairs)
    sentences = " ".join(f"{name} has the {thing}." for name, thing in pairs)
    return Draft(f"retrieval:{sorted(pairs)}{who}", f"{sentences} What does {who} have?", f"#### {what}")


BEYOND = 2
"""Links before the start or after the end: neither shows by having no link."""


def relations(rng: Random, hops: int) -> Draft:
    """Relation chains of k hops: a ball goes from hand to hand. The answer names everyone who had it after the first.

    Ben gives to Leo. Mia gives to Ben. Leo gives to Eva. The ball starts with Mia and moves 2 times. Who has it?
    """
    people = rng.sample(NAMES, hops + BEYOND + 1)
    start = rng.randrange(BEYOND)
    way = people[start : start + hops + 1]
    links = list(pairwise(people))
    rng.shuffle(links)
    sentences = " ".join(f"{one} gives to {other}." for one, other in links)
    times = "1 time" if hops == 1 else f"{hops} times"
    question = f"{sentences} The ball starts with {way[0]} and moves {times}. Who has it?"
    return Draft(f"relations:{people}{start}", question, f"{' '.join(way[1:])}\n#### {way[-1]}")


TWO_PREMISES = 3
"""One rule in so many has two premises."""


def logic(rng: Random, rules: int) -> Draft:
    """Logical inference with k rules, some of which do not apply: all that is true, in the order in which it follows.

    Mia is old. If old then calm. If cold then red. If old and calm then proud. What is Mia?
    """
    who = rng.choice(NAMES)
    true, *others = rng.sample(ADJECTIVES, rules + 2)
    never = others.pop()  # nothing concludes it, so that a rule with this premise never applies
    concluded, written, canonical = [true], [], []
    applied = rules if rules == 1 else rng.randint((rules + 1) // 2, rules - 1)
    for number, conclusion in enumerate(others):
        premises = [rng.choice(concluded) if number < applied else never]
        if rng.randrange(TWO_PREMISES) == 0 and len(concluded) > 1:
            premises.append(rng.choice([word for word in concluded if word not in premises]))
        rng.shuffle(premises)
        canonical.append((conclusion, sorted(premises)))
        written.append(f"If {' and '.join(premises)} then {conclusion}.")
        if number < applied:
            concluded.append(conclusion)
    skeleton = f"logic:{true}{sorted(canonical)}"
    rng.shuffle(written)
    return Draft(skeleton, f"{who} is {true}. {' '.join(written)} What is {who}?", f"#### {' '.join(concluded)}")


def right_logic(document: Document, given: str) -> bool:
    """All that is true and nothing else, in any order."""
    return set(words(given)) == set(words(after_mark(document.answer)))


Square = tuple[int, int]
SIZE, WALLS = 4, 3
MOVES = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}
SQUARES = [(column, row) for column in range(1, SIZE + 1) for row in range(1, SIZE + 1)]


def planning(rng: Random, moves: int) -> Draft:
    """A way of k moves around walls, and none is shorter: the first of these ways, in the order of MOVES.

    A 4 by 4 grid. Walls: 2,2; 3,4; 1,3. Go from 1,1 to 3,2.
    """
    while True:
        start, goal, *walls = rng.sample(SQUARES, WALLS + 2)
        way = shortest(start, goal, set(walls))
        if way is not None and len(way) == moves:
            break
    listed = "; ".join(f"{column},{row}" for column, row in walls)
    question = f"A {SIZE} by {SIZE} grid. Walls: {listed}. Go from {start[0]},{start[1]} to {goal[0]},{goal[1]}."
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


def right_planning(document: Document, given: str) -> bool:
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


OPERATIONS: dict[str, Callable[[list[str]], list[str]]] = {
    "reverse them": lambda items: items[::-1],
    "leave out the first": lambda items: items[1:],
    "leave out the last": lambda items: items[:-1],
    "move the first to the end": lambda items: items[1:] + items[:1],
    "move the last to the start": lambda items: items[-1:] + items[:-1],
    "write the first twice": lambda items: items[:1] + items,
    "write the last twice": lambda items: items + items[-1:],
}
LENGTH = 4


def pair_name(one: str, other: str) -> str:
    """What decides the split of two operations that follow each other."""
    return f"composition:{one}, then {other}"


def composition(rng: Random, operations: int) -> Draft:
    """Operations on a list of words, all of them known, in pairs that training never shows.

    Words: pen cup key tea. Move the first to the end, then reverse them, then leave out the last.

    Without steps of work, which would turn a combination into one operation after the other. A document belongs to the test as
    soon as one of its pairs does: training sees every operation, and none of these pairs.
    """
    while True:
        items = started = rng.sample(THINGS, LENGTH)
        chosen = [rng.choice(list(OPERATIONS)) for _ in range(operations)]
        for name in chosen:
            items = OPERATIONS[name](items)
        if items:
            break
    pairs = [pair_name(*pair) for pair in pairwise(chosen)]
    skeleton = next((pair for pair in pairs if split_of(pair) == "test"), pairs[0])
    sentence = ", then ".join(chosen).capitalize()
    return Draft(skeleton, f"Words: {' '.join(started)}. {sentence}.", f"#### {' '.join(items)}")


PEOPLE = 3


def state(rng: Random, updates: int) -> Draft:
    """State tracking over k updates: things change hands. The answer has a line with everyone's thing after each update.

    Mia has the pen, Ben the cup, Leo the key. Mia and Ben swap. Ben and Leo swap. What does Leo have?
    """
    people, things = rng.sample(NAMES, PEOPLE), rng.sample(THINGS, PEOPLE)
    (first, *rest), held = zip(people, things, strict=True), list(things)
    sentences = [f"{first[0]} has the {first[1]}, {', '.join(f'{name} the {thing}' for name, thing in rest)}."]
    swaps, lines = [], []
    for _ in range(updates):
        a, b = rng.sample(range(PEOPLE), 2)
        held[a], held[b] = held[b], held[a]
        swaps.append((a, b))
        sentences.append(f"{people[a]} and {people[b]} swap.")
        lines.append(" ".join(held))
    asked = rng.randrange(PEOPLE)
    sentences.append(f"What does {people[asked]} have?")
    skeleton = f"state:{people}{things}{swaps}{asked}"
    return Draft(skeleton, " ".join(sentences), "\n".join([*lines, f"#### {held[asked]}"]))


MOST = 99
SIGNS = {"plus": "+", "minus": "-", "times": "*"}


def arithmetic(rng: Random, operations: int) -> Draft:
    """k operations, one after the other, with whole numbers from 0 to 99; the answer computes line by line.

    Start with 7, then plus 5, then times 2, then minus 9. What is the result?
    """
    value = start = rng.randint(2, 20)
    clauses, lines = [f"Start with {start}"], []
    for _ in range(operations):
        least = {"plus": 1, "minus": 1, "times": 2}
        most = {"plus": MOST - value, "minus": value, "times": MOST // value if value else 0}
        name = rng.choice([name for name in SIGNS if most[name] >= least[name]])
        number = rng.randint(least[name], min(9, most[name]))
        result = {"plus": value + number, "minus": value - number, "times": value * number}[name]
        clauses.append(f"then {name} {number}")
        lines.append(f"{value}{SIGNS[name]}{number}={result}")
        value = result
    skeleton = "arithmetic:" + ";".join(lines)
    return Draft(skeleton, f"{', '.join(clauses)}. What is the result?", "\n".join([*lines, f"#### {value}"]))


PAIRS = {"(": ")", "[": "]", "{": "}"}


def brackets(rng: Random, depth: int) -> Draft:
    """What closes the brackets that are still open, k deep; some were closed before.

    Close the brackets: ( [ ( ) {
    """
    closings = rng.randint(1, 4)
    moves = [1] * (depth + closings) + [-1] * closings  # a bracket opens, or one closes
    rng.shuffle(moves)
    while min(accumulate(moves)) < 0:
        rng.shuffle(moves)
    written: list[str] = []
    waiting: list[str] = []
    for move in moves:
        if move == 1:
            bracket = rng.choice(list(PAIRS))
            waiting.append(PAIRS[bracket])
            written.append(bracket)
        else:
            written.append(waiting.pop())
    opened = " ".join(written)
    return Draft(f"brackets:{opened}", f"Close the brackets: {opened}", f"#### {' '.join(reversed(waiting))}")


def right_brackets(document: Document, given: str) -> bool:
    """The closing brackets in their order, whatever spaces, commas and quotation marks stand around them."""
    bare = re.sub(r"[\s,.`'\"“”]", "", given)
    return bare == "".join(after_mark(document.answer).split())


COPIED = 3


def copying(rng: Random, distance: int) -> Draft:
    """Three words, with d others in between; no word occurs twice.

    First: pen cup key. Then: tea sun dog map. What came first?
    """
    chosen = rng.sample(THINGS, COPIED + distance)
    copied, between = " ".join(chosen[:COPIED]), " ".join(chosen[COPIED:])
    question = f"First: {copied}. Then: {between}. What came first?"
    return Draft(f"copying:{copied}|{between}", question, f"#### {copied}")


SKILLS = {
    skill.name: skill
    for skill in (
        Skill("retrieval", "facts", (2, 4, 8), 1, 40, "the one word", retrieval, guessed=lambda facts: 1 / facts),
        Skill(  # everyone but whom the ball starts with
            "relations", "hops", (1, 2, 4), 1, 32, "the one name", relations, guessed=lambda hops: 1 / (hops + BEYOND),
        ),
        Skill(
            "logic", "rules", (1, 3, 5), 1, 20, "every word that is true, the first one included, and nothing else", logic,
            right_logic, lambda rules: 0.5**rules,  # of each rule, whether it applies
        ),
        Skill(
            "planning", "moves", (2, 4, 6), 1, 7,
            "the moves, separated by spaces: right and left change the first number of a square by +1 and -1, up and down the "
            "second",
            planning, right_planning,
        ),
        Skill("composition", "operations", (2, 3, 4), 2, 12, "the words that are left, in order", composition),
        Skill("state", "updates", (1, 2, 4), 1, 32, "the one word", state, guessed=lambda updates: 1 / PEOPLE),
        Skill("arithmetic", "operations", (2, 4, 6), 1, 64, "the number", arithmetic),
        Skill("brackets", "depth", (2, 4, 8), 1, 32, "the closing brackets that are missing", brackets, right_brackets),
        Skill("copying", "words in between", (4, 12, 32), 1, len(THINGS) - COPIED, "the three words", copying),
    )
}  # fmt: skip
"""In the order of tables."""
