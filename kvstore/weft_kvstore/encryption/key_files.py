"""CURVE keys in files, in the form that ZeroMQ's own tools write."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from zmq.auth import load_certificate

from weft_kvstore.encryption.curve_keys import CurveKeyError, CurveKeys, check_public
from weft_kvstore.encryption.pairs import check_pair, new_keys

PUBLIC_END: Final = ".key"
PAIR_END: Final = ".key_secret"

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
    """A new pair, in PATH.key and, for its owner's eyes alone, PATH.key_secret. Raises OSError; nothing that is there
    is written over."""
    keys = new_keys()
    public, secret = path.with_name(path.name + PUBLIC_END), path.with_name(path.name + PAIR_END)
    _write(secret, _PAIR_FORM.format(public=keys.public, secret=keys.secret), 0o600)
    try:
        _write(public, _PUBLIC_FORM.format(public=keys.public), 0o644)
    except OSError:
        secret.unlink()
        raise
    return public, secret, keys


def read_keys(path: Path) -> CurveKeys:
    """The pair in a PATH.key_secret. Raises OSError, and CurveKeyError, which names the file, also for one that
    everybody on this machine can read."""
    mode = path.stat().st_mode
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        told = f"chmod 600 {path}, or where it is a mounted secret a mode of 0400"
        raise CurveKeyError(f"{path}: everybody on this machine can read the secret key: {told}")
    public, secret = _read(path)
    if secret is None:
        raise CurveKeyError(f"{path}: it has no secret key; the file that ends in {PAIR_END} does")
    try:
        keys = CurveKeys(public, secret)
        check_pair(keys)
        return keys
    except CurveKeyError as error:
        raise CurveKeyError(f"{path}: {error}") from None


def read_public_keys(directory: Path) -> frozenset[str]:
    """The public keys in all files of a directory that end in .key. Raises OSError, and CurveKeyError, which names the
    file."""
    found = set()
    for path in sorted(directory.iterdir()):
        if path.suffix != PUBLIC_END:
            continue
        public, _ = _read(path)
        try:
            check_public(public)
        except CurveKeyError as error:
            raise CurveKeyError(f"{path}: {error}") from None
        found.add(public)
    return frozenset(found)


def _read(path: Path) -> tuple[str, str | None]:
    try:
        public, secret = load_certificate(path)
        return public.decode(), None if secret is None else secret.decode()
    except (ValueError, IndexError):  # The latter for a line that has no equals sign.
        raise CurveKeyError(f"{path}: there is no CURVE key in it") from None


def _write(path: Path, text: str, mode: int) -> None:
    """A new file, which never has had more readers than it is to have; none is left where it cannot be written."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="ascii") as file:
        try:
            os.fchmod(file.fileno(), mode)  # The umask may have taken some of it away.
            file.write(text)
            file.flush()
        except OSError:
            path.unlink()
            raise
