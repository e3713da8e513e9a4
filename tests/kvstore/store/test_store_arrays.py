"""The caller's arrays once its client has closed: their owner may write them again, whatever is still on its way."""

from __future__ import annotations

import threading

import numpy as np

from store_cluster import WAIT_S, NamedClient, constant, key_of, served, store_of
from store_proxies import TcpProxy
from weft_kvstore.errors import StoreClosedError
from weft_kvstore.settings import LinkSettings

ELEMENTS = 5 << 20
"""More than the buffers of a connection hold."""


def test_nothing_reads_a_gradient_whose_push_has_failed_as_its_client_closed() -> None:
    """A part of it has left, and the shard goes on reading only once the array has other numbers."""
    description = store_of([constant(key_of("w", (ELEMENTS,), 2), 0.0)], slots=2, shards=1, hyper={"lr": 1.0})
    patient = LinkSettings(silence_s=WAIT_S, same_host=False)
    gradient, other = np.ones(ELEMENTS, np.float32), np.ones(ELEMENTS, np.float32)
    with (
        served(description, patient) as (there, servers),
        TcpProxy(servers[0].endpoint) as proxy,
        NamedClient(there, 0, settings=patient, endpoints=[proxy.endpoint]) as one,
        NamedClient(there, 1, settings=patient) as second,
    ):
        one.pull("w", 0).result(WAIT_S)
        proxy.flows.clear()
        pushed = one.push("w", 0, gradient)
        closing = threading.Thread(target=one.close)
        closing.start()
        assert isinstance(pushed.exception(WAIT_S), StoreClosedError)
        gradient[:] = 1000
        proxy.flows.set()
        closing.join(WAIT_S)
        proxy.wait_ended()
        with NamedClient(there, 0, settings=patient, incarnation=2) as again:
            again.push("w", 0, other).result(WAIT_S)
        assert 8 * np.float32(1000).tobytes() not in proxy.up
        second.push("w", 0, other).result(WAIT_S)
        assert np.unique(second.pull("w", 1).result(WAIT_S)).tolist() == [-2.0]
