"""Making pairs of CURVE keys, and their files."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

import zmq

from weft_kvstore.encryption.curve_keys import CurveKeyError, CurveKeys, check_public

# --- Pairs of CURVE keys, by libzmq -----------------------------------------------------------------------------------


def new_curve_keys() -> CurveKeys:
    """A new random pair."""
    public, secret = zmq.curve_keypair()
    return CurveKeys(public.decode(), secret.decode())


def check_pair(keys: CurveKeys) -> None:
    """Raises CurveKeyError if the two are not a pair. It shows neither: they may be swapped."""
    if zmq.curve_public(keys.secret.encode()).decode() != keys.public:
        raise CurveKeyError("the secret key is of another pair than the public key")


# --- Files of CURVE keys, in the format of ZeroMQ's own tools ---------------------------------------------------------


PUBLIC_SUFFIX: Final = ".key"
PAIR_SUFFIX: Final = ".key_secret"

MOST_BYTES: Final = 1 << 16
"""Of a file; a pair takes some 300."""

_KEY: Final = {
    kind: re.compile(rf"^\s*{kind}-key\s*=[ \t'\"]*([^\s'\"]+)", re.MULTILINE) for kind in ("public", "secret")
}
_PUBLIC_FORM: Final = """# A public CURVE key: give it to whoever should let its owner in.
curve
    public-key = "{public}"
"""
_PAIR_FORM: Final = """# A secret CURVE key: for the process alone whose key it is.
curve
    public-key = "{public}"
    secret-key = "{secret}"
"""


def make_key_files(path: Path) -> tuple[Path, Path, CurveKeys]:
    """Writes a new pair to PATH.key and, readable by its owner alone, PATH.key_secret. Raises OSError; existing files
    are not overwritten."""
    keys = new_curve_keys()
    public, secret = path.with_name(path.name + PUBLIC_SUFFIX), path.with_name(path.name + PAIR_SUFFIX)
    _write(secret, _PAIR_FORM.format(public=keys.public, secret=keys.secret), 0o600)
    try:
        _write(public, _PUBLIC_FORM.format(public=keys.public), 0o644)
    except BaseException:
        secret.unlink()
        raise
    return public, secret, keys


def read_curve_keys(path: Path) -> CurveKeys:
    """The pair in a PATH.key_secret. Raises OSError, and CurveKeyError, which names the file, also if everybody on this
    machine can read or write it."""
    text, mode = _text(path)
    public, secret = _public_in(path, text), _KEY["secret"].search(text)
    if secret is None:
        raise CurveKeyError(f"{path}: it has no secret key; the file that ends in {PAIR_SUFFIX} does")
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        advice = f"chmod 600 {path}, or where it is a mounted secret a mode of 0400"
        raise CurveKeyError(f"{path}: everybody on this machine can read or write the secret key: {advice}")
    try:
        keys = CurveKeys(public, secret[1])
        check_pair(keys)
        return keys
    except CurveKeyError as error:
        raise CurveKeyError(f"{path}: {error}") from None


def read_public_key(path: Path) -> str:
    """The public key in a file. Raises OSError, and CurveKeyError, which names the file."""
    text, _ = _text(path)
    public = _public_in(path, text)
    try:
        check_public(public)
    except CurveKeyError as error:
        raise CurveKeyError(f"{path}: {error}") from None
    return public


def _public_in(path: Path, text: str) -> str:
    found = _KEY["public"].search(text)
    if found is None:
        raise CurveKeyError(f"{path}: there is no CURVE key in it")
    return found[1]


def _text(path: Path) -> tuple[str, int]:
    """A file's text and mode. Rejects pipes, which would block, and large files."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise CurveKeyError(f"{path}: it is no file of at most {MOST_BYTES} bytes")
        return os.read(file, MOST_BYTES).decode(errors="replace"), status.st_mode
    finally:
        os.close(file)


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
