"""CURVE, ZeroMQ's encrypted links: pairs of keys, their files, and which clients a shard accepts."""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import zmq
from zmq.auth.thread import ThreadAuthenticator

from weft_kvstore.description.check import KEY_CHARACTERS, CurveKeyError, check_public, is_curve_key

# --- A pair of CURVE keys: the public one names its owner, the secret one proves it -----------------------------------


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """A pair, in Z85. Raises CurveKeyError for what is none; neither key is in its text, for they may be swapped."""

    public: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        for which, key in (("public", self.public), ("secret", self.secret)):
            if not is_curve_key(key):
                raise CurveKeyError(f"the {which} key is not {KEY_CHARACTERS} characters of Z85")
        if zmq.curve_public(self.secret.encode()).decode() != self.public:
            raise CurveKeyError("the secret key does not belong to the public key")


def new_curve_keys() -> CurveKeys:
    """A new random pair."""
    public, secret = zmq.curve_keypair()
    return CurveKeys(public.decode(), secret.decode())


# --- Files of CURVE keys, in the format of ZeroMQ's own tools ---------------------------------------------------------


PUBLIC_SUFFIX: Final = ".key"
PAIR_SUFFIX: Final = ".key_secret"

MAX_FILE_BYTES: Final = 1 << 16
"""A pair takes some 300."""

_LINE: Final = re.compile(r"^\s*(public|secret)-key\s*=[ \t'\"]*([^\s'\"]+)", re.MULTILINE)
_PUBLIC_TEXT: Final = """# A public CURVE key: give it to whoever should accept its owner.
curve
    public-key = "{0.public}"
"""
_PAIR_TEXT: Final = """# A secret CURVE key: for the process alone whose key it is.
curve
    public-key = "{0.public}"
    secret-key = "{0.secret}"
"""


def make_key_files(path: Path) -> tuple[Path, Path, CurveKeys]:
    """Writes a new pair to PATH.key and, readable by its owner alone, PATH.key_secret. Raises OSError; existing files
    are not overwritten."""
    keys = new_curve_keys()
    public, secret = path.with_name(path.name + PUBLIC_SUFFIX), path.with_name(path.name + PAIR_SUFFIX)
    _write(secret, _PAIR_TEXT.format(keys), 0o600)
    try:
        _write(public, _PUBLIC_TEXT.format(keys), 0o644)
    except BaseException:
        secret.unlink()
        raise
    return public, secret, keys


def _write(path: Path, text: str, mode: int) -> None:
    """Writes a new file, which has this mode from the beginning; removes it if writing fails."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="ascii") as file:
        try:
            os.fchmod(file.fileno(), mode)  # The umask may have taken some of it away.
            file.write(text)
            file.flush()
        except BaseException:
            path.unlink()
            raise


def read_curve_keys(path: Path) -> CurveKeys:
    """The pair in a PATH.key_secret. Raises OSError, and CurveKeyError, which names the file, also if everybody on this
    machine can read or write it."""
    keys, mode = _keys_in(path)
    if "secret" not in keys:
        raise CurveKeyError(f"{path}: it has no secret key; the file that ends in {PAIR_SUFFIX} does")
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        advice = f"chmod 600 {path}, or where it is a mounted secret a mode of 0400"
        raise CurveKeyError(f"{path}: everybody on this machine can read or write the secret key: {advice}")
    try:
        return CurveKeys(**keys)
    except CurveKeyError as error:
        raise CurveKeyError(f"{path}: {error}") from None


def read_public_key(path: Path) -> str:
    """The public key in a file. Raises OSError, and CurveKeyError, which names the file."""
    public = _keys_in(path)[0]["public"]
    try:
        check_public(public)
    except CurveKeyError as error:
        raise CurveKeyError(f"{path}: {error}") from None
    return public


def _keys_in(path: Path) -> tuple[dict[str, str], int]:
    """The keys in a file by `public` and `secret`, and its mode. Rejects pipes, which would block, and large files."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise CurveKeyError(f"{path}: not a regular file of at most {MAX_FILE_BYTES} bytes")
        text = os.read(file, MAX_FILE_BYTES).decode(errors="replace")
    finally:
        os.close(file)
    keys = dict(reversed(_LINE.findall(text)))  # The first of a kind counts.
    if "public" not in keys:
        raise CurveKeyError(f"{path}: it has no CURVE key")
    return keys, status.st_mode


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


# --- Which clients a shard accepts ------------------------------------------------------------------------------------


DOMAIN: Final = "weft"

MAX_LOGGED_KEYS: Final = 100
"""Rejected keys are logged once each, and at most so many: a stranger must not fill the log."""

_log = logging.getLogger("weft.shard")


class CurveAuthenticator:
    """`keys` are the shard's. `clients`: the public keys that are accepted, or a directory with their files, which is
    read at each connection; None accepts all that know the shard's public key. Raises OSError and CurveKeyError."""

    def __init__(self, keys: CurveKeys, clients: Path | Collection[str] | None = None) -> None:
        self.public = keys.public
        self._keys = keys
        self._clients = clients
        self._logged_keys: set[str] = set()
        self._logged_errors: set[str] = set()
        """The errors of client keys' files that are logged, and still so."""
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
            if self._clients is None or public in self._accepted():
                self._logged_keys.discard(public)
                return True
        except Exception:  # noqa: BLE001  # the thread's outermost frame of ours
            _log.exception("a client with the CURVE key %s is rejected", public)
            return False
        if public not in self._logged_keys and len(self._logged_keys) < MAX_LOGGED_KEYS:
            self._logged_keys.add(public)
            where = f"no NAME.key in {self._clients} has it" if isinstance(self._clients, Path) else "it is no worker's"
            _log.warning("a client with the CURVE key %s is rejected: %s", public, where)
            if len(self._logged_keys) == MAX_LOGGED_KEYS:
                _log.warning("further rejected keys are not logged: there were %d", MAX_LOGGED_KEYS)
        return False

    def _accepted(self) -> Collection[str]:
        """The accepted keys. The files of a directory are read each time, some 20 us a file: any may have changed."""
        if not isinstance(self._clients, Path):
            return self._clients or ()
        try:
            keys, errors = public_keys_in(self._clients)
        except OSError as error:
            keys, errors = [], [error]
        texts = {str(error) for error in errors}
        for text in sorted(texts - self._logged_errors):
            _log.warning("a file of client keys is skipped: %s", text)
        self._logged_errors = texts
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
