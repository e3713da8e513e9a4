"""Stores whose links are encrypted: all calls, and whoever does not fit, over real sockets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from face_stores import WAIT_S
from free_ports import free_port
from same_host_children import wait_until
from store_cluster import NamedClient, served
from store_proxies import TcpProxy
from weft_kvstore import Key, KVStore, StoreDescription, StoreError, StoreLostError, StoreRefusedError, describe
from weft_kvstore.description.check import CurveKeyError
from weft_kvstore.encryption import CurveAuthenticator, CurveKeys, make_key_files, new_curve_keys
from weft_kvstore.serving.shard_server import ShardServer
from weft_kvstore.settings import LinkSettings

DEFAULTS = LinkSettings()
APART = LinkSettings(same_host=False)
"""Payloads pass the links, as they do between two hosts."""
ONES = np.ones((300, 200), np.float32)


@pytest.fixture
def clients(tmp_path: Path) -> Path:
    directory = tmp_path / "clients"
    directory.mkdir()
    return directory


def described(*, slots: int = 1, shards: int = 1) -> StoreDescription:
    keys = {
        "w": Key(shape=(300, 200), initializer=0.0),
        "b": Key(shape=(3,), initializer=0.0),
        "t": Key(shape=(50, 4), rows=True, initializer=0.0),
    }
    found = describe(keys, shards=["tcp://127.0.0.1:0"] * shards, slots=slots, rule="sgd", lr=1.0)
    return msgspec.structs.replace(found, slice_bytes=65536)


@contextmanager
def encrypted(
    description: StoreDescription,
    clients: Path | None = None,
    *,
    settings: LinkSettings = DEFAULTS,
    keys: Sequence[CurveKeys] | None = None,
) -> Iterator[tuple[StoreDescription, list[ShardServer]]]:
    """The description with the shards' addresses and public keys, and the shards. `clients`: the directory of those
    that are accepted."""
    keys = keys or [new_curve_keys() for _ in description.shards]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(ShardServer(settings=settings, authenticator=CurveAuthenticator(one, clients)))
            for one in keys
        ]
        found = msgspec.structs.replace(
            description,
            shards=tuple(server.endpoint for server in servers),
            curve_keys=tuple(one.public for one in keys),
        )
        for shard, server in enumerate(servers):
            server.open(found, shard)
        yield found, servers


def connected(description: StoreDescription, slot: int = 0, keys: CurveKeys | None = None, **others: object) -> KVStore:
    settings = LinkSettings(same_host=False)
    return KVStore.connect(description, slot, timeout_s=WAIT_S, curve_keys=keys, **{"settings": settings, **others})


def of(*results: object) -> list[object]:
    return [result.result(WAIT_S) for result in results]  # type: ignore[attr-defined]


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("same_host", [True, False])
def test_all_calls_pass_links_to_shards_that_each_have_their_own_keys(
    clients: Path, listed: bool, same_host: bool
) -> None:
    settings = LinkSettings(same_host=same_host)
    own = [make_key_files(clients / str(slot))[2] if listed else None for slot in range(2)]
    with encrypted(described(slots=2, shards=2), clients if listed else None, settings=settings) as (found, _):
        assert len(set(found.curve_keys)) == 2
        with ExitStack() as stack:
            both = [stack.enter_context(connected(found, slot, own[slot], settings=settings)) for slot in range(2)]
            if same_host:
                wait_until(lambda: all(link.same_host for one in both for link in one.statistics().links))
            pushed = [store.pushpull(["w", "b"], [ONES, np.ones(3, np.float32)]) for store in both]
            for w, b in of(*pushed):
                assert (w.min(), w.max(), b.tolist()) == (-2.0, -2.0, [-2.0] * 3)
            assert both[0].set_hyper("lr", 10.0, step=1).result(WAIT_S) == 1
            of(*(store.push_rows("t", [slot, 7], np.ones((2, 4), np.float32)) for slot, store in enumerate(both)))
            rows = both[1].pull_rows("t", [[0, 1], [7, 3]]).result(WAIT_S)
            assert rows[..., 3].tolist() == [[-1.0, -1.0], [-2.0, 0.0]]
            (w, _), _ = of(*(store.pushpull("w", ONES) for store in both)), of(*(store.barrier() for store in both))
            assert (w.min(), w.max()) == (-22.0, -22.0)
            assert all(link.payload_bytes_sent > 0 for link in both[0].statistics().links)
            assert bool(both[0].statistics().shared_bytes_sent) is same_host


def test_many_clients_that_come_at_once_are_all_let_in(clients: Path) -> None:
    slots = 12
    own = [make_key_files(clients / str(slot))[2] for slot in range(slots)]
    with encrypted(described(slots=slots, shards=2), clients) as (found, _), ThreadPoolExecutor(slots) as pool:
        stores = list(pool.map(lambda slot: connected(found, slot, own[slot]), range(slots)))
        pushed = of(*(store.pushpull("b", np.ones(3, np.float32)) for store in stores))
        assert [one.tolist() for one in pushed] == [[-float(slots)] * 3] * slots
        for store in stores:
            store.close()


def test_who_is_not_in_the_list_is_told_at_once_and_the_shard_logs_the_key(
    clients: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_key_files(clients / "somebody")
    mine = new_curve_keys()
    told = r"slot 0: .*shard 0 at tcp://\S+: it rejects a client with the CURVE key"
    with encrypted(described(), clients) as (found, _):
        for _ in range(3):
            with pytest.raises(StoreRefusedError, match=told):
                connected(found, keys=mine)
        with pytest.raises(StoreRefusedError, match=told):
            connected(found)  # It makes a pair of its own.
        with connected(found, keys=mine, wait_s=0) as store, pytest.raises(StoreRefusedError, match=told):
            store.pull("w").result(WAIT_S)
    shown = [record.getMessage() for record in caplog.records if mine.public in record.getMessage()]
    assert shown == [f"a client with the CURVE key {mine.public} is rejected: no NAME.key in {clients} has it"]
    assert mine.secret not in caplog.text


def test_one_shard_that_does_not_let_a_client_in_is_named(clients: Path, tmp_path: Path) -> None:
    public, _, mine = make_key_files(tmp_path / "me")
    shards = [new_curve_keys(), new_curve_keys()]
    with (
        ShardServer(authenticator=CurveAuthenticator(shards[0], tmp_path)) as first,
        ShardServer(authenticator=CurveAuthenticator(shards[1], clients)) as second,
    ):
        found = msgspec.structs.replace(
            described(shards=2),
            shards=(first.endpoint, second.endpoint),
            curve_keys=tuple(one.public for one in shards),
        )
        first.open(found, 0)
        second.open(found, 1)
        with pytest.raises(StoreRefusedError, match=rf"shard 1 at {second.endpoint}: it rejects"):
            connected(found, keys=mine)
        (clients / public.name).write_text(public.read_text())
        with connected(found, keys=mine) as store:
            assert store.pushpull("w", ONES).result(WAIT_S).max() == -1.0


def test_a_key_that_is_taken_away_counts_for_the_next_connection_alone(clients: Path) -> None:
    public, _, mine = make_key_files(clients / "me")
    with encrypted(described(), clients, settings=APART) as (found, (shard,)), TcpProxy(shard.endpoint) as proxy:
        with connected(found, keys=mine, endpoints=[proxy.endpoint]) as store:
            public.unlink()
            assert store.pushpull("w", ONES).result(WAIT_S).max() == -1.0
            proxy.cut()
            proxy.restore()
            with pytest.raises(StoreRefusedError, match="it rejects a client with the CURVE key"):
                store.pushpull("w", ONES).result(WAIT_S)
        with pytest.raises(StoreRefusedError, match="it rejects"):
            connected(found, keys=mine)


def test_a_link_that_breaks_is_encrypted_anew_and_loses_nothing(clients: Path) -> None:
    _, _, mine = make_key_files(clients / "me")
    with (
        encrypted(described(), clients, settings=APART) as (found, (shard,)),
        TcpProxy(shard.endpoint) as proxy,
        connected(found, keys=mine, endpoints=[proxy.endpoint]) as store,
    ):
        for step in range(3):
            value = store.pushpull("w", ONES)
            proxy.cut()
            proxy.restore()
            assert value.result(WAIT_S).max() == -1.0 - step
        wait_until(lambda: store.statistics().links[0].connections > 3)  # The last may break behind its value.


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_nothing_of_what_passes_can_be_read_where_links_are_encrypted(is_encrypted: bool) -> None:
    """A plain link shows that what is looked for would be found."""
    text = np.frombuffer(b"What a worker pushes. " * 12000, np.uint8)[:240000].view(np.float32).reshape(300, 200)
    description = msgspec.structs.replace(described(), job="the-name-of-the-job")
    serving = encrypted(description, settings=APART) if is_encrypted else served(description, APART)
    with (
        serving as (found, (shard,)),
        TcpProxy(shard.endpoint) as proxy,
        connected(found, endpoints=[proxy.endpoint]) as store,
    ):
        value = store.pushpull("w", text).result(WAIT_S)
        assert np.array_equal(value, -text)
        up, down = bytes(proxy.up), bytes(proxy.down)
        assert min(len(up), len(down)) > text.nbytes, "it has passed here"
        shown = [text[0, :16].tobytes() in up, value[0, :16].tobytes() in down, b"the-name-of-the-job" in up]
        assert shown == [not is_encrypted] * 3


def told(description: StoreDescription, keys: CurveKeys) -> list[bool]:
    """Of each shard whether it is said to have another key, once that is said of the last one."""
    with NamedClient(description, 0, settings=APART, curve_keys=keys) as client:

        def found() -> list[bool]:
            return ["another CURVE key than the" in (link.trouble or "") for link in client.statistics().links]

        wait_until(lambda: found()[-1])
        wait_until(lambda: found()[0] or client.statistics().links[0].welcomed)
        return found()


@pytest.mark.parametrize("listed", [True, False])
def test_another_key_than_the_shards_is_told_by_the_line_that_says_it(clients: Path, listed: bool) -> None:
    _, _, mine = make_key_files(clients / "me")
    with encrypted(described(shards=2), clients if listed else None) as (found, _):
        wrong = msgspec.structs.replace(found, curve_keys=(found.curve_keys[0], new_curve_keys().public))
        assert told(wrong, mine) == [False, True]
        swapped = msgspec.structs.replace(found, curve_keys=found.curve_keys[::-1])
        assert told(swapped, mine) == [True, True]
        with connected(found, keys=mine) as store:
            assert store.pull("w").result(WAIT_S).max() == 0.0


def test_another_key_is_told_as_such_where_a_call_fails_for_silence() -> None:
    with encrypted(described()) as (found, _):
        wrong = msgspec.structs.replace(found, curve_keys=(new_curve_keys().public,))
        hasty = LinkSettings(same_host=False, silence_s=1.0)
        with connected(wrong, wait_s=0, settings=hasty) as store:
            wait_until(lambda: "another CURVE key" in (store.statistics().links[0].trouble or ""))
            with pytest.raises(StoreLostError, match=r"slot 0: pull of key 'w'.* shard 0 .*another CURVE key"):
                store.pull("w").result(WAIT_S)


def test_handshakes_that_a_proxy_drops_before_the_shard_is_there_keep_nobody_out() -> None:
    with encrypted(described(), settings=APART) as (found, (shard,)), TcpProxy(shard.endpoint) as proxy:
        proxy.cut()
        with NamedClient(found, 0, settings=APART, endpoints=[proxy.endpoint]) as client:
            wait_until(lambda: "another CURVE key" in (client.statistics().links[0].trouble or ""))
            proxy.restore()
            pulled = client.pull("w", 0)
            assert pulled.result(WAIT_S).max() == 0.0
            assert client.statistics().links[0].trouble is None


def test_a_plain_client_is_told_that_links_are_encrypted(clients: Path) -> None:
    """At once, or, where the shard closes the connection before its greeting has left, after the wait."""
    told = r"shard 0 at \S+: .*its links (are|may be) encrypted, and the description has no curve_keys for them"
    for directory in (None, clients):
        with encrypted(described(), directory) as (found, _):
            plain = msgspec.structs.replace(found, curve_keys=())
            with pytest.raises((StoreRefusedError, StoreLostError), match=told):
                connected(plain, wait_s=0.5)
            with pytest.raises(CurveKeyError, match="curve_keys: the description has none for the shards"):
                connected(plain, keys=new_curve_keys())


def test_a_client_with_keys_does_not_talk_with_a_plain_shard() -> None:
    with served(described()) as (found, _):
        wanted = msgspec.structs.replace(found, curve_keys=(new_curve_keys().public,))
        told = r"shard 0 at \S+: its links are not encrypted, and the description has curve_keys for them"
        with pytest.raises(StoreRefusedError, match=told):
            connected(wanted)
        with connected(found) as store:
            assert store.pull("w").result(WAIT_S).max() == 0.0


def test_a_client_does_not_begin_with_keys_that_are_none(tmp_path: Path) -> None:
    public, secret, keys = make_key_files(tmp_path / "me")
    found = msgspec.structs.replace(described(), curve_keys=(new_curve_keys().public,))
    with pytest.raises(CurveKeyError, match="does not belong"):
        NamedClient(found, 0, curve_keys=CurveKeys(new_curve_keys().public, keys.secret))
    for file, told in ((public, "everybody|no secret key"), (tmp_path / "nothing", "nothing")):
        with pytest.raises((CurveKeyError, FileNotFoundError), match=told):
            KVStore.connect(found, 0, curve_keys=file)
    secret.chmod(0o604)
    with pytest.raises(CurveKeyError, match="everybody on this machine can read"):
        KVStore.connect(found, 0, curve_keys=str(secret))


def test_a_client_waits_for_a_shard_that_comes_later_and_a_new_one_with_the_same_keys_is_met_anew(
    clients: Path,
) -> None:
    """Connections that nobody takes are no handshakes that were broken off."""
    _, _, mine = make_key_files(clients / "me")
    keys, endpoint = new_curve_keys(), f"tcp://127.0.0.1:{free_port()}"
    found = msgspec.structs.replace(described(), shards=(endpoint,), curve_keys=(keys.public,))
    with connected(found, keys=mine, wait_s=0) as store:
        wait_until(lambda: store.statistics().links[0].connections > 4)
        with ShardServer(endpoint, authenticator=CurveAuthenticator(keys, clients)) as shard:
            shard.open(found, 0)
            assert store.pushpull("w", ONES).result(WAIT_S).max() == -1.0
        with ShardServer(endpoint, authenticator=CurveAuthenticator(keys, clients)) as shard:
            shard.open(found, 0)
            with pytest.raises(StoreLostError, match="has started anew and has lost its values"):
                store.pull("w").result(WAIT_S)
            with connected(found, keys=mine, incarnation=2) as again:
                assert again.pull("w").result(WAIT_S).max() == 0.0


def guards() -> Sequence[str]:
    return [one.name for one in threading.enumerate() if type(one).__name__ == "AuthenticationThread"]


def test_a_shard_that_ends_takes_its_guard_along_and_one_that_cannot_bind_too(clients: Path) -> None:
    assert not guards()
    with encrypted(described(), clients) as (_, (shard,)):
        assert len(guards()) == 1
        with pytest.raises(StoreError, match="cannot bind"):
            ShardServer(shard.endpoint, authenticator=CurveAuthenticator(new_curve_keys(), clients))
        assert len(guards()) == 1
    assert not guards()


def test_a_guard_that_is_gone_lets_nobody_in(clients: Path) -> None:
    _, _, mine = make_key_files(clients / "me")
    keys = new_curve_keys()
    authenticator = CurveAuthenticator(keys, clients)
    with ShardServer(authenticator=authenticator) as shard:
        found = msgspec.structs.replace(described(), shards=(shard.endpoint,), curve_keys=(keys.public,))
        shard.open(found, 0)
        connected(found, keys=mine).close()
        authenticator.stop()
        with pytest.raises(StoreError, match="shard 0"):
            connected(found, keys=mine, wait_s=0.3)


def test_a_broken_file_among_the_clients_does_not_stop_the_guard(
    clients: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, mine = make_key_files(clients / "me")
    with encrypted(described(), clients) as (found, _), caplog.at_level(logging.WARNING):
        (clients / "half.key").write_text("public-key")
        connected(found, keys=mine).close()
        assert "half.key: it has no CURVE key" in caplog.text
        (clients / "half.key").unlink()
        _, _, other = make_key_files(clients / "other")
        connected(found, keys=other, incarnation=2).close()
