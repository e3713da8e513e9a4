"""Cases beside those that the store is held to: other sizes, a worker that is late, ids by Zipf's law, encrypted links.

They run where they are named, or with `--further`.
"""

from __future__ import annotations

from dataclasses import replace

from store_cases import FLOAT_BYTES, KIB, MIB, Case, many_keys, one_key, resnet50_shapes, sparse

LATE_S = 0.8
"""Long enough for the others' gradients to arrive before the late worker begins."""
ZIPF = 1.1


def further_many_keys() -> tuple[Case, ...]:
    """Three workers, also with one of them late at each step; encrypted links; fewer and larger keys in flight."""
    three = Case("resnet50-2s3w-tcp", resnet50_shapes(), workers=3, servers=2, iterations=6, warm_up=1)
    named = {case.name: case for case in many_keys()}
    flight, two = named["flight-4KiB-1s1w"], named["resnet50-2s2w-tcp"]
    return (
        three,
        replace(three, name="resnet50-2s3w-late", iterations=4, late_s=LATE_S),
        replace(two, name="resnet50-2s2w-curve", iterations=4, warm_up=1, curve=True),
        replace(flight, name="flight-64KiB-1s1w", shapes=((64 * KIB // FLOAT_BYTES,),) * 128),
        replace(flight, name="flight-1MiB-1s1w", shapes=((MIB // FLOAT_BYTES,),) * 32, iterations=12),
    )


def further_one_key() -> tuple[Case, ...]:
    """Large ones through shared memory, as a store on one host has them by itself; sizes between, small ones with two
    workers and two servers, and some over encrypted links."""
    small, _, middle, *large = one_key()
    shared = [replace(case, name=f"{case.name}-samehost", transport="samehost") for case in (middle, *large)]
    return (
        *shared,
        replace(middle, name="key-256KiB", shapes=((256 * KIB // FLOAT_BYTES,),)),
        replace(middle, name="key-4MiB", shapes=((4 * MIB // FLOAT_BYTES,),), iterations=40),
        replace(small, name="key-4KiB-2s2w", workers=2, servers=2),
        replace(middle, name="key-1MiB-2s2w", workers=2, servers=2),
        replace(small, name="key-4KiB-curve", curve=True),
        replace(middle, name="key-1MiB-curve", curve=True),
    )


def further_sparse() -> tuple[Case, ...]:
    """Frequent ids are in every worker's rows, and in every step's."""
    tcp = [case for case in sparse() if case.transport == "tcp"]
    return tuple(replace(case, name=f"{case.name.removesuffix('-tcp')}-zipf", zipf=ZIPF) for case in tcp)
