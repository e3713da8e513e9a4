"""Which endpoints of shards workers can reach: `tcp://HOST:PORT`, or `ipc://PATH` on one machine. Pure."""

from __future__ import annotations

import ipaddress
import re

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\[\]/:@\s]+):(?P<port>[0-9]{1,5})")
_IPC = re.compile(r"ipc://[^\s*]{1,107}")
"""A socket's path has at most 107 bytes."""


def endpoint_fault(endpoint: str) -> str | None:
    """What is wrong with it, as words behind its name; None where a worker can connect to it."""
    if _IPC.fullmatch(endpoint):
        return None
    found = _TCP.fullmatch(endpoint)
    if found is None:
        return "is neither tcp://HOST:PORT nor ipc://PATH"
    if not 0 < int(found["port"]) < 1 << 16:
        return "has no port that can be connected to"
    if found["host"] == "*" or _is_unspecified(found["host"].strip("[]")):
        return "names every address of a machine, not one that workers can reach"
    return None


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False  # a name
