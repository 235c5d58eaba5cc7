"""Finding the program in an answer: each evaluation's own post-processing, kept as it is.

Every rule takes the document's prompt (imports, signature, docstring), the model's output, and the name of
the function that the tests call, and returns the source that is run before the tests.

What a model wrote can take any time, memory and depth to parse, so nothing here is called on an answer in the
process that grades: `bounded.py` runs this file as a script, in a child with limits. Standard library alone.
"""

from __future__ import annotations

import ast
import json
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable


def completion(prompt: str, output: str, entry_point: str) -> str:
    """lm-eval's humaneval: the output continues the prompt."""
    return prompt + output


def completion_before_fence(prompt: str, output: str, entry_point: str) -> str:
    """lm-eval's humaneval_instruct: the output continues the prompt, up to the first code fence."""
    return prompt + output.split("```")[0]


def first_block(prompt: str, output: str, entry_point: str) -> str:
    """OpenCompass (humaneval_postprocess_v2, then human-eval): the prompt, then the first fenced block or all of the output.

    A block that repeats the whole function is fine: the prompt alone is a function with a docstring, and is defined anew.
    """
    blocks = re.findall(r"```\w*\n(.*?)```", output, re.DOTALL)
    return prompt + (blocks[0] if blocks else output).lstrip()


def sanitized(prompt: str, output: str, entry_point: str) -> str:
    """Dream's evaluation. The first python block (or all) after the prompt, reduced to what the function needs."""
    code = output.split("```python\n", 1)[-1].split("```")[0]
    return sanitize(f"{prompt}\n{code}", entry_point)


def sanitize(text: str, entry_point: str) -> str:
    """The longest run of lines that parses, reduced to its imports and to the definitions that `entry_point` reaches.

    A definition given twice counts as it was given last. Only the first 100 lines are looked at, as in the original.
    """
    text = text.replace("\t", "    ").replace("\r\n", "\n").replace("\r", "\n").strip() + "\n"
    tree = _longest_parse(text.splitlines()[:100])
    if tree is None:
        return ""
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    definitions: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            definitions[node.targets[0].id] = node
    reached = _reached(entry_point, definitions) if entry_point in definitions else set(definitions)
    nodes = [node for name, node in definitions.items() if name in reached]
    return "\n".join(ast.unparse(node) for node in [*imports, *nodes])


def _longest_parse(lines: list[str]) -> ast.Module | None:
    best, tree = 0, None
    for start in range(len(lines)):
        if sum(1 for line in lines[start:] if line.strip()) <= best:
            break  # what is left is shorter than what was found
        for end in range(len(lines), start, -1):
            size = sum(1 for line in lines[start:end] if line.strip())
            if size <= best:
                break
            try:
                parsed = ast.parse("\n".join(lines[start:end]))
            except (SyntaxError, MemoryError, ValueError, RecursionError):
                continue
            best, tree = size, parsed
            break
    return tree


def _reached(name: str, definitions: dict[str, ast.stmt]) -> set[str]:
    """Names that a definition uses, and those that they use. Names behind a dot do not count, as in the original."""
    seen: set[str] = set()
    queue = [name]
    while queue:
        current = queue.pop()
        nodes: list[ast.AST] = [definitions[current]] if current in definitions and current not in seen else []
        seen.add(current)
        while nodes:
            for child in ast.iter_child_nodes(nodes.pop()):
                if isinstance(child, ast.Name):
                    queue.append(child.id)
                elif not isinstance(child, ast.Attribute):
                    nodes.append(child)
    return seen


RULES: dict[str, Callable[[str, str, str], str]] = {
    "completion": completion,
    "completion-before-fence": completion_before_fence,
    "first-block": first_block,
    "sanitized": sanitized,
}


def syntax_error(source: str) -> str:
    """Why a program cannot be compiled, as its traceback would end; "" when it can."""
    try:
        compile(source, "<program>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes
        return f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    return ""


def _answer_lines() -> None:
    """Answer every line [function, argument, …] of standard input with a line [value] or [null, error]."""
    functions: dict[str, Callable[..., str]] = {**RULES, "syntax-error": syntax_error}
    warnings.simplefilter("ignore")  # of what a model writes; they are its own affair
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))  # the alarm ends the process, wherever it is
        try:
            name, *arguments = json.loads(line)
            reply: list[str | None] = [functions[name](*arguments)]
        except Exception as error:
            reply = [None, f"{type(error).__name__}: {error}"]
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    import resource

    # Who started this may ignore or block alarms, which a child inherits.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # `x + x + …` is as deep as it is long: the parser's own limit comes first, then a stack that holds it.
    sys.setrecursionlimit(50_000)
    threading.stack_size(256 << 20)
    thread = threading.Thread(target=_answer_lines)
    thread.start()
    thread.join()
