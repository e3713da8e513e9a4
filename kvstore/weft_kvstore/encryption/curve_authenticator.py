"""What a shard's socket asks of whoever connects: that it knows the shard's key, and has one that is let in."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.auth.thread import ThreadAuthenticator

from weft_kvstore.encryption.client_keys import ClientKeys
from weft_kvstore.encryption.curve_keys import CurveKeys
from weft_kvstore.encryption.pairs import check_pair

DOMAIN: Final = "weft"

TOLD_KEYS: Final = 100
"""Keys that were not let in are logged once each, and so many at most: who tries must not fill the log."""

_log = logging.getLogger("weft.shard")


class CurveAuthenticator:
    """`keys` are the shard's. `clients`: a directory with the public keys of those who are let in, as it is when one
    comes; None lets in whoever knows the shard's public key. Raises OSError and CurveKeyError."""

    def __init__(self, keys: CurveKeys, clients: Path | None = None) -> None:
        check_pair(keys)
        self.public = keys.public
        self._keys = keys
        self._clients = None if clients is None else ClientKeys(clients)
        self._told: set[str] = set()
        self._asking: ThreadAuthenticator | None = None

    def apply_to(self, context: zmq.Context[Any], socket: zmq.Socket[Any]) -> None:
        """Before the socket is bound. A thread of ZeroMQ's own protocol for it asks for each connection's key."""
        if self._clients is not None:
            self._asking = ThreadAuthenticator(context, log=_log)
            self._asking.start()
            self._asking.configure_curve_callback(domain=DOMAIN, credentials_provider=self)
            # If that thread were gone, nobody would be let in.
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            socket.setsockopt_string(zmq.ZAP_DOMAIN, DOMAIN)
        socket.curve_publickey = self._keys.public.encode()
        socket.curve_secretkey = self._keys.secret.encode()
        socket.curve_server = True

    @property
    def client_count(self) -> int | None:
        """How many clients were let in at the last look; None: whoever knows the public key."""
        return None if self._clients is None else len(self._clients)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a client with that public key is let in, by the name that pyzmq has for the question. Called on the
        thread that asks, which has to go on."""
        public = key.decode()
        try:
            if self._clients is None or self._clients.has(public):
                self._told.discard(public)
                return True
        except Exception:  # noqa: BLE001  # the thread's outermost frame of ours
            _log.exception("a client with the CURVE key %s is not let in", public)
            return False
        if public not in self._told and len(self._told) < TOLD_KEYS:
            self._told.add(public)
            where = self._clients.directory
            _log.warning("a client with the CURVE key %s is not let in: no NAME.key in %s has it", public, where)
            if len(self._told) == TOLD_KEYS:
                _log.warning("keys that are not let in are logged no more: there were %d", TOLD_KEYS)
        return False

    def stop(self) -> None:
        """Before the context is terminated."""
        asking, self._asking = self._asking, None
        if asking is None:
            return
        if not asking.is_alive() and asking.pipe is not None:  # To send it word would wait for ever.
            asking.pipe.close(0)
            asking.pipe = None  # type: ignore[assignment]  # as its own `stop` does
        asking.stop()
