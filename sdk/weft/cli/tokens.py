"""`weft token`: makes, lists and removes users' tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from weft.api.token import DEFAULT_PROJECT, Scope, TokenList
from weft.cli import render
from weft.cli.options import Form, Format, Url, print_json
from weft.client import Client
from weft.command_line import command
from weft.terminal import Console

TokenName = Annotated[str, typer.Argument(metavar="NAME", help="The token's name.", show_default=False)]

group = typer.Typer(
    name="token", help="Create, list and remove users' tokens; for admins.", no_args_is_help=True, rich_markup_mode=None
)


def add_to(app: typer.Typer) -> None:
    """Adds the commands."""
    app.add_typer(group)


@group.command()
def create(
    name: TokenName,
    *,
    scope: Annotated[
        Scope,
        typer.Option("--scope", help="viewer reads; runner also submits and controls jobs; admin also manages tokens."),
    ] = Scope.RUNNER,
    project: Annotated[
        str, typer.Option("--project", help="The project whose jobs it sees; * for all.")
    ] = DEFAULT_PROJECT,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Create a token and print its secret, which is not shown again."""
    with Client(url) as client:
        made = client.create_token(name, scope=scope, project=project)
    if form is Format.JSON:
        print_json(made)
        return
    Console().out(made.token, highlight=False)
    told = f"token {made.name}: {made.scope} in {_projects(made.project)}; use it as WEFT_TOKEN, it is not shown again"
    Console(stderr=True, highlight=False, soft_wrap=True).print(told, markup=False)


@group.command()
def ls(url: Url = None, form: Form = Format.TABLE) -> None:
    """List tokens, without their secrets."""
    with Client(url) as client:
        found = client.tokens()
    if form is Format.JSON:
        print_json(TokenList(tokens=found))
    elif found:
        made = render.table("name", "scope", "project", "age")
        for each in found:
            made.add_row(each.name, each.scope.value, each.project, render.ago(render.now() - each.created_at))
        render.print_table(made)
    else:
        Console(highlight=False).print(f"no tokens; make one: {command('token create NAME')}", markup=False)


@group.command()
def rm(
    name: TokenName,
    project: Annotated[
        str | None,
        typer.Option("--project", help="Its project, where several have a token of that name.", show_default=False),
    ] = None,
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Remove a token."""
    with Client(url) as client:
        client.remove_token(name, project=project)
    if form is Format.JSON:
        print_json({"removed": [name]})
    else:
        Console(highlight=False).print(f"removed token {name}", markup=False)


def _projects(project: str) -> str:
    return "all projects" if project == "*" else f"project {project}"
