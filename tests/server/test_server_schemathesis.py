"""schemathesis finds no lie in the OpenAPI documents: a server's process is called with what they allow and with what
they forbid, and along their links (submit, look, cancel, delete). Every answer has to be one of those documented; the
schema of a problem has the codes that its call sends.

For longer, by hand: `WEFT_FUZZ_EXAMPLES=1000 pytest tests/server/test_server_schemathesis.py --timeout 3600` draws so
many examples for each call, and runs the phase `coverage` too, some ten thousand calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from server_running import eventually
from server_specs import save_rows
from weft_server.openapi import PATHS, Audience

TOKEN = "a-token-of-these-tests"
HERE = Path(__file__).parent
EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "20"))
PHASES = "examples,fuzzing,stateful" if EXAMPLES <= 20 else "examples,coverage,fuzzing,stateful"
DEADLINE_S = 240 * max(1, EXAMPLES // 25)


class Run(NamedTuple):
    code: int
    output: str
    log: str
    submitted: int


def run(folder: Path, audience: Audience) -> Run:
    """Users' calls with a token. Agents' on a server that asks for none: each agent has a credential of its own."""
    token = TOKEN if audience == "users" else None
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    environment |= {"SCHEMATHESIS_HOOKS": "schemathesis_hooks", "WEFT_FUZZ_DATA": str(save_rows(folder / "rows.npz"))}
    serve = [sys.executable, "-m", "weft_server", "--port", "0", "--directory", str(folder / "server")]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            serve, stderr=log, env=environment | ({"WEFT_SERVER_TOKEN": token} if token is not None else {})
        )
    address = folder / "server" / "server.json"
    try:
        eventually(lambda: address.exists() or server.poll() is not None, "the server tells where it is")
        url = str(httpx.Response(200, text=address.read_text()).json()["url"])
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(HERE / "schemathesis.toml")]
        command += ["run", f"{url}{PATHS[audience]}", "--checks", "all", "--phases", PHASES, "--no-color"]
        examples = EXAMPLES if audience == "users" else EXAMPLES // 2
        command += ["--max-examples", str(examples), "--seed", "1", "--continue-on-failure"]
        command += ["--request-timeout", "60"]  # a machine that is busy answers late
        command += [part for name, value in headers.items() for part in ("--header", f"{name}: {value}")]
        done = subprocess.run(
            command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S
        )
        jobs = httpx.get(f"{url}/v1/jobs?limit=200", headers=headers).json()["jobs"]
    finally:
        server.terminate()
        server.wait(30)
    return Run(done.returncode, done.stdout + done.stderr, (folder / "log").read_text(), len(jobs))


@pytest.mark.parametrize("audience", ["users", "agents"])
def test_what_the_documents_say_is_true(tmp_path: Path, audience: Audience) -> None:
    done = run(tmp_path, audience)
    assert done.code == 0, done.output
    assert "Traceback" not in done.log, done.log
    assert done.submitted > 3 or audience == "agents", "jobs are made, so that their links can be followed"
