import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproof.ensemble import fingerprint, store, train_replicas


@pytest.fixture
def part(task):
    return store.plan(7, 4, fingerprint(task))[1]


@pytest.fixture
def written(task, part, tmp_path):
    replicas = train_replicas(task, part.replicas)
    store.write_part(tmp_path, part, store.encode(part, replicas))
    return replicas


def test_what_is_written_is_read(written, part, tmp_path):
    assert store.is_finished(tmp_path, part)
    assert written.indices == range(4, 7)
    np.testing.assert_array_equal(store.read_scores(tmp_path, part), written.scores)
    for name, value in store.read_models(tmp_path, part).items():
        assert torch.equal(value, written.models[name])
    for name, value in store.read_diagnostics(tmp_path, part).items():
        np.testing.assert_array_equal(value, written.diagnostics[name])
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["part-00001.json", "part-00001.npz", "part-00001.safetensors"]
    record = json.loads((tmp_path / "part-00001.json").read_text())
    assert record["replicas"] == [4, 7]


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "json"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "removed"])
def test_a_damaged_part_is_not_finished(written, part, tmp_path, suffix, damage):
    path = tmp_path / f"part-00001.{suffix}"
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[:-7])
    elif damage == "altered":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        path.unlink()
    assert not store.is_finished(tmp_path, part)


@pytest.mark.parametrize("change", [{"index": 0}, {"replicas": range(4, 8)}, {"fingerprint": "other"}])
def test_a_part_of_something_else_is_not_finished(written, part, tmp_path, change):
    assert not store.is_finished(tmp_path, replace(part, **change))


@pytest.mark.parametrize("written_files", [0, 1, 2])
def test_a_crash_leaves_a_part_whole_or_absent(task, part, tmp_path, monkeypatch, written_files):
    files = store.encode(part, train_replicas(task, part.replicas))
    store.write_part(tmp_path, part, files)
    calls = []

    def crash(path, content):
        if len(calls) == written_files:
            raise KeyboardInterrupt
        calls.append(path)
        write(path, content)

    write = store.replace_file
    monkeypatch.setattr(store, "replace_file", crash)
    with pytest.raises(KeyboardInterrupt):
        store.write_part(tmp_path, part, files)
    assert not store.is_finished(tmp_path, part)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"replicas": [3, 3]}', b"\xff\x00"])
def test_a_foreign_record_is_no_plan(tmp_path, content):
    (tmp_path / "part-00000.json").write_bytes(content)
    assert store.stored_part_size(tmp_path, "mark") is None


def test_the_fingerprint_tells_tasks_apart(task):
    mark = fingerprint(task)
    assert mark == fingerprint(replace(task))
    changed = task.federation.labels.copy()
    changed[3] = 1 - changed[3]
    others = [
        replace(task, seed=6),
        replace(task, mechanism=replace(task.mechanism, noise_multiplier=1.1)),
        replace(task, local=replace(task.local, epochs=3)),
        replace(task, federation=replace(task.federation, labels=changed)),
        replace(task, dtype=torch.float64),
    ]
    assert len({mark, *map(fingerprint, others)}) == 6


def test_the_fingerprint_tells_attacks_apart(task):
    def make(scale):
        return lambda contributions, state: replace(contributions, updates=contributions.updates * scale)

    marks = [fingerprint(replace(task, attack=attack)) for attack in (None, make(1.0), make(2.0), make(2.0))]
    assert len(set(marks)) == 3
    assert marks[2] == marks[3]
