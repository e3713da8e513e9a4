"""A pair of CURVE keys: what is one, what is none, and that no text shows the secret."""

from __future__ import annotations

import dataclasses
import traceback

import pytest
from zmq.utils import z85

from weft_kvstore import DescriptionError, KVStore, StoreDescription, describe
from weft_kvstore.description.check import KEY_CHARACTERS, CurveKeyError, check_description, check_public, digest
from weft_kvstore.encryption import CurveKeys, new_curve_keys

# Of ZeroMQ's manual, zmq_curve(7), "Test key values".
KNOWN = CurveKeys("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7", "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6")

LAST_GROUP = "%nSc0"
"""2^32 - 1 in Z85, the highest group of five that is four bytes."""


def test_new_pairs_fit_and_are_not_alike() -> None:
    pairs = [new_curve_keys() for _ in range(3)]
    assert len({key for keys in pairs for key in (keys.public, keys.secret)}) == 6


@pytest.mark.parametrize("data", [b"\xff" * 32, bytes(range(32)), b"\0\0\0\1" * 8, b"weft" * 8])
def test_whatever_32_bytes_are_in_z85_is_a_key(data: bytes) -> None:
    check_public(z85.encode(data).decode())


def test_zeros_are_nobodys_key() -> None:
    """Whoever has no key at all would have this one."""
    with pytest.raises(CurveKeyError, match="zeros are not a CURVE key"):
        check_public("0" * KEY_CHARACTERS)


def test_what_is_no_key_is_not_shown() -> None:
    """It may be a secret one, with a character too many."""
    for wrong in (KNOWN.secret + "x", KNOWN.secret[:-1]):
        with pytest.raises(CurveKeyError) as caught:
            check_public(wrong)
        assert KNOWN.secret[:-1] not in str(caught.value)


def test_the_highest_group_is_a_key_and_the_next_is_none() -> None:
    assert z85.encode(b"\xff\xff\xff\xff").decode() == LAST_GROUP
    for at in range(0, KEY_CHARACTERS, 5):
        check_public("0" * at + LAST_GROUP + "0" * (35 - at))
        for above in ("%nSc1", "%nSd0", "%nT00", "%o000", "#0000", "#####"):
            with pytest.raises(CurveKeyError, match="not a CURVE key of 40 characters of Z85"):
                check_public("0" * at + above + "0" * (35 - at))


@pytest.mark.parametrize("length", [0, 1, 35, 39, 41, 45, 80])
def test_another_length_is_no_key(length: int) -> None:
    with pytest.raises(CurveKeyError, match="40 characters of Z85"):
        check_public("0" * length)


@pytest.mark.parametrize(
    "character", [" ", "\n", "\0", '"', "'", "\\", ",", ";", "_", "`", "|", "~", "é", "\u0660", "\uff10"]
)
@pytest.mark.parametrize("at", [0, 17, 39])
def test_a_character_that_is_not_of_z85_makes_no_key(character: str, at: int) -> None:
    """The Arabic zero and the wide one are digits to Python."""
    with pytest.raises(CurveKeyError, match="40 characters of Z85"):
        check_public("0" * at + character + "0" * (39 - at))


def test_a_pair_shows_its_public_key_alone() -> None:
    for text in (repr(KNOWN), str(KNOWN), f"{KNOWN}", f"{[KNOWN]!r}"):
        assert KNOWN.public in text
        assert KNOWN.secret not in text


def test_a_pair_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        KNOWN.secret = KNOWN.public  # type: ignore[misc]


@pytest.mark.parametrize(
    ("public", "secret", "told"),
    [
        (KNOWN.public, KNOWN.secret + "\n", "the secret key is not 40"),
        (KNOWN.public, KNOWN.secret[:-1], "the secret key is not 40"),
        (KNOWN.public, "", "the secret key is not 40"),
        (KNOWN.secret + "\n", KNOWN.public, "the public key is not 40"),
        (KNOWN.secret[:-1] + "\\", KNOWN.public, "the public key is not 40"),
        ("", KNOWN.secret, "the public key is not 40"),
        (new_curve_keys().public, KNOWN.secret, "the secret key does not belong"),
        (KNOWN.secret, KNOWN.public, "the secret key does not belong"),
    ],
    ids=[
        "line end",
        "short",
        "no secret",
        "other way round, line end",
        "other way round",
        "no public",
        "two",
        "swapped",
    ],
)
def test_what_is_no_pair_is_refused_without_the_secret(public: str, secret: str, told: str) -> None:
    with pytest.raises(CurveKeyError, match=told) as caught:
        CurveKeys(public, secret)
    text = "".join(traceback.format_exception(caught.value))
    assert KNOWN.secret[:-1] not in text


KEYS = tuple(new_curve_keys().public for _ in range(3))
ENDPOINTS = ("tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556")


def described(*curve_keys: str, shards: tuple[str, ...] = ENDPOINTS) -> StoreDescription:
    return describe({"w": (3,)}, shards=shards, curve_keys=curve_keys, rule="sgd", lr=1.0)


def test_a_description_has_its_shards_keys_by_number_and_they_are_not_in_its_digest() -> None:
    found = described(*KEYS[:2])
    check_description(found)
    assert found.curve_keys == KEYS[:2]
    assert digest(found) == digest(described(*KEYS[1:])) == digest(described())


@pytest.mark.parametrize(
    ("curve_keys", "shards", "told"),
    [
        (KEYS[:1], ENDPOINTS, "curve_keys: one for each shard, 2 of them, not 1"),
        (KEYS, ENDPOINTS, "curve_keys: one for each shard, 2 of them, not 3"),
        ((KEYS[0], "no key"), ENDPOINTS, r"curve_keys\[1\]: not a CURVE key of 40 characters of Z85"),
        ((KEYS[0], ""), ENDPOINTS, r"curve_keys\[1\]: not a CURVE key"),
        (KEYS[:1], (), "curve_keys: one for each shard, 0 of them, not 1"),
    ],
    ids=["too few", "too many", "no key", "empty", "no shards"],
)
def test_keys_that_do_not_fit_the_shards_are_refused_by_the_field(
    curve_keys: tuple[str, ...], shards: tuple[str, ...], told: str
) -> None:
    with pytest.raises(DescriptionError, match=told):
        check_description(describe({"w": (3,)}, shards=shards, curve_keys=curve_keys, rule="sgd", lr=1.0))


def test_a_local_store_needs_no_shards_keys_and_takes_them() -> None:
    with KVStore.local(described(*KEYS[:2])) as store:
        store.init("w", [1, 2, 3]).result(60)
        assert store.pull("w").result(60).tolist() == [1, 2, 3]
