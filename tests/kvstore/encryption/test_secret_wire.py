"""What passes a network between client and shard: read off by somebody in between."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from encrypted_store import APART, encrypted
from face_stores import WAIT_S
from same_host_children import wait_until
from store_cluster import served
from weft_kvstore import Key, KVStore, LinkSettings, StoreDescription, describe
from weft_kvstore.client.store_client import StoreClient

JOB = "the-name-of-the-job"
GRADIENT = np.frombuffer(b"What a worker pushes. " * 4000, np.uint8)[: 4 * 20000].view(np.float32)
SILENT = LinkSettings(same_host=False, silence_s=10 * WAIT_S)
"""Nothing is found out by silence, before every deadline has passed."""
HALF = GRADIENT[:16].tobytes()
"""As much of it as nobody meets by chance."""


class Tap:
    """Passes one connection at a time on to `target`, and keeps each byte of both directions. `spoil`: which
    direction, and which of its bytes is changed on its way."""

    def __init__(self, target: str, spoil: tuple[str, int] | None = None) -> None:
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = (host, int(port))
        self._spoil = spoil
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.up, self.down = bytearray(), bytearray()
        self._thread = threading.Thread(target=self._run, name="tap")
        self._thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)
        self._listener.close()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                with near, socket.create_connection(self._target) as far:
                    back = threading.Thread(target=self._pass, args=(far, near, self.down))
                    back.start()
                    self._pass(near, far, self.up)
                    back.join(WAIT_S)

    def _pass(self, source: socket.socket, sink: socket.socket, seen: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                begin = len(seen)
                seen += data
                way, place = self._spoil or ("", 0)
                if way and seen is getattr(self, way) and begin <= place < len(seen):
                    changed = bytearray(data)
                    changed[place - begin] ^= 1
                    data = bytes(changed)
                    self._spoil = None
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def described() -> StoreDescription:
    keys = {"w": Key(shape=(20000,), initializer="given")}
    return describe(keys, shards=["tcp://127.0.0.1:0"], rule="sgd", lr=1.0, job=JOB)


@contextmanager
def tapped(*, is_encrypted: bool, spoil: tuple[str, int] | None = None) -> Iterator[tuple[StoreDescription, Tap]]:
    serving = encrypted(described(), settings=APART) if is_encrypted else served(described(), APART)
    with serving as (found, (shard,)):
        tap = Tap(shard.endpoint, spoil)
        try:
            yield found, tap
        finally:
            tap.close()


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_nothing_of_what_passes_can_be_read_where_links_are_encrypted(is_encrypted: bool) -> None:
    """A plain link shows that what is looked for would be found."""
    with tapped(is_encrypted=is_encrypted) as (found, tap):
        with KVStore.connect(found, 0, settings=APART, endpoints=[tap.endpoint], timeout_s=WAIT_S) as store:
            store.init("w", -GRADIENT).result(WAIT_S)
            assert store.pull("w").result(WAIT_S).tobytes() == (-GRADIENT).tobytes()
            value = store.pushpull("w", GRADIENT).result(WAIT_S)
            np.testing.assert_array_equal(value, -GRADIENT - GRADIENT)
        assert min(len(tap.up), len(tap.down)) > GRADIENT.nbytes, "it has passed here"
        assert (b"CURVE" in tap.up[:64], b"NULL" in tap.up[:64]) == (is_encrypted, not is_encrypted)
        shown = {
            "gradient": HALF in tap.up,
            "value that is set": (-GRADIENT)[:16].tobytes() in tap.up,
            "value that is pulled": value[:16].tobytes() in tap.down,
            "job": JOB.encode() in tap.up,
        }
        assert shown == dict.fromkeys(shown, not is_encrypted)


def test_two_connections_say_the_same_in_other_bytes() -> None:
    """Each has keys of its own, so what was recorded of one is no help with the next."""
    with tapped(is_encrypted=True) as (found, tap):
        for incarnation in (1, 2):
            with KVStore.connect(
                found, 0, settings=APART, endpoints=[tap.endpoint], incarnation=incarnation, timeout_s=WAIT_S
            ) as store:
                store.init("w", GRADIENT).result(WAIT_S)
        seen = bytes(tap.up)
        parts = [seen[begin : begin + 16] for begin in range(0, len(seen), 16)]
        assert len(set(parts)) > 0.99 * len(parts), "no block comes twice, though the values do"


@pytest.mark.parametrize("spoil", [("up", 300), ("up", 20_000), ("down", 150), ("down", 20_000)])
def test_what_was_changed_on_its_way_is_not_taken_for_what_was_sent(spoil: tuple[str, int]) -> None:
    """One bit, in a handshake or in a value: the connection ends, and the next one says it again."""
    with (
        tapped(is_encrypted=True, spoil=spoil) as (found, tap),
        KVStore.connect(found, 0, settings=SILENT, endpoints=[tap.endpoint], timeout_s=WAIT_S) as store,
    ):
        store.init("w", GRADIENT).result(WAIT_S)
        assert store.pull("w").result(WAIT_S).tobytes() == GRADIENT.tobytes()
        assert store.statistics().links[0].connections >= 2


def test_who_stands_in_for_a_shard_without_its_secret_key_gets_nothing() -> None:
    with tapped(is_encrypted=True) as (found, tap), encrypted(described(), settings=APART) as (real, _):
        misled = msgspec.structs.replace(found, curve_keys=real.curve_keys)
        with StoreClient(misled, 0, settings=APART, endpoints=[tap.endpoint]) as client:
            wait_until(lambda: "another CURVE key" in (client.statistics().links[0].trouble or ""))
        assert b"CURVE" in tap.up[:64]
        assert JOB.encode() not in tap.up
