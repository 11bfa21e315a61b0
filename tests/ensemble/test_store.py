import importlib
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedproof.aggregation import build_rule
from fedproof.aggregation.rule import Rule
from fedproof.ensemble import fingerprint, store, train_replicas
from fedproof.models.module import from_module
from fedproof.vault import Vault


@pytest.fixture
def part(task):
    return store.plan(7, 4, fingerprint(task))[1]


NAMES = {
    "npz": "private/parts/part-00001.npz",
    "safetensors": "parts/part-00001.safetensors",
    "json": "private/parts/part-00001.json",
}


@pytest.fixture
def written(task, part, tmp_path):
    replicas, vault = train_replicas(task, part.replicas), Vault(tmp_path)
    store.keep_part(vault, part, store.encode(part, replicas))
    assert store.publish_part(vault, part, lambda: None)
    return replicas


def test_what_is_written_is_read(written, part, tmp_path):
    assert store.is_finished(tmp_path, part)
    assert written.indices == range(4, 7)
    np.testing.assert_array_equal(store.read_scores(tmp_path, part), written.scores)
    for name, value in store.read_models(tmp_path, part).items():
        assert torch.equal(value, written.models[name])
    for name, value in store.read_diagnostics(tmp_path, part).items():
        np.testing.assert_array_equal(value, written.diagnostics[name])
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("part-*")} == set(map(Path, NAMES.values()))
    record = json.loads((tmp_path / NAMES["json"]).read_text())
    assert record["told"]["replicas"] == [4, 7]


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "json"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "removed"])
def test_a_damaged_part_is_not_finished(written, part, tmp_path, suffix, damage):
    path = tmp_path / NAMES[suffix]
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


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"replicas": [3, 3]}', b"\xff\x00"])
def test_a_foreign_record_is_no_plan(tmp_path, content):
    (tmp_path / "private" / "parts").mkdir(parents=True)
    (tmp_path / "private" / "parts" / "part-00000.json").write_bytes(content)
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


def test_the_fingerprint_tells_warps_apart(task):
    both = ("features", "test_features")
    images = {name: getattr(task.federation, name).reshape(-1, 2, 2) for name in both}
    work = replace(task, federation=replace(task.federation, **images))
    warps = [replace(work, local=replace(work.local, **how)) for how in ({"stretch": 0.1}, {"bend": 0.1})]
    assert len({*map(fingerprint, (work, *warps))}) == 3


def test_the_fingerprint_tells_attacks_apart(task):
    def make(scale):
        return lambda contributions, state: replace(contributions, updates=contributions.updates * scale)

    marks = [fingerprint(replace(task, attack=attack)) for attack in (None, make(1.0), make(2.0), make(2.0))]
    assert len(set(marks)) == 3
    assert marks[2] == marks[3]


def test_the_fingerprint_tells_lambdas_of_one_line_apart(task):
    attacks = [lambda contributions, state: contributions, lambda contributions, state: None]  # fmt: skip
    assert len({fingerprint(replace(task, attack=attack)) for attack in attacks}) == 2


def test_the_fingerprint_tells_what_a_rule_has_captured(task):
    """A folder of one rule must not be gone on with by another, made by the same function."""

    def make(limit):
        def own(updates, num_adversaries):
            return updates.clamp(-limit, limit).mean(1)

        return Rule(name="own", num_adversaries=0, function=own, least=lambda f: 1)

    described = replace(task, mechanism=replace(task.mechanism, rule="own"), aggregation=make(1.0))
    long = np.zeros(5000), np.r_[np.zeros(2000), 1.0, np.zeros(2999)]  # alike where arrays are shortened
    limits = [1.0, 2.0, 2.0, *map(torch.tensor, long)]
    marks = [fingerprint(replace(described, aggregation=make(limit))) for limit in limits]
    assert len(set(marks)) == 4
    assert marks[1] == marks[2]


class Scaled(nn.Module):
    """Its code, its parameters and its `repr` do not tell the scale."""

    def __init__(self, scale):
        super().__init__()
        self.scale, self.layer = scale, nn.Linear(4, 2)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, inputs):
        return self.layer(inputs * self.scale)


def test_the_fingerprint_tells_what_a_module_holds_beside_its_parameters(task):
    scales = [1.0, 2.0, 2.0, torch.ones(4), torch.zeros(4)]
    marks = [fingerprint(replace(task, model=from_module(Scaled(scale), 2))) for scale in scales]
    assert len(set(marks)) == 4
    assert marks[1] == marks[2]


@dataclass(frozen=True)
class Kept:
    scale: float


class Way(Enum):
    UP = 1
    DOWN = 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"scale": 1.0}, {"scale": 2.0}),
        ([{"scale": 1.0}], [{"scale": 2.0}]),
        ({1, 2}, {1, 3}),
        (Kept(1.0), Kept(2.0)),
        (Way.UP, Way.DOWN),
        (np.float32(1), np.float32(2)),
        (partial(max, 1), partial(max, 2)),
        (lambda values: values, lambda values: -values),
    ],
    ids=["dict", "inside", "set", "dataclass", "enum", "narrow", "partial", "function"],
)
def test_the_fingerprint_tells_values_of_a_module_apart_wherever_they_are(task, one, other):
    marks = [fingerprint(replace(task, model=from_module(Scaled(held), 2))) for held in (one, one, other)]
    assert marks[0] == marks[1] != marks[2]


def test_a_value_that_holds_itself_ends(task):
    held = []
    held.append(held)
    fingerprint(replace(task, model=from_module(Scaled(held), 2)))


DECORATED = """
from functools import wraps

def weighted(weight):
    def around(rule):
        @wraps(rule)
        def own(updates, num_adversaries):
            return weight * rule(updates, num_adversaries)
        return own
    return around

class Odd:
    pass

odd = Odd()

def make(held):
    @weighted(2.0)
    def mine(updates, num_adversaries):
        return updates.mean(1) if held else None
    return mine

rule = make(odd)
"""


def test_another_process_knows_a_rule_that_was_decorated_and_holds_an_object(tmp_path):
    """Its name must hold no address, or no run of it could ever be gone on with."""
    (tmp_path / "decorated.py").write_text(DECORATED)
    code = "from decorated import rule; from fedproof.ensemble.fingerprints import _said; print(_said(rule))"
    seen = {
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True).stdout
        for _ in range(2)
    }
    [told] = seen
    assert b"0x" not in told
    assert b"decorated.Odd" in told


OWN = """
from torch import nn

def bend(values):
    return values.BEND()

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs):
        return SCALE * bend(self.layer(inputs))

def rule(updates, num_adversaries):
    return SCALE * updates.mean(1)

def whatever(contributions, state):
    return bend(contributions)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The user's own file, written and imported again each time."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(scale, bend):
        (tmp_path / "own_code.py").write_text(OWN.replace("SCALE", scale).replace("BEND", bend))
        importlib.invalidate_caches()
        sys.modules.pop("own_code", None)
        return importlib.import_module("own_code")

    yield write
    sys.modules.pop("own_code", None)


@pytest.mark.parametrize("where", ["model", "part of a model", "rule", "attack"])
def test_the_fingerprint_sees_what_the_user_edits_in_her_own_code(own, task, where):
    def mark(scale, bend):
        code = own(scale, bend)
        module = nn.Sequential(code.Own()) if where == "part of a model" else code.Own()
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        changed = {
            "rule": lambda: {
                "aggregation": build_rule("own_code:rule"),
                "mechanism": replace(task.mechanism, rule="own_code:rule"),
            },
            "attack": lambda: {"attack": code.whatever},
        }
        brought = changed.get(where, lambda: {"model": from_module(module, 2)})()
        return fingerprint(replace(task, **brought))

    marks = [mark("2", "relu"), mark("3", "relu"), mark("2", "tanh"), mark("2", "relu")]
    assert len(set(marks)) == 3
    assert marks[0] == marks[3]


def test_code_typed_at_a_prompt_is_known_to_its_own_process_only(task):
    names = {"__name__": "__nowhere__"}
    exec("def typed(contributions, state): return contributions", names)
    work = replace(task, attack=names["typed"])
    assert fingerprint(work) == fingerprint(work) != fingerprint(task)
    script = (
        "from fedproof.ensemble import fingerprints\n"
        "names = {'__name__': '__nowhere__'}\n"
        "exec('def typed(contributions, state): return contributions', names)\n"
        "print(fingerprints._source(names['typed']))"
    )
    run = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True) for _ in range(2)]
    assert run[0].stdout != run[1].stdout
