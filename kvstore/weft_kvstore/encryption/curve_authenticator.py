"""Which clients a shard's socket accepts: those that know the shard's key, and whose public keys it knows."""

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
"""Rejected keys are logged once each, and at most so many: a stranger must not fill the log."""

_log = logging.getLogger("weft.shard")


class CurveAuthenticator:
    """`keys` are the shard's. `clients`: the public keys that are accepted, or a directory with their files, which is
    read at each connection; None accepts all that know the shard's public key. Raises OSError and CurveKeyError."""

    def __init__(self, keys: CurveKeys, clients: Path | Collection[str] | None = None) -> None:
        check_pair(keys)
        self.public = keys.public
        self._keys = keys
        self._clients = clients
        self._refused: set[str] = set()
        self._wrong_files: set[str] = set()
        """Keys and files that were logged as wrong, and are so still."""
        self._zap_thread: ThreadAuthenticator | None = None
        if isinstance(clients, Path):
            for error in public_keys_in(clients)[1]:
                raise error

    def apply_to(self, context: zmq.Context[Any], socket: zmq.Socket[Any]) -> None:
        """To be called before the socket is bound. A thread answers ZeroMQ's authentication requests (ZAP)."""
        if self._clients is not None:
            self._zap_thread = ThreadAuthenticator(context, log=_log)
            self._zap_thread.start()
            self._zap_thread.configure_curve_callback(domain=DOMAIN, credentials_provider=self)
            # Without that thread no client is accepted.
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
            socket.setsockopt_string(zmq.ZAP_DOMAIN, DOMAIN)
        socket.curve_publickey = self._keys.public.encode()
        socket.curve_secretkey = self._keys.secret.encode()
        socket.curve_server = True

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a client with that public key is accepted; the name is pyzmq's. Called on the authentication thread,
        which must not end."""
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
        """The accepted keys. The files of a directory are read each time, some 20 us a file: any may have changed."""
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
        """To be called before the context is terminated."""
        thread, self._zap_thread = self._zap_thread, None
        if thread is None:
            return
        if not thread.is_alive() and thread.pipe is not None:  # A message to it would block for ever.
            thread.pipe.close(0)
            thread.pipe = None  # type: ignore[assignment]  # as its own `stop` does
        thread.stop()


def public_keys_in(directory: Path) -> tuple[list[str], list[CurveKeyError | OSError]]:
    """The key of each file that ends in .key, and the errors of the others. Raises OSError without a directory."""
    keys: list[str] = []
    errors: list[CurveKeyError | OSError] = []
    for name in sorted(os.listdir(directory)):
        if name.startswith(".") or not name.endswith(PUBLIC_SUFFIX):
            continue
        try:
            keys.append(read_public_key(directory / name))
        except FileNotFoundError:
            continue  # It was removed meanwhile, or is a link to nothing.
        except (CurveKeyError, OSError) as error:
            errors.append(error)
    return keys, errors
