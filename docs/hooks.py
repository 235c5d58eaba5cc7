"""What mkdocs does beyond its settings: writes the reference pages, and takes in the laboratory's logs, which no menu has."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.structure.files import File, Files

import sinkscope
from sinkscope import cli

ROOT = Path(__file__).resolve().parents[1]
LOGS = [path for path in sorted((ROOT / "lab").glob("*.md")) if path.name != "README.md"]
LINK = re.compile(r"(?P<mark>!?)\[(?P<words>[^\]\n]*)\]\((?P<target>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
WEIGHTS = Path(sinkscope.__file__).parent / "organisms" / "weights"
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
PUBLIC = re.compile(r"^from \.(\w+)\S* import (.*)$", re.M)
GROUPS = {
    "models": ("Models", "Load a checkpoint, or wrap a network that is in memory."),
    "generation": ("Generation", "Generate step by step, and repeat a finished run under a policy."),
    "decoding": ("Decodings", "A frozen dataclass for each official loop, and ways to read a given text."),
    "policies": ("Policies", "Which keys are masked, and the controls."),
    "reuse": ("Approximate steps", "Which results of earlier steps are used again."),
    "trace": ("Traces", "What is recorded, and the recording."),
    "sinks": ("Sinks", "Pure functions of a trace: where its sinks are."),
    "verdicts": ("Verdicts", "What a trace shows, and what it cannot show."),
    "inspection": ("Inside a sink", "What can be read at sinks, and what changes without it."),
    "tasks": ("Evaluation and extension", "Accuracy or likelihood under a policy, and classes of your own."),
    "base": ("Errors", "What sinkscope raises."),
}
"""Folder of the package → title and first sentence of the API page for the public names that come from it."""
BASES = {
    "Decoding": "decoding",
    "Policy": "policies",
    "FixedRule": "policies",
    "ScoredRule": "policies",
    "Reuse": "reuse",
}
"""What one derives from, and its folder: their methods are shown, and of the classes derived from them options and examples."""


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, the laboratory's logs, and the organisms' pictures."""
    pages = {"reference/commands.md": command_page(), **api_pages()}
    pages |= {f"lab/{log.name}": UNSEARCHED + log.read_text(encoding="utf-8") for log in LOGS}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    for picture in WEIGHTS.glob("*/emergence.svg"):
        files.append(File.generated(config, f"images/emergence-{picture.parent.name}.svg", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links are written for the repository: turn them into links of the site, or name the file where the site has no page."""
    here = Path(page.file.src_uri)
    folder = ROOT / here.parent if here.parts[0] == "lab" else ROOT / "docs" / here.parent
    return LINK.sub(lambda found: site_link(found, folder, here.parent), markdown)


def site_link(found: re.Match[str], folder: Path, here: Path) -> str:
    """One Markdown link or picture of a page in `folder`, as the site's page in `here` has it."""
    words, target, anchor = found["words"], found["target"], found["anchor"] or ""
    file = (folder / target).resolve()
    if not target or not file.exists():
        return found[0]  # elsewhere on the web, on this page, or a page that is generated
    if file.name == "emergence.svg":
        place = Path("images") / f"emergence-{file.parent.name}.svg"
    elif file.is_relative_to(ROOT / "docs"):
        place = file.relative_to(ROOT / "docs")
    elif file in LOGS:
        place = Path("lab") / file.name
    else:
        name = file.relative_to(ROOT)
        return f"`{name}`" if words.strip("`") in (str(name), name.name) else f"{words} (`{name}`)"
    return f"{found['mark']}[{words}]({os.path.relpath(place, here)}{anchor})"


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Links between notebooks and pages are written for the source; mkdocs translates those of pages only."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return re.sub(r'href="([^":#]+)\.(?:md|ipynb)(#[^"]*)?"', r'href="\1.html\2"', html)


def api_pages() -> dict[str, str]:
    """Every public name of `import sinkscope` with its docstring, a page for each group of modules, and an overview."""
    stub = Path(sinkscope.__file__).with_name("__init__.pyi").read_text(encoding="utf-8")
    names: dict[str, list[str]] = {folder: [] for folder in GROUPS}
    for folder, imported in PUBLIC.findall(stub):
        names[folder] += [name.split(" as ")[0] for name in imported.split(", ") if "__" not in name]
    preamble = (ROOT / "docs" / "preamble.py").read_text(encoding="utf-8").rstrip()
    overview = ["# Python", "", "All public names are in `sinkscope`, by convention imported as `ss`.", ""]
    overview += ["| group | names |", "|---|---|"]
    pages = {}
    for folder, (title, about) in GROUPS.items():
        names[folder].sort(key=BASES.__contains__)  # what one uses first
        words = [f"[`{name}`](api/{folder}.md#sinkscope.{name})" for name in names[folder]]
        overview.append(f"| [{title}](api/{folder}.md) | {', '.join(words)} |")
        lines = [f"# {title}", "", about, "", *(_entry(name, folder) for name in names[folder])]
        pages[f"reference/api/{folder}.md"] = "\n".join(lines)
    overview += ["", "The examples run in the tests, after these lines:", "", f"```python\n{preamble}\n```", ""]
    overview += ["Shapes: B rows, S positions, K keys, h heads (or 1 if a set is shared).", ""]
    return {"reference/api.md": "\n".join(overview), **pages}


def _entry(name: str, folder: str) -> str:
    """What mkdocstrings shows of a public name."""
    derived = folder in BASES.values() and name not in BASES and name[0].isupper()
    return f"::: sinkscope.{name}\n" + ("    options:\n      members: false\n" if derived else "")


def command_page() -> str:
    """Every command with its arguments and options, read from the command line itself."""
    group = typer.main.get_group(cli.app)
    context = typer.Context(group, info_name="sinkscope")
    lines = [
        "# Commands",
        "",
        "Every command that prints a result takes `--json`. `sinkscope --install-completion` completes names in your shell.",
        "",
    ]
    for name in group.list_commands(context):
        command: Any = group.get_command(context, name)
        parameters = command.get_params(context)
        arguments = [option for option in parameters if option.param_type_name == "argument"]
        for option in arguments:
            option.metavar = option.metavar or str(option.name).upper()
        words = " ".join(option.metavar if option.required else f"[{option.metavar}]" for option in arguments)
        lines += [f"## {name}", "", f"`sinkscope {name} {words}`".replace(" `", "`"), "", command.help or "", ""]
        rows = [f"| `{option.metavar}` | {option.help or ''} |" for option in arguments]
        rows += [f"| `{part}` | {made.help} |" for part, made in getattr(command, "commands", {}).items()]
        rows += [
            f"| `{_flags(option)}` | {_help(option)} |"
            for option in parameters
            if option.param_type_name == "option" and option.name != "help"
        ]
        lines += ["| argument or option | meaning |", "|---|---|", *rows, ""]
    return "\n".join(lines)


def _flags(option: Any) -> str:
    flags = "/".join([*option.opts, *option.secondary_opts])
    return flags if option.is_flag else f"{flags} {option.metavar}"


def _help(option: Any) -> str:
    text = (option.help or "").replace("|", "\\|")
    plain = option.default if isinstance(option.default, (str, int, float)) and not option.is_flag else None
    return f"{text}; default: {plain}" if plain not in (None, "") and "default" not in text else text
