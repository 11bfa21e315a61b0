"""Hostile variants of a valid file: a function of the file and a number, so each can be made again.

Plain mutations and no library: a million inputs over all readers must take minutes, not days.
"""

import json
import random
import struct
from copy import deepcopy

WORDS = [
    b"",
    b"\x00",
    b"\xff" * 8,
    b"-1",
    b"1e999",
    b"NaN",
    b"-Infinity",
    b"9" * 400,
    b"null",
    b"true",
    b"[[[[[[",
    b"[" * 2000,
    b'{"a":' * 40,
    b"../../etc/passwd",
    b"/etc/passwd",
    b"\\u0000",
    b"\n",
    b"\r\n",
    b'"',
    b"'''",
    b"\xf0\x28\x8c\x28",
    b"\xed\xa0\x80",
    b"PK\x03\x04",
    b"\x93NUMPY",
    b"\x1f\x8b\x08",
    b"|O",
    b"(2147483647, 2147483647)",
    b"(-1,)",
    b" " * 300,
    struct.pack(">I", 2**31 - 1),
    struct.pack("<Q", 2**63 - 1),
]
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**63,
    10**300,
    10**400,
    0.5,
    -0.0,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "poisson",
    "../../x",
    "\x00",
    "\ud800",
    "a" * 500,
    [],
    {},
    [[]],
    [None],
    {"kind": None},
    {"kind": []},
    {"kind": "user-fedavg"},
    {"kind": "fixed", "cohort": 10**30, "users": 10**30},
    {"kind": "poisson", "probability": "1"},
    [1, 2, 3],
    {"": {"": {}}},
]


def mutate(content, number):
    """`content` with one to four changes."""
    rng = random.Random(number)
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change(changed, rng)
    return bytes(changed)


def mutate_json(content, number):
    """A JSON text with one or two of its values, or one of its keys, replaced."""
    rng = random.Random(number)
    document = json.loads(content)
    for _ in range(rng.choice((1, 1, 2))):
        document = _replaced(document, rng)
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _change(content, rng):
    where = rng.randrange(len(content) + 1)
    kind = rng.randrange(7)
    if kind == 0 and content:
        content[where % len(content)] ^= 1 << rng.randrange(8)
    elif kind == 1 and content:
        content[where % len(content)] = rng.randrange(256)
    elif kind == 2:
        del content[where:]
    elif kind == 3:
        del content[where : where + rng.randrange(1, 30)]
    elif kind == 4:
        content[where:where] = rng.choice(WORDS)
    elif kind == 5:
        word = rng.choice(WORDS)
        content[where : where + len(word)] = word
    else:
        length = rng.randrange(1, 60)
        content[where:where] = content[where : where + length] * rng.randrange(1, 4)


def _replaced(document, rng):
    """The document with one place, found by walking down at random, changed."""
    if not isinstance(document, dict | list) or not document or rng.random() < 0.15:
        return deepcopy(rng.choice(VALUES))
    keys = list(document) if isinstance(document, dict) else range(len(document))
    key = rng.choice(keys)
    kind = rng.random()
    if kind < 0.06:
        if isinstance(document, dict):
            document[rng.choice(["", "kind", "extra"])] = document.pop(key)
        else:
            document.append(deepcopy(rng.choice(VALUES)))
    elif kind < 0.12:
        del document[key]
    else:
        document[key] = _replaced(document[key], rng)
    return document
