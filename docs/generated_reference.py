"""Makes the reference of Python, command line, HTTP API and settings from the code, each time the site is built.

A hook of mkdocs (`mkdocs.yml` names it). It adds pages below `reference/`, and README.md, CONTRIBUTING.md and
CHANGELOG.md as pages of the site. Nothing of this is committed, so it cannot fall behind the code.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from enum import Enum, EnumType, StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel
from typer.main import get_command

import weft
import weft_kvstore
from weft import nn, ops
from weft.api.lifecycle import AGENT_TRANSITIONS, ALLOCATION_TRANSITIONS, JOB_TRANSITIONS
from weft.cli.app import app
from weft_kvstore.serving.daemon import ShardSettings
from weft_server.pages import described
from weft_server.problems import KINDS
from weft_server.settings import Settings as ServerSettings
from weft_worker.settings import WorkerSettings

ROOT = Path(__file__).parents[1]
COPIED = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
"""Pages of the site that lie at the repository's root."""

GROUPS: Mapping[str, Sequence[str]] = {
    "Train": ("fit", "submit", "job_spec", "Client", "JobHandle", "Values", "load", "Cluster"),
    "Models": ("from_torch", "from_onnx", "Model", "Trainable", "Loss"),
    "Data": ("numpy_data", "DataSpec"),
    "Optimizers": (
        "SGD",
        "Adam",
        "AdamW",
        "Adagrad",
        "RMSprop",
        "Ftrl",
        "LAMB",
        "LARS",
        "custom_optimizer",
    ),
    "Schedules": ("cosine", "linear", "polynomial", "exponential", "piecewise", "warmup"),
    "Expressions": ("input", "parameter", "constant", "Expression", "Group", "group", "graph", "cut", "BATCH"),
    "Records": ("Job", "JobSpec", "JobState"),
}
"""Public names of `weft` by topic. Names that are in none come under "More", exceptions under "Errors"."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """mkdocs calls this once it has found the pages in docs/."""
    pages = {
        "reference/python.md": python_page(),
        "reference/nn.md": module_page(nn, "weft.nn"),
        "reference/ops.md": module_page(ops, "weft.ops"),
        "reference/kvstore.md": module_page(weft_kvstore, "weft_kvstore"),
        "reference/command-line.md": command_line_page(),
        "reference/http.md": http_page(),
        "reference/problems.md": problems_page(),
        "reference/settings.md": settings_page(),
        "reference/lifecycles.md": lifecycles_page(),
        **{page: copied_page(ROOT / source) for page, source in COPIED.items()},
    }
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """mkdocs calls this for each page: a link out of docs/ goes to the copy in the site.

    A link to a generated page leads readers of the repository to where README.md tells of the site, and has the page as
    its title: `[settings](../README.md#documentation "reference/settings.md")`.
    """
    up = "../" * page.file.src_uri.count("/")

    def moved(found: re.Match[str]) -> str:
        copy = next(name for name, source in COPIED.items() if source == found[1])
        return f"]({up}{found[3] or copy + (found[2] or '')})"

    return re.sub(rf"\]\({re.escape(up)}\.\./(\w+\.md)(#[\w-]+)?(?: \"([^\"]+)\")?\)", moved, markdown)


def copied_page(source: Path) -> str:
    """A page from the root: its links are made relative to docs/."""

    def moved(found: re.Match[str]) -> str:
        target = found[2]
        for page, name in COPIED.items():
            target = re.sub(rf"^{re.escape(name)}(?=#|$)", page, target)
        return f"{found[1]}({target.removeprefix('docs/')})"

    return re.sub(r"(\[[^\]]*\])\(([^):]+)\)", moved, source.read_text())


# Python


def python_page() -> str:
    """All public names of `weft`."""
    parts = ["# Python", "All names that `import weft` gives. `weft.nn` and `weft.ops` have pages of their own."]
    named = {name for names in GROUPS.values() for name in names} | {"nn", "ops"}
    others = [name for name in weft.__all__ if name not in named]
    errors = [name for name in others if name.endswith("Error")]
    more = [name for name in others if name not in errors]
    for title, names in {**GROUPS, "More": more, "Errors": errors}.items():
        there = [name for name in names if name in weft.__all__]
        parts += [f"## {title}"] if there else []
        parts += [entry("weft", name, getattr(weft, name), "###") for name in there]
    return "\n\n".join(parts)


def module_page(module: ModuleType, name: str) -> str:
    """All public names of a module."""
    entries = [entry(name, each, getattr(module, each), "##") for each in sorted(module.__all__, key=str.lower)]
    return "\n\n".join([f"# {name}", prose(inspect.getdoc(module) or ""), *entries])


def entry(module: str, name: str, thing: Any, heading: str) -> str:
    """A public name: its signature, what its docstring says, its fields and methods."""
    parts = [f"{heading} {name} {{: #{module}.{name} }}"]
    if inspect.isclass(thing):
        parts += class_entry(module, name, thing, heading)
    elif callable(thing):
        parts += [signature_of(f"{module}.{name}", thing), prose(inspect.getdoc(thing) or "")]
    else:
        parts.append(f"`{thing!r}`")
    return "\n\n".join(filter(None, parts))


def class_entry(module: str, name: str, kind: type, heading: str) -> Iterator[str]:
    is_model, is_error = issubclass(kind, BaseModel), issubclass(kind, BaseException)
    if is_error:
        yield f"*A {kind.__bases__[0].__name__}.*"
    elif not is_model and not isinstance(kind, EnumType):
        yield signature_of(f"{module}.{name}", kind)
    own = kind.__doc__ and not kind.__doc__.startswith(f"{name}(")  # what a dataclass writes by itself says nothing
    yield prose(inspect.getdoc(kind) or "") if own else ""
    if isinstance(kind, EnumType):
        yield ", ".join(f"`{member.value}`" for member in kind)
    fields = list(fields_of(kind))
    if is_model or any(said for _, _, said in fields):  # else the signature says all of it
        yield table(("Field", "Default", ""), fields)
    # A base that has no page of its own is told of here.
    told = [base for base in kind.__mro__ if base is kind or (base.__module__.startswith("weft") and not public(base))]
    members = {each: member for base in reversed(told) for each, member in vars(base).items()}
    for each, member in members.items():
        if each.startswith("_") or is_error or is_model:
            continue
        if isinstance(member, property):
            said = prose(inspect.getdoc(member) or "")
            yield f"{heading}# {name}.{each} {{: #{module}.{name}.{each} }}\n\n*A property.* {said}"
        elif inspect.isfunction(member) or isinstance(member, classmethod | staticmethod):
            said = prose(inspect.getdoc(getattr(kind, each)) or "")
            shown = signature_of(f"{name}.{each}", getattr(kind, each))
            yield f"{heading}# {name}.{each} {{: #{module}.{name}.{each} }}\n\n{shown}\n\n{said}"


def public(kind: type) -> bool:
    """Whether a class has an entry of its own."""
    return any(getattr(module, kind.__name__, None) is kind for module in (weft, nn, ops, weft_kvstore))


def fields_of(kind: type) -> Iterator[tuple[str, str, str]]:
    """(name, default, description) of a model's or dataclass's fields."""
    if issubclass(kind, BaseModel):
        for name, field in kind.model_fields.items():
            has_default = not field.is_required() and field.default_factory is None
            yield f"`{name}`", f"`{shown(field.default)}`" if has_default else "", in_row(field.description or "")
    elif hasattr(kind, "__dataclass_fields__"):
        said = attribute_docstrings(kind)
        for name, each in kind.__dataclass_fields__.items():
            default = "" if each.default is MISSING else f"`{shown(each.default)}`"
            if not name.startswith("_"):
                yield f"`{name}`", default, in_row(said.get(name, ""))


def attribute_docstrings(kind: type) -> dict[str, str]:
    """The strings that stand under the attributes of a class, as its source has them."""
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    except (OSError, TypeError):
        return {}
    found = {}
    lines = body.body if isinstance(body, ast.ClassDef) else []
    for line, after in itertools.pairwise(lines):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(after, ast.Expr):
            text = after.value.value if isinstance(after.value, ast.Constant) else None
            if isinstance(text, str):
                found[line.target.id] = inspect.cleandoc(text)
    return found


def signature_of(name: str, function: Any) -> str:
    """A code block: `name(arguments) -> result`, an argument a line where it is long."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    arguments, is_keyword_only = [], False
    for each in signature.parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            arguments.append("*")
        is_keyword_only = is_keyword_only or each.kind is each.VAR_POSITIONAL
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        said = f"{stars}{each.name}" + ("" if each.annotation is each.empty else f": {type_of(each.annotation)}")
        if each.default is not each.empty:
            said += f" = {shown(each.default)}" if ":" in said else f"={shown(each.default)}"
        arguments.append(said)
    result = "" if signature.return_annotation is signature.empty else f" -> {type_of(signature.return_annotation)}"
    result = "" if inspect.isclass(function) else result
    line = f"{name}({', '.join(arguments)}){result}"
    if len(line) > 100:
        line = "\n".join([f"{name}(", *(f"    {each}," for each in arguments), f"){result}"])
    return f"```python\n{line}\n```"


def type_of(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def shown(value: Any) -> str:
    if isinstance(value, Enum):
        return repr(value.value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 20 and not value % (1 << 20):
        return f"{value >> 20} << 20"
    if isinstance(value, Path):
        return str(value)
    return "..." if "<" in repr(value) else repr(value)  # a function, or what holds one


def prose(docstring: str) -> str:
    """A docstring as Markdown. Indented programs become blocks of Python."""

    def block(found: re.Match[str]) -> str:
        return f"\n\n```python\n{textwrap.dedent(found[1]).strip()}\n```\n\n"

    return re.sub(r"\n\n((?:    [^\n]*\n|\n)*    [^\n]*)(?=\n\n|$)", block, docstring)


# Command line


def command_line_page() -> str:
    """Each command with its help, as `weft COMMAND --help` prints it."""
    root = get_command(app)
    parts = ["# Command line", "What `weft --help` and `weft COMMAND --help` print."]
    return "\n\n".join([*parts, *commands(root, typer.Context(root, info_name="weft", terminal_width=100), "##")])


def commands(command: Any, context: Any, heading: str) -> Iterator[str]:
    yield f"{heading} {context.command_path}\n\n```text\n{command.get_help(context)}\n```"
    for name, each in getattr(command, "commands", {}).items():
        if not each.hidden:
            yield from commands(each, typer.Context(each, info_name=name, parent=context, terminal_width=100), "##")


# HTTP


def http_page() -> str:
    """The calls of the server's OpenAPI document."""
    document = described("users", server_settings())
    parts = ["# HTTP API", linked(document["info"]["description"])]
    parts.append("A server shows the same at `/docs`, and the document with every model at `/openapi.json`.")
    calls = [(method, path, call) for path, each in document["paths"].items() for method, call in each.items()]
    for tag in document["tags"]:
        parts += [f"## {tag['name'].capitalize()}", tag["description"]]
        parts += [http_call(*each) for each in calls if each[2]["tags"] == [tag["name"]]]
    return "\n\n".join(parts)


def server_settings() -> ServerSettings:
    """Of a server that asks for tokens, so that its document has what each call needs."""
    return ServerSettings(host="0.0.0.0", token="not a real secret")  # type: ignore[arg-type]  # as the environment has it


def http_call(method: str, path: str, call: Mapping[str, Any]) -> str:
    parts = [f"### {method.upper()} {path}", linked(call.get("description", ""))]
    schemes = ", ".join(f"`{name}`" for each in call.get("security", ()) for name in each)
    parts.append(f"Needs: {schemes}" if schemes else "")
    rows = [
        (f"`{each['name']}`", each["in"], in_row(each.get("description", ""))) for each in call.get("parameters", ())
    ]
    rows += [
        ("body", kind, model_of(content)) for kind, content in call.get("requestBody", {}).get("content", {}).items()
    ]
    parts.append(table(("Parameter", "In", ""), rows) if rows else "")
    answers = []
    for status, answer in call["responses"].items():
        models = ", ".join(filter(None, map(model_of, answer.get("content", {}).values())))
        answers.append((status, in_row(linked(answer["description"])) if int(status) >= 300 or not models else models))
    parts.append(table(("Status", "Answer"), answers))
    for kind, content in call.get("requestBody", {}).get("content", {}).items():
        for example in content.get("examples", {}).values():
            value = example["value"]
            text = json.dumps(value, indent=2) if kind == "application/json" else str(value)
            parts.append(f"```json\n{text}\n```")
    return "\n\n".join(filter(None, parts))


def model_of(content: Mapping[str, Any]) -> str:
    reference: str = content.get("schema", {}).get("$ref", "")
    return f"`{reference.rpartition('/')[2]}`" if reference else ""


def linked(text: str) -> str:
    """Links to a server's pages of problems become links to the page here."""
    return re.sub(r"\]\(/problems/([\w-]+)\)", r"](problems.md#\1)", text)


def problems_page() -> str:
    """Each kind of problem that the server sends."""
    parts = ["# Problems", "Every answer of the server that is not 2xx is a problem document (RFC 9457) with a `code`."]
    for code, kind in KINDS.items():
        said = f"{kind.status.value}. {kind.meaning}\n\n**What to do:** {kind.remedy}\n\n*Example:* {kind.example}"
        parts.append(f"## {code}\n\n{said}")
    return "\n\n".join(parts)


# Settings and states


def settings_page() -> str:
    """The environment variables and options of the daemons."""
    parts = [
        "# Settings of daemons",
        "Each setting is an environment variable; `--help` lists those that are options too: `WEFT_SERVER_PORT=80` is "
        "`python -m weft_server --port 80`. An option goes before a variable. Times are in seconds, sizes in bytes.",
    ]
    for title, module, settings in (
        ("Server", "weft_server", ServerSettings),
        ("Worker", "weft_worker", WorkerSettings),
        ("Shard", "weft_kvstore", ShardSettings),
    ):
        prefix = settings.model_config.get("env_prefix", "")
        said = attribute_docstrings_of_all(settings)
        rows = [
            (f"`{prefix}{name.upper()}`", default, in_row(text or said.get(name, "")))
            for name, (_, default, text) in zip(settings.model_fields, fields_of(settings), strict=True)
        ]
        parts += [f"## {title}", f"`python -m {module}`", table(("Variable", "Default", ""), rows)]
    return "\n\n".join(parts)


def attribute_docstrings_of_all(kind: type) -> dict[str, str]:
    return {name: text for each in reversed(kind.__mro__) for name, text in attribute_docstrings(each).items()}


def lifecycles_page() -> str:
    """The states of jobs, allocations and agents, as the server, the SDK and the tests read them."""
    parts = [
        "# States",
        "What happens in each state. An event that is not here is refused and changes nothing.",
    ]
    tables: Mapping[str, Mapping[tuple[StrEnum, StrEnum], StrEnum]] = {
        "Job": JOB_TRANSITIONS,  # type: ignore[dict-item]  # a Mapping's key is invariant; here it is only read
        "Agent": AGENT_TRANSITIONS,  # type: ignore[dict-item]  # likewise
        "Allocation": ALLOCATION_TRANSITIONS,  # type: ignore[dict-item]  # likewise
    }
    for title, transitions in tables.items():
        rows = [(f"`{state}`", f"`{event}`", f"`{after}`") for (state, event), after in transitions.items()]
        parts += [f"## {title}", table(("State", "Event", "Next state"), rows)]
    return "\n\n".join(parts)


# Markdown


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def in_row(text: str) -> str:
    """Text for a cell of a table: on one line."""
    return " ".join(text.split()).replace("|", "\\|")
