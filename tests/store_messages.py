"""One message of each kind that client and shard know, with its payload where it has one."""

from __future__ import annotations

from weft_kvstore.wire import messages as m

DIGEST = bytes(range(16))
PROCESS = bytes(range(16, 32))
GRADIENT, IDS, OWN = m.PayloadKind.GRADIENT, m.PayloadKind.IDS, m.Reading.OWN

REQUESTS: dict[str, tuple[m.Request, bytes | None]] = {
    "hello": (
        m.Hello(job="job-1", term=2, slot=3, incarnation=4, process=PROCESS, session=5, description=DIGEST),
        None,
    ),
    "hello-loopback": (
        m.Hello("job-1", 2, 3, 4, PROCESS, 5, DIGEST, loopback=True),
        None,
    ),
    "hello-again": (
        m.Hello("job-1", 2, 3, 4, PROCESS, 6, DIGEST, boot=DIGEST, shard=7),
        None,
    ),
    "push": (
        m.Push(7, [(GRADIENT, 10, 0, 9, 0, 0, 2, 8), (IDS, 12, 2, 9, 5, 3, 1, 8)]),
        b"abcdefghijklmnop",
    ),
    "push-arena": (
        m.Push(
            8,
            [(GRADIENT, 0, 0, 9, 0, 0, 2, 65536), (GRADIENT, 0, 0, 9, 0, 3, 1, 1048576)],
            at=[(4096, 65536), (1 << 20, 1 << 20)],
            acknowledge=[3, 4],
        ),
        None,
    ),
    "push-pull": (
        m.Push(
            8,
            [(GRADIENT, 0, 0, 9, 0, 0, 2, 8)],
            acknowledge=[3],
            pull=m.Pull([(11, 10, False, OWN, False, [(0, 0, 2, 0)])]),
        ),
        b"abcdefgh",
    ),
    "push-restored": (m.Push(9, [(m.PayloadKind.RESTORED, 13, 0, 40, 0, 0, 2, 8)]), b"abcdefgh"),
    "pull-priority": (m.Pull([(14, 1, False, OWN, False, [(0, 0, 2, 0)])], priority=7), None),
    "pull": (
        m.Pull(
            [
                (11, 1, False, m.Reading.EXACT, True, [(0, 4, 300, 0), (1, 0, 1, 0)]),
                (12, 2**40, True, m.Reading.SETTLED, False, [(2, 0, 0, 5)]),
            ]
        ),
        None,
    ),
    "barrier": (m.Barrier(request=13, step=9, nothing=[1, 2]), None),
    "measure": (m.Measure(request=13, step=9), None),
    "commit": (m.Commit(request=13, step=9, norm=2.5, finite=True), None),
    "hyper": (m.Hyper(request=14, step=9, key=[2], names=["rate", "momentum"], numbers=[0.125, 0.5]), None),
    "cancel": (m.Cancel(request=[11]), None),
    "why": (m.Why(request=[11, 12]), None),
    "ping": (m.Ping(), None),
    "bye": (m.Bye(), None),
    "acknowledge": (m.Acknowledge(frame=[1, 2, 3]), None),
}

REPLIES: dict[str, tuple[m.Reply, bytes | None]] = {
    "welcome": (m.Welcome(session=5, boot=DIGEST, silence_ms=5000), None),
    "welcome-listener": (m.Welcome(session=5, boot=DIGEST, silence_ms=5000, listener=DIGEST), None),
    "released": (m.Released(frame=[6, 7]), None),
    "refused": (m.Refused(m.RefusalCode.STALE_TERM, "job 'job-1' is in term 3 here, term 2 is over"), None),
    "push-refused": (m.PushRefused(frame=7, segment=1, reason="more than 2 steps ahead"), None),
    "values": (m.Values(8, [(11, 0, 1, 1, True, 0, 3, 12)]), b"abcdefghijkl"),
    "values-arena": (
        m.Values(
            9,
            [(11, 0, 1, 1, False, 0, 3, 65536), (11, 0, 1, 1, False, 3, 1, 1048576)],
            at=[(8192, 65536 + 1048576)],
            acknowledge=[8],
        ),
        None,
    ),
    "done": (m.Done(request=[13]), None),
    "measured": (m.Measured(request=13, squares=[6.0, 2.0**-60], finite=True, scale=65536.0), None),
    "failed": (m.Failed(11, m.FailureCode.LOST, "slot 1 has been silent for 5.0 s"), None),
    "because": (m.Because(11, "step 1 waits for slots 1"), None),
    "pong": (m.Pong(), None),
    "acknowledge-reply": (m.Acknowledge(frame=[2**63 - 1]), None),
}
