"""What a shard's socket asks of whoever connects: that it knows the shard's key, and has one that is let in."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.auth.thread import ThreadAuthenticator

from weft_kvstore.encryption.curve_keys import CurveKeyError, CurveKeys
from weft_kvstore.encryption.key_files import PUBLIC_END, read_public_keys
from weft_kvstore.encryption.pairs import check_pair

DOMAIN: Final = "weft"

TOLD_KEYS: Final = 100
"""Keys that were not let in are logged once each, and so many at most: who tries must not fill the log."""

SETTLED_NS: Final = 1_000_000_000
"""What was changed less long ago is read at each connection: a file system's clock may not tell two changes apart."""

_log = logging.getLogger("weft.shard")


class ShardLock:
    """`keys` are the shard's. `clients`: a directory with the public keys of those who are let in, read again where it
    was changed; None lets in whoever knows the shard's public key. Raises OSError and CurveKeyError."""

    def __init__(self, keys: CurveKeys, clients: Path | None = None) -> None:
        check_pair(keys)
        self.public = keys.public
        self._keys = keys
        self._clients = clients
        self._read_at = 0
        self._trouble = ""
        self._known = frozenset[str]()
        self._told: set[str] = set()
        if clients is not None:
            self._read(clients)
        self._guard: ThreadAuthenticator | None = None

    def put_on(self, context: zmq.Context[Any], socket: zmq.Socket[Any]) -> None:
        """Before the socket is bound. A thread of ZeroMQ's own protocol for it asks for each connection's key."""
        if self._clients is not None:
            self._guard = ThreadAuthenticator(context, log=_log)
            self._guard.start()
            self._guard.configure_curve_callback(domain=DOMAIN, credentials_provider=self)
            # If that thread were gone, nobody would be let in.
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            socket.setsockopt_string(zmq.ZAP_DOMAIN, DOMAIN)
        socket.curve_publickey = self._keys.public.encode()
        socket.curve_secretkey = self._keys.secret.encode()
        socket.curve_server = True

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a client with that public key is let in. Called on the guard's thread."""
        public = key.decode()
        assert self._clients is not None
        try:
            self._read(self._clients)
            self._trouble = ""
        except (OSError, CurveKeyError) as error:
            if str(error) != self._trouble:  # Once, whoever connects how often.
                _log.warning("keys of clients cannot be read anew: %s", error)
            self._trouble = str(error)
        if public not in self._known and public not in self._told and len(self._told) < TOLD_KEYS:
            self._told.add(public)
            _log.warning("a client with the CURVE key %s is not let in: it is not in %s", public, self._clients)
        return public in self._known

    def _read(self, clients: Path) -> None:
        """Reads the keys where the directory, or a file of it, was changed since."""
        now = time.time_ns()
        changed = max(path.stat().st_ctime_ns for path in (clients, *clients.glob(f"*{PUBLIC_END}")))
        if changed != self._read_at:
            self._known = read_public_keys(clients)
            self._read_at = changed if changed < now - SETTLED_NS else 0

    def take_off(self) -> None:
        """Before the context is terminated."""
        if self._guard is not None:
            self._guard.stop()
            self._guard = None
