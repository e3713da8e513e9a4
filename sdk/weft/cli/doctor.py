"""`weft doctor`: what weft needs of this machine and of the server, looked at before something fails for want of it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.text import Text

from weft.api.agent import AgentKind
from weft.api.lifecycle import AgentState
from weft.cli import render
from weft.cli.options import Form, Format, Url, print_json
from weft.cli.up import DIRECTORY, Directory
from weft.client import DEFAULT_URL, URL_VARIABLE, Client
from weft.cluster import HOST
from weft.command_line import command
from weft.errors import (
    DEFAULT_PORT,
    ArgumentError,
    ClusterError,
    ConnectError,
    ForbiddenError,
    UnauthenticatedError,
    WeftError,
)
from weft.exclusive import check_port_is_free, holder
from weft.http import Retry
from weft.terminal import Console

ANSWER_S = 5.0
OLDEST_PYTHON = (3, 11)
FREE_BYTES, SCARCE_BYTES = 1 << 30, 100 << 20
"""Of the disk: below the first a result or a snapshot may not fit; below the second hardly a database does."""
OPEN_FILES, SCARCE_FILES = 1024, 128
"""A daemon has a socket for each process that it talks to."""
SHARED_BYTES = 1 << 20
"""Tried out, of the memory that clients and shards of one machine share."""
GPUS = Path("/proc/driver/nvidia/gpus")


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "red"}


@dataclass(frozen=True, slots=True)
class Check:
    """What was found, and what to do about it where it is not well."""

    name: str
    status: Status
    found: str
    remedy: str = ""


def add_to(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(doctor)


def doctor(
    *,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port that `weft up` would take.")] = DEFAULT_PORT,
    directory: Directory = DIRECTORY,
    data_root: Annotated[Path, typer.Option(help="The folder of your data.")] = Path(),
    url: Url = None,
    form: Form = Format.TABLE,
) -> None:
    """Check this machine and the server: one line each, with the remedy; exit code 1 if something fails."""
    server = list(_server(url))
    checks = [
        _python(),
        _packages(),
        _torch(),
        _port(port, directory, len(server) > 1 and urlsplit(_url(url)).port == port),
        _disk(directory),
        _shared_memory(),
        _open_files(),
        _gpu(),
        _data(data_root),
        *server,
    ]
    if form is Format.JSON:
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        out, width = Console(soft_wrap=True, highlight=False), max(len(check.name) for check in checks)
        for check in checks:
            remedy = f": {check.remedy}" if check.remedy else ""
            status = (f"{check.status:4}", STYLES[check.status])
            out.print(Text.assemble(status, f"  {check.name:{width}}  {check.found}{remedy}"))
    if any(check.status is Status.FAIL for check in checks):
        raise typer.Exit(1)


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < OLDEST_PYTHON:
        return Check("python", Status.FAIL, found, "install Python 3.11 or newer")
    if sys.platform != "linux":
        return Check("python", Status.WARN, found, "the SDK runs here; servers and workers need Linux")
    return Check("python", Status.OK, found)


def _packages() -> Check:
    """Those of the extra `cluster`, as weft's own metadata lists them."""
    needed = [
        re.split(r"[^A-Za-z0-9._-]", each)[0]
        for each in importlib.metadata.requires("weft") or ()
        if re.search(r"""extra == ['"]cluster['"]""", each)
    ]
    missing = [name for name in needed if not _is_installed(name)]
    weft = f"weft {importlib.metadata.version('weft')}"
    if missing:
        lacks = f"{weft} without {', '.join(missing)}, which `weft up` needs"
        return Check("packages", Status.WARN, lacks, "pip install 'weft[cluster]'")
    return Check("packages", Status.OK, f"{weft} with all that a cluster needs")


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _torch() -> Check:
    missing = [name for name in ("torch", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        lacks = f"{' and '.join(missing)} not installed, which models from PyTorch need"
        return Check("pytorch", Status.WARN, lacks, f"pip install {' '.join(missing)}")
    return Check("pytorch", Status.OK, f"torch {importlib.metadata.version('torch')}")


def _port(port: int, directory: Path, is_served: bool) -> Check:
    try:
        check_port_is_free(HOST, port)
    except ClusterError:
        with contextlib.suppress(OSError, ClusterError):
            process = holder(directory)
            if process is not None:
                return Check("port", Status.OK, f"{port}: a cluster runs in {directory.absolute()} (process {process})")
        if is_served:
            return Check("port", Status.OK, f"{port} is that of the server below")
        return Check("port", Status.WARN, f"another program has port {port}", command(f"up --port {port + 1}"))
    return Check("port", Status.OK, f"{port} is free: `weft up` can take it")


def _url(url: str | None) -> str:
    return url or os.environ.get(URL_VARIABLE) or DEFAULT_URL


def _disk(directory: Path) -> Check:
    there = next(each for each in (directory.absolute(), *directory.absolute().parents) if each.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return Check("disk", Status.FAIL, f"{there} cannot be written", "name another place with --directory")
    free = shutil.disk_usage(there).free
    status = Status.OK if free >= FREE_BYTES else Status.WARN if free >= SCARCE_BYTES else Status.FAIL
    remedy = "" if status is Status.OK else f"make room, or name another place with --directory; {command('rm ID')}"
    return Check("disk", status, f"{render.size(free)} free below {there}", remedy)


def _shared_memory() -> Check:
    try:
        memory = os.memfd_create("weft-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(memory, 0, SHARED_BYTES)
        finally:
            os.close(memory)
    except (AttributeError, OSError) as error:
        found = f"processes of this machine cannot share memory ({error})"
        return Check("shared memory", Status.WARN, found, "all works, slower; allow memfd_create in the container")
    return Check("shared memory", Status.OK, "processes of this machine can share memory")


def _open_files() -> Check:
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files in {resource.RLIM_INFINITY} or files >= OPEN_FILES:
        return Check("open files", Status.OK, f"at most {'any number' if files < 0 else files} (ulimit -n)")
    status = Status.WARN if files >= SCARCE_FILES else Status.FAIL
    more = OPEN_FILES if hard < 0 else min(4 * OPEN_FILES, max(hard, files))
    return Check("open files", status, f"at most {files} (ulimit -n)", f"ulimit -n {more}")


def _gpu() -> Check:
    models = []
    for file in sorted(GPUS.glob("*/information")):
        named = re.search(r"Model:\s*(.+)", file.read_text())
        models.append(named[1].strip() if named else "unknown")
    if not models:
        return Check("gpu", Status.OK, "none; workers compute on the CPU")
    if importlib.util.find_spec("cupy") is None:
        return Check("gpu", Status.WARN, f"{', '.join(models)}, without CuPy", "pip install 'weft[cuda]'")
    return Check("gpu", Status.OK, ", ".join(models))


def _data(data_root: Path) -> Check:
    there = data_root.absolute()
    if not there.is_dir():
        return Check(
            "data", Status.FAIL, f"there is no directory {there}", "name the one of your data with --data-root"
        )
    if not os.access(there, os.R_OK | os.X_OK):
        return Check("data", Status.FAIL, f"{there} cannot be read", f"chmod u+rx {there}")
    closed = [each.name for each in there.glob("*.npz") if not os.access(each, os.R_OK)]
    if closed:
        found = f"{', '.join(sorted(closed))} in {there} cannot be read"
        return Check("data", Status.FAIL, found, f"chmod u+r {there / min(closed)}")
    return Check("data", Status.OK, f"{there} can be read")


def _server(url: str | None) -> Iterator[Check]:
    """Whether it answers; then its release, the token and the agents."""
    try:
        client = Client(url, timeout_s=ANSWER_S, retry=Retry(attempts=1))
    except ArgumentError as error:
        yield Check("server", Status.FAIL, str(error), f"correct {URL_VARIABLE}, or --url")
        return
    named = bool(url) or URL_VARIABLE in os.environ
    with client:
        for name, look in (("server", _release), ("token", _token), ("agents", _agents)):
            try:
                check = _asked(name, look, client)
            except ConnectError as error:  # there need not be one before `weft up`
                status = Status.FAIL if named else Status.WARN
                yield Check(name, status, str(error).split(";")[0], f"{command('up')}, or set {URL_VARIABLE}")
                return
            yield check
            if check.status is Status.FAIL:
                return


def _asked(name: str, look: Callable[[Client], Check], client: Client) -> Check:
    """What the look finds, or why the server refuses it. Raises ConnectError."""
    try:
        return look(client)
    except ConnectError:
        raise
    except UnauthenticatedError:
        found = "the server does not know your token" if os.environ.get("WEFT_TOKEN") else "the server asks for a token"
        return Check(name, Status.FAIL, found, f"set WEFT_TOKEN; an admin makes one: {command('token create NAME')}")
    except ForbiddenError as error:
        return Check(name, Status.FAIL, str(error), "ask an admin for a token with this scope")
    except WeftError as error:
        return Check(name, Status.FAIL, str(error).splitlines()[0], "see the server's log")


def _release(client: Client) -> Check:
    client.http.send("GET", "/readyz")
    try:
        theirs = str(client.http.send("GET", "/openapi.json").json()["info"]["version"])
    except ConnectError:
        return Check("server", Status.WARN, f"ready at {client.url}, but slow to say its release", "try again")
    except (ValueError, LookupError, TypeError):
        return Check("server", Status.FAIL, f"what answers at {client.url} is no weft server", f"set {URL_VARIABLE}")
    ours = importlib.metadata.version("weft")
    found = f"ready at {client.url}, release {theirs}"
    if theirs != ours:
        return Check("server", Status.WARN, f"{found}; here is {ours}", f"pip install 'weft=={theirs}'")
    return Check("server", Status.OK, found)


def _token(client: Client) -> Check:
    next(client.jobs(), None)
    found = "accepted" if os.environ.get("WEFT_TOKEN") else "none, and none is asked for"
    return Check("token", Status.OK, found)


def _agents(client: Client) -> Check:
    found = client.agents()
    alive = Counter(agent.kind for agent in found if agent.state is AgentState.ALIVE)
    told = render.places(alive[AgentKind.WORKER], alive[AgentKind.SHARD])
    silent = [agent.name for agent in found if agent.state is AgentState.SUSPECTED]
    if not alive[AgentKind.WORKER]:
        return Check("agents", Status.WARN, "no worker is there, so jobs wait", f"start workers; {command('agents')}")
    if silent:
        return Check("agents", Status.WARN, f"{told}; silent: {', '.join(silent)}", f"see {command('agents')}")
    return Check("agents", Status.OK, told)
