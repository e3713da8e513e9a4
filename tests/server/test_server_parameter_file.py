"""Safetensors documents: the library that defines the format reads what we write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save, save_file

from weft.api.job import ParameterInfo
from weft_server.storage import parameter_file
from weft_server.storage.job_files import JobFiles
from weft_server.storage.parameter_file import DTYPES, ParameterFileError, Selection, check_document, largest_document

SHAPES = st.lists(st.integers(0, 5), max_size=3)


def info(name: str, array: np.ndarray) -> ParameterInfo:
    return ParameterInfo(name=name, dtype=array.dtype.name, shape=list(array.shape), trainable=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("documents")


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=40), st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES), min_size=1, max_size=6
    ),
    st.data(),
)
def test_a_selection_is_a_document_of_just_those_tensors(
    folder: Path, kinds: dict[str, tuple[str, list[int]]], data: st.DataObject
) -> None:
    kinds.pop("__metadata__", None)
    draw = np.random.default_rng(0)
    arrays = {name: draw.integers(0, 2, shape).astype(dtype) for name, (dtype, shape) in kinds.items()}
    path = folder / "document.safetensors"
    save_file(arrays, path, metadata={"step": "1"})
    infos = [info(name, array) for name, array in arrays.items()]
    check_document(path, infos)
    assert path.stat().st_size <= largest_document(infos)
    chosen = data.draw(st.lists(st.sampled_from(sorted(arrays)), unique=True)) if arrays else []
    selection = Selection(path, chosen)
    document = b"".join(selection.pieces())
    assert len(document) == selection.size
    loaded = load(document)
    assert loaded.keys() == set(chosen)
    for name, array in loaded.items():
        assert array.dtype == arrays[name].dtype
        np.testing.assert_array_equal(array, arrays[name])


def test_a_document_larger_than_a_piece_is_copied_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_file, "PIECE_BYTES", 7)
    arrays = {"a": np.arange(100, dtype=np.float32), "b": np.arange(3, dtype=np.int64)}
    save_file(arrays, tmp_path / "document")
    loaded = load(b"".join(Selection(tmp_path / "document").pieces()))
    np.testing.assert_array_equal(loaded["a"], arrays["a"])
    np.testing.assert_array_equal(loaded["b"], arrays["b"])


def test_a_selection_outlives_the_files_name(tmp_path: Path) -> None:
    save_file({"a": np.ones(4, np.float32)}, tmp_path / "document")
    selection = Selection(tmp_path / "document")
    (tmp_path / "document").unlink()
    assert load(b"".join(selection.pieces()))["a"].sum() == 4


def test_what_differs_is_named_with_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "document"
    path.write_bytes(save({"w": np.zeros((2, 3), np.float32)}))
    with pytest.raises(ParameterFileError, match=r"'w' is F32\[2, 3\], the job's is F64\[2, 3\]"):
        check_document(path, [ParameterInfo(name="w", dtype="float64", shape=[2, 3], trainable=True)])


def test_only_the_newest_live_values_are_kept_and_none_beside_the_final_ones(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    array = np.ones(2, np.float32)

    def bring(step: int, final: bool) -> Path:
        upload = files.start("job", f"{step}-{final}")
        upload.file.write(save({"w": array}))
        files.check(upload, [info("w", array)])
        return files.put(upload, "job", step, final)

    first = bring(1, False)
    second = bring(2, False)
    assert (first.exists(), second.exists()) == (False, True)
    assert files.final("job") is None
    final = bring(2, True)
    assert files.final("job") == final
    assert list(final.parent.iterdir()) == [final]
    files.end("job", succeeded=True)
    assert final.exists()
    files.end("job", succeeded=False)
    assert final.exists(), "nothing that was trained goes before it is asked for"
    files.take(final, "job", "upload-u")
    assert files.nbytes("job") == 2 * final.stat().st_size
    files.end("job", succeeded=False)
    assert list(files.of_upload("u")) == ["job"]
    files.end("job", succeeded=True)
    assert not files.of_upload("u")
    for _ in range(2):
        files.remove("job")
    assert (files.final("job"), files.nbytes("job")) == (None, 0)


def test_what_an_earlier_process_left_is_cleaned_up(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    upload = files.start("job", "half")
    upload.file.write(b"half")
    upload.file.close()
    files.clean()
    assert list((tmp_path / "jobs" / "job").iterdir()) == []
