"""Headers that promise more than their file holds: refused before memory is asked for."""

import io
import json
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from fedproof.certificates.scores import read_array
from fedproof.ensemble import store
from fedproof.files import read_npz
from fedproof.models import with_weights
from fedproof.models.networks import linear

MEBIBYTE = 2**20
SHAPES = ["(1099511627776,)", "(4294967295, 4294967295)", "(-1,)", "(-4, -4)", "(100000000,)"]


def lying_npy(shape):
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(64)


def packed(content, name="scores.npy"):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def refused(read, message):
    """`read` raises ValueError of one line, in little memory."""
    tracemalloc.start()
    with pytest.raises(ValueError, match=message) as caught:
        read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert peak < 20 * MEBIBYTE


@pytest.mark.parametrize("shape", SHAPES)
def test_arrays_that_are_larger_than_their_file(tmp_path, shape):
    (tmp_path / "a.npy").write_bytes(lying_npy(shape))
    refused(lambda: read_array(tmp_path / "a.npy"), "a.npy.* is damaged|cannot be read")
    (tmp_path / "a.npz").write_bytes(packed(lying_npy(shape)))
    refused(lambda: read_array(tmp_path / "a.npz"), "a.npz.* is damaged|cannot be read")
    refused(lambda: read_npz(tmp_path / "a.npz"), "promises|negative")
    refused(lambda: with_weights(linear((4,), 2), tmp_path / "a.npz", "fc0"), "promises|negative")


def test_a_safetensors_header_that_lies(tmp_path):
    part = store.Part(index=0, replicas=range(2), fingerprint="task")
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "parts").mkdir()
    for length in (len(header), 2**62, 2**31):
        content = struct.pack("<Q", length) + header + bytes(16)
        (tmp_path / "parts" / "part-00000.safetensors").write_bytes(content)
        refused(lambda: store.read_models(tmp_path, part), "not a whole safetensors file")


def test_python_objects_are_refused_by_name(tmp_path):
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    refused(lambda: read_npz(tmp_path / "objects.npz"), "objects.npz .*could run code")


def test_arrays_come_back_as_they_were(tmp_path):
    arrays = {"a": np.arange(6.0).reshape(2, 3), "f": np.asfortranarray(np.arange(6).reshape(2, 3))}
    np.savez_compressed(tmp_path / "arrays.npz", empty=np.zeros((0, 3)), **arrays)
    found = read_npz(tmp_path / "arrays.npz")
    assert found["empty"].shape == (0, 3)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        found[name][0] = 9  # torch wants to write
