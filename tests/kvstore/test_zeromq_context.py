"""ZeroMQ takes what descriptors it needs at the start: it ends the process where one is missing later."""

from __future__ import annotations

import subprocess
import sys

NO_DESCRIPTOR_LEFT = """
import os, resource, zmq

def leave(count):
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    for _ in range(highest):  # Numbers below the limit that are free.
        if os.open(os.devnull, os.O_RDONLY) > highest:
            break
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + count, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""

A_MESSAGE_THAT_IS_NOT_COPIED = """
from weft_kvstore.process import zeromq_context
with zeromq_context() as context, context.socket(zmq.PAIR) as a, context.socket(zmq.PAIR) as b:
    a.bind("inproc://here")
    b.connect("inproc://here")
    leave(0)
    a.send(bytes(1 << 20), copy=False)
    print(len(b.recv()))
"""

A_CONTEXT = """
from weft_kvstore.errors import StoreError
from weft_kvstore.process import zeromq_context
leave(8)
try:
    zeromq_context()
except StoreError as error:
    print(error)
"""


def output_of(program: str) -> str:
    script = NO_DESCRIPTOR_LEFT + program
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_the_first_message_that_is_not_copied_needs_no_descriptor() -> None:
    assert output_of(A_MESSAGE_THAT_IS_NOT_COPIED) == str(1 << 20)


def test_too_few_descriptors_for_a_context_are_an_error() -> None:
    assert "ZeroMQ needs 20 file descriptors more: [Errno 24] Too many open files" in output_of(A_CONTEXT)
