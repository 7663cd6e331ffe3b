"""Tell where the next read of a file begins, and put the file there.

A text file does not tell that while lines are drawn from it (`for line in file`). It has read a piece ahead then, and decoded it.
What is left of that piece, taken from where the piece ends, is the place. Leans on the layout of `io.TextIOWrapper`: the characters
are an object that the garbage collector tells of, and how many of them were given out is the word behind. That is tried on a sample
first. Seen on CPython 3.10 to 3.13.
"""

from __future__ import annotations

import codecs
import ctypes
import functools
import gc
import io
import sys
from typing import Any

_WORD = ctypes.sizeof(ctypes.c_void_p)
_FLAT = sys.implementation.name == "cpython" and _WORD == 8
_ONE_WAY = frozenset({"utf-8", "ascii", "iso8859-1"})
"""Encodings that write characters in just one way."""
_ENDS = ("\n", "\r", "\r\n")
_STARTS_ANEW = (b"", 0)
"""The state of a decoder that has nothing left of a character, or of the end of a line."""


def place_of(file: Any) -> int | None:
    """Return where the next read begins, as `seek` takes it; None where that cannot be told."""
    try:
        return int(file.tell())
    except (OSError, ValueError):  # no such place, or lines are being drawn
        return _place_between_lines(file) if type(file) is io.TextIOWrapper else None


def put(file: Any, place: int) -> None:
    """Let the next read begin at `place`. Raises OSError or ValueError where the file cannot."""
    file.seek(place)


def is_translated(file: io.TextIOWrapper) -> bool | None:
    """Return whether the file turns each end of a line into a newline; None where it knows just one end, or that cannot be told."""
    decoder = _decoder_of(file)
    if not isinstance(decoder, io.IncrementalNewlineDecoder):
        return None
    found = _word_of_translation()
    return None if found is None else bool(_words(decoder)[found[0]] & found[1])


def newline_of(file: io.TextIOWrapper) -> str | None:
    """Return which end of lines the file knows, as `open` takes it: None where all are translated, empty where none is."""
    translated = is_translated(file)
    if translated is not None:
        return None if translated else ""
    word = _word_of_characters()
    decoded = None if word is None else _words(file)[word]
    ends = {found for found in gc.get_referents(file) if found in _ENDS and id(found) != decoded}
    return ends.pop() if len(ends) == 1 else "\n"


def _decoder_of(file: io.TextIOWrapper) -> Any:
    return next(
        (found for found in gc.get_referents(file) if hasattr(found, "getstate") and hasattr(found, "decode")), None
    )


def _place_between_lines(file: io.TextIOWrapper) -> int | None:
    rest = _decoded_rest(file)
    decoder = _decoder_of(file)
    if rest is None or decoder is None or decoder.getstate() != _STARTS_ANEW:
        return None
    if codecs.lookup(file.encoding).name not in _ONE_WAY or file.errors != "strict":
        return None
    if file.newlines == "\r\n" and is_translated(file):
        rest = rest.replace("\n", "\r\n")
    elif file.newlines not in (None, "\n") and is_translated(file):
        return None  # ends of lines of several kinds became newlines
    try:
        below: Any = file.buffer
        return int(below.tell()) - len(codecs.encode(rest, file.encoding))
    except (OSError, ValueError):
        return None


def _decoded_rest(file: io.TextIOWrapper) -> str | None:
    """Return what the file has decoded and not given out; None where that cannot be told."""
    word = _word_of_characters()
    if word is None:
        return None
    words = _words(file)
    held = next(
        (found for found in gc.get_referents(file) if id(found) == words[word] and isinstance(found, str)), None
    )
    if held is None:
        return "" if words[word] == 0 else None
    return held[words[word + 1] :]


def _words(obj: Any) -> Any:
    return (ctypes.c_uint64 * (type(obj).__basicsize__ // _WORD)).from_address(id(obj))


@functools.cache
def _word_of_translation() -> tuple[int, int] | None:
    """Return in which word, and by which bits, a decoder has that it translates; None where samples do not tell."""
    if not _FLAT:
        return None
    off, on = (io.IncrementalNewlineDecoder(None, translate) for translate in (False, True))
    differing = [(place, no ^ yes) for place, (no, yes) in enumerate(zip(_words(off), _words(on))) if no != yes]
    return differing[0] if len(differing) == 1 and _words(on)[differing[0][0]] & differing[0][1] else None


@functools.cache
def _word_of_characters() -> int | None:
    """Return at which word a text file has the characters that it has decoded; None where a sample does not tell."""
    if not _FLAT:
        return None
    sample = io.TextIOWrapper(io.BytesIO(b"one\nthree\nfifteen letters\n" * 40), encoding="utf-8")
    found = None
    given = 0
    for _ in range(5):
        given += len(next(sample))
        words = _words(sample)
        held = {id(value) for value in gc.get_referents(sample) if isinstance(value, str)}
        places = {n for n in range(len(words) - 1) if words[n] in held and words[n + 1] == given}
        found = places if found is None else found & places
    return found.pop() if found is not None and len(found) == 1 else None
