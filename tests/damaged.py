"""JSON damaged at random, of a fixed seed: an entry that is gone, or one of another type."""

import copy
import json
import random
import struct

__all__ = ["damaged", "message_of", "safetensors_of"]

OTHER = {dict: [], list: {}, str: 3, int: "x", float: "x", bool: "x", type(None): []}
"""For each type a value that is not of it, and of no type that may stand in its place."""


def message_of(kind, function, *arguments):
    """The text of the error of that kind which a call raises, or an empty string."""
    try:
        function(*arguments)
    except kind as error:
        return str(error)
    return ""


def safetensors_of(header, data=b"", *, length=None):
    """The bytes of a safetensors file with that header, which may be no JSON and say that it is longer than it is."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _places(content, place=()):
    """The places of all entries, each as the keys that lead to it."""
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, entry in entries:
        yield (*place, key)
        yield from _places(entry, (*place, key))


def damaged(content, count, *, free=(), optional=()):
    """So many descriptions of a damage, each with the damaged copy.

    free: keys below which anything may stand. optional: keys of what may lack, and of objects and lists whose entries may.
    """
    places = [place for place in _places(content) if not {*free} & {*place[:-1]}]
    required = [place for place in places if not {*optional} & {*place[-2:]}]
    choose = random.Random(7)
    for gone in (True, False) * (count // 2):
        place = choose.choice(required if gone else places)
        copied = copy.deepcopy(content)
        parent = copied
        for key in place[:-1]:
            parent = parent[key]
        if gone:
            del parent[place[-1]]
        else:
            parent[place[-1]] = OTHER[type(parent[place[-1]])]
        yield f"{place} {'is gone' if gone else 'is of another type'}", copied
