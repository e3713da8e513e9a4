"""A shard of a store that is used alone: what its process does, and what `--check` tells beforehand."""

from __future__ import annotations

import resource
import sys
import threading
from pathlib import Path

from weft.agent.startup import start_daemon
from weft_graph.program_text.listing import size_text
from weft_graph.rules.built_in import rule_name
from weft_kvstore.description.check import DescriptionError, check_description, digest
from weft_kvstore.description.form import read_description, shown_key
from weft_kvstore.description.records import StoreDescription
from weft_kvstore.encryption.curve_authenticator import CurveAuthenticator
from weft_kvstore.encryption.key_files import read_curve_keys
from weft_kvstore.errors import StoreError
from weft_kvstore.process import tune_process
from weft_kvstore.serving.daemon import ShardSettings
from weft_kvstore.serving.metrics import metrics_served
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.shard.job_shard import OpenStoppedError
from weft_kvstore.shard.links import SHOWN_DIGITS
from weft_kvstore.sharding import holdings


def placed(path: Path, shard: int | None = None) -> StoreDescription:
    """The description in a file, as shards can serve it. Raises OSError, and DescriptionError, which says where."""
    description = read_description(path)
    if not description.shards:
        example = 'shards = ["tcp://127.0.0.1:5555"]'
        raise DescriptionError(f"{path}: shards: none; a store of processes has an endpoint for each, as in {example}")
    check_description(description)
    if shard is not None and not 0 <= shard < len(description.shards):
        raise DescriptionError(f"{path}: shard {shard}: it has {len(description.shards)}, numbered from 0")
    return description


def serve_alone(path: Path, shard: int, settings: ShardSettings) -> None:
    """Serves one shard until a signal, or its parent's end, stops it. A line on standard output says when it is ready,
    and is not logged besides: the log, on standard error, has what goes wrong.

    Raises OSError, DescriptionError, CurveKeyError for the files with keys, and StoreError where it cannot listen or
    fails later.
    """
    description = placed(path, shard)
    authenticator = None
    if settings.curve_keys is not None:
        authenticator = CurveAuthenticator(read_curve_keys(settings.curve_keys), settings.curve_clients)
    _check_key(description, shard, None if authenticator is None else authenticator.public)
    stop = start_daemon(settings.name, exit_with_parent=settings.exit_with_parent)
    tune_process()
    if settings.job_memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (settings.job_memory, settings.job_memory))
    with (
        _listening(description, shard, settings, authenticator) as server,
        metrics_served(settings.metrics_host, settings.metrics_port, server.statistics) as metrics,
    ):
        threading.Thread(target=server.wake_at_end, args=(stop,), name="await-shard", daemon=True).start()
        try:
            server.open(description, shard, stopped=stop.is_set)
        except OpenStoppedError:
            return
        held = sum(one.nbytes for one in holdings(description)[shard])
        which = f"shard {shard} of {len(description.shards)}"
        at = f"{server.endpoint}{_told_of(authenticator)}"
        _say(f"ready: {which} of {path} listens at {at} and holds {size_text(held)} of values; Ctrl-C ends it")
        if metrics is not None:
            _say(f"metrics at {metrics}")
        stop.wait()
        if server.error is not None:
            raise StoreError(f"the shard has failed: {server.error}")


def show_holdings(path: Path, shard: int | None) -> None:
    """Prints what each shard, or one, will hold. Raises as `placed` does."""
    from rich import box  # A shard that serves does without.
    from rich.console import Console
    from rich.table import Table

    description = placed(path, shard)
    console = Console(highlight=False)
    slots = f"{description.slots} slot{'s' if description.slots > 1 else ''}"
    rule = f"rule {rule_name(description.rule)}"
    links = ", links encrypted" if description.curve_keys else ""
    console.print(f"{path}: job {description.job!r}, {slots}, {description.mode.value}, {rule}{links}", markup=False)
    console.print(f"digest {digest(description).hex()[:SHOWN_DIGITS]}", markup=False)
    for number, held in enumerate(holdings(description)):
        if shard not in {None, number}:
            continue
        values, states = sum(one.nbytes for one in held), sum(one.state_bytes for one in held)
        table = Table(box=box.SIMPLE_HEAD, title_justify="left", show_footer=True, pad_edge=False, padding=(0, 1, 0, 0))
        table.title = f"shard {number} at {description.shards[number] or 'no endpoint yet'}"
        table.add_column("key", f"{len(held)} key{'' if len(held) == 1 else 's'}", overflow="fold")
        for name in ("type", "update", "here"):
            table.add_column(name, no_wrap=True)
        table.add_column("values", size_text(values), justify="right", no_wrap=True)
        table.add_column("state", size_text(states), justify="right", no_wrap=True)
        for one in held:
            kind = f"{one.key.dtype}{list(one.key.shape)}"
            update = one.key.update.value if one.key.slots else "none"
            sizes = size_text(one.nbytes), size_text(one.state_bytes)
            table.add_row(shown_key(one.key), kind, update, one.parts, *sizes)
        console.print(table, markup=False)
    command = f"python -m weft_kvstore --description {path} --shard"
    console.print("To start:", markup=False)
    for number in range(len(description.shards)):
        if shard in {None, number}:
            keys = " --curve-keys FILE" if description.curve_keys else ""
            console.print(f"  {command} {number}{keys}", soft_wrap=True, markup=False)


def _listening(
    description: StoreDescription, shard: int, settings: ShardSettings, authenticator: CurveAuthenticator | None
) -> ShardServer:
    """A server at `bind`, or at the endpoint that the description says."""
    bind = settings.bind
    endpoint = description.shards[shard] if bind is None else bind
    if not endpoint:
        raise DescriptionError(f"shards[{shard}]: no endpoint to listen on; say one with --bind")
    try:
        return ShardServer(
            endpoint,
            settings=settings.link,
            apply_threads=settings.apply_threads,
            tables=settings.tables,
            authenticator=authenticator,
        )
    except StoreError as error:
        hint = "" if bind is not None else "; that is its endpoint in the description, and --bind says another"
        raise StoreError(f"{error}{hint}") from None


def _check_key(description: StoreDescription, shard: int, key: str | None) -> None:
    """Raises DescriptionError where clients would expect another key of this shard, or none."""
    said = description.curve_keys[shard] if description.curve_keys else None
    if said == key:
        return
    if key is None:
        raise DescriptionError(f"curve_keys[{shard}]: links are encrypted; --curve-keys FILE has this shard's own keys")
    if key in description.curve_keys:
        told = f"the file has the keys of shard {description.curve_keys.index(key)}, and this is shard {shard}"
        raise DescriptionError(f"curve_keys[{shard}]: {told}")
    if said is None:
        wanted = ", ".join(f'"{key}"' if one == shard else '"..."' for one in range(len(description.shards)))
        raise DescriptionError(f"curve_keys: missing; with these keys of shard {shard} it says curve_keys = [{wanted}]")
    raise DescriptionError(f"curve_keys[{shard}]: {said}; the file that --curve-keys names has the keys of {key}")


def _told_of(authenticator: CurveAuthenticator | None) -> str:
    """Whom its links are open to."""
    if authenticator is None:
        return ""
    count = authenticator.client_count
    if count is None:
        return ", encrypted,"
    return f", encrypted and open to {count} client{'' if count == 1 else 's'},"


def _say(line: str) -> None:
    """A line on standard output, at once: who starts shards waits for it."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
