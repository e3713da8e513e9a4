"""Saving replaces files, and nothing else."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from weft.parameter_file import replacing


def test_a_file_is_replaced_once_all_is_there(tmp_path: Path) -> None:
    target = tmp_path / "saved"
    target.write_bytes(b"before")
    with pytest.raises(TypeError), replacing(target) as file:
        file.write("text")  # type: ignore[arg-type]  # what fails in the middle
    assert target.read_bytes() == b"before"
    with replacing(target) as file:
        file.write(b"after")
    assert target.read_bytes() == b"after"
    assert os.listdir(tmp_path) == ["saved"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "saved")
    with replacing(tmp_path / "link") as file:
        file.write(b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "saved").read_bytes() == b"after"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    """As a device would be: replacing it would take it from everybody else."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    with replacing(pipe) as file:
        file.write(b"through")
    reader.join(10)
    assert read == [b"through"]
    assert pipe.is_fifo()
