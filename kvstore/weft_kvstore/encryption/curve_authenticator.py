"""Whom a shard's socket lets in: clients that know the shard's key, and whose public keys it knows."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.auth.thread import ThreadAuthenticator

from weft_kvstore.encryption.curve_keys import CurveKeyError, CurveKeys
from weft_kvstore.encryption.key_files import PUBLIC_SUFFIX, check_pair, read_public_key

DOMAIN: Final = "weft"

MAX_LOGGED_KEYS: Final = 100
"""Keys that were not let in are logged once each, and so many at most: who tries must not fill the log."""

_log = logging.getLogger("weft.shard")


class CurveAuthenticator:
    """`keys` are the shard's. `clients`: the public keys of those who are let in, or a directory with them, as it is
    when one comes; None lets in whoever knows the shard's public key. Raises OSError and CurveKeyError."""

    def __init__(self, keys: CurveKeys, clients: Path | Collection[str] | None = None) -> None:
        check_pair(keys)
        self.public = keys.public
        self._keys = keys
        self._clients = clients
        self._refused: set[str] = set()
        self._wrong_files: set[str] = set()
        """What was logged, of clients and of files, and is so still."""
        self._asking: ThreadAuthenticator | None = None
        if isinstance(clients, Path):
            for error in public_keys_in(clients)[1]:
                raise error

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

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a client with that public key is let in, by the name that pyzmq has for the question. Called on the
        thread that asks, which has to go on."""
        public = key.decode()
        try:
            if self._clients is None or public in self._known():
                self._refused.discard(public)
                return True
        except Exception:  # noqa: BLE001  # the thread's outermost frame of ours
            _log.exception("a client with the CURVE key %s is not let in", public)
            return False
        if public not in self._refused and len(self._refused) < MAX_LOGGED_KEYS:
            self._refused.add(public)
            where = f"no NAME.key in {self._clients} has it" if isinstance(self._clients, Path) else "it is no worker's"
            _log.warning("a client with the CURVE key %s is not let in: %s", public, where)
            if len(self._refused) == MAX_LOGGED_KEYS:
                _log.warning("keys that are not let in are logged no more: there were %d", MAX_LOGGED_KEYS)
        return False

    def _known(self) -> Collection[str]:
        """The keys of those who are let in. The files of a directory are read each time, some 20 us a file: any may
        have changed."""
        if not isinstance(self._clients, Path):
            return self._clients or ()
        try:
            keys, errors = public_keys_in(self._clients)
        except OSError as error:
            keys, errors = [], [error]
        wrong = {str(error) for error in errors}
        for text in sorted(wrong - self._wrong_files):
            _log.warning("keys of clients that are not let in: %s", text)
        self._wrong_files = wrong
        return keys

    def stop(self) -> None:
        """Before the context is terminated."""
        asking, self._asking = self._asking, None
        if asking is None:
            return
        if not asking.is_alive() and asking.pipe is not None:  # To send it word would wait for ever.
            asking.pipe.close(0)
            asking.pipe = None  # type: ignore[assignment]  # as its own `stop` does
        asking.stop()


def public_keys_in(directory: Path) -> tuple[list[str], list[CurveKeyError | OSError]]:
    """The key of each file that ends in .key, and what is wrong with the others. Raises OSError where there is no
    directory."""
    keys: list[str] = []
    errors: list[CurveKeyError | OSError] = []
    for name in sorted(os.listdir(directory)):
        if name.startswith(".") or not name.endswith(PUBLIC_SUFFIX):
            continue
        try:
            keys.append(read_public_key(directory / name))
        except FileNotFoundError:
            continue  # It has gone meanwhile, or leads to what is not there.
        except (CurveKeyError, OSError) as error:
            errors.append(error)
    return keys, errors
