"""Whom a shard's socket lets in: clients that know the shard's key and whose public keys lie in a directory."""

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

# --- The public keys of clients, as a directory has them now ----------------------------------------------------------


_log = logging.getLogger("weft.shard")


class GivenKeys:
    """A few public keys, which stay as they are."""

    def __init__(self, keys: Collection[str]) -> None:
        self._keys = frozenset(keys)
        self.told = "it is none of this job's workers'"

    def __len__(self) -> int:
        return len(self._keys)

    def has(self, public: str) -> bool:
        return public in self._keys


class ClientKeys:
    """The key of each file that ends in .key, read anew for each connection: some 20 us a file. Files without a valid
    key are skipped, and logged once for as long as they are so. Raises OSError and CurveKeyError, which names the file,
    where something is wrong at first."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.told = f"no NAME.key in {directory} has it"
        """Why a key is not let in."""
        self._trouble: set[str] = set()
        self._keys, errors = self._read()
        for error in errors:
            raise error

    def __len__(self) -> int:
        """How many files had a key at the last look."""
        return len(self._keys)

    def has(self, public: str) -> bool:
        """Whether a file has this key. What is no longer there, or cannot be read, has none."""
        try:
            self._keys, errors = self._read()
        except OSError as error:
            self._keys, errors = [], [error]
        trouble = {str(error) for error in errors}
        for told in sorted(trouble - self._trouble):
            _log.warning("keys of clients that are not let in: %s", told)
        self._trouble = trouble
        return public in self._keys

    def _read(self) -> tuple[list[str], list[CurveKeyError | OSError]]:
        """The keys, and what is wrong with the other files. Raises OSError where there is no directory."""
        keys: list[str] = []
        errors: list[CurveKeyError | OSError] = []
        for name in sorted(os.listdir(self.directory)):
            if name.startswith(".") or not name.endswith(PUBLIC_SUFFIX):
                continue
            try:
                keys.append(read_public_key(self.directory / name))
            except FileNotFoundError:
                continue  # It has gone meanwhile, or leads to what is not there.
            except (CurveKeyError, OSError) as error:
                errors.append(error)
        return keys, errors


# --- What a shard's socket asks of whoever connects: that it knows the shard's key, and has one that is let in --------


DOMAIN: Final = "weft"

TOLD_KEYS: Final = 100
"""Keys that were not let in are logged once each, and so many at most: who tries must not fill the log."""


class CurveAuthenticator:
    """`keys` are the shard's. `clients`: the public keys of those who are let in, or a directory with them, as it is
    when one comes; None lets in whoever knows the shard's public key. Raises OSError and CurveKeyError."""

    def __init__(self, keys: CurveKeys, clients: Path | Collection[str] | None = None) -> None:
        check_pair(keys)
        self.public = keys.public
        self._keys = keys
        self._clients: ClientKeys | GivenKeys | None = None
        if clients is not None:
            self._clients = ClientKeys(clients) if isinstance(clients, Path) else GivenKeys(clients)
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
            _log.warning("a client with the CURVE key %s is not let in: %s", public, self._clients.told)
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
