"""Pairs of CURVE keys as libzmq makes and knows them."""

from __future__ import annotations

import zmq

from weft_kvstore.encryption.curve_keys import CurveKeyError, CurveKeys


def new_curve_keys() -> CurveKeys:
    """A pair that nobody else has."""
    public, secret = zmq.curve_keypair()
    return CurveKeys(public.decode(), secret.decode())


def check_pair(keys: CurveKeys) -> None:
    """Raises CurveKeyError where the two are not of one pair. It shows neither: they may be the wrong way round."""
    if zmq.curve_public(keys.secret.encode()).decode() != keys.public:
        raise CurveKeyError("the secret key is of another pair than the public key")
