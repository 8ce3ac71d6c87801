"""Estimates the tokens that a text has for a language model, without a vocabulary.

The estimate is meant as a limit, not as an average: at least 99 % of texts (English prose, source
code, Chinese, Japanese and Korean, from 250 characters on) have no more tokens in the vocabularies
of OpenAI's models. That costs a fifth of a budget, which stays unused. The estimate adds up what
the tokenizers' first step would find: words, long words, punctuation, numbers, lines and characters
of other scripts, each counted in the text's bytes and weighted. How the weights were found:
docs/decisions/0009.
"""

from __future__ import annotations

__all__ = ["estimate", "round_up", "weigh"]

# Thousandths of a token. START: of any text, since short ones vary most.
START = 4000

# For each occurrence of a pattern of classes: `a` a lower case letter, `A` an upper case one, `0` a
# digit, `.` punctuation; white space is itself. `aaaaaaaa` is for words too long for one token.
ASCII_WEIGHTS = (
    (b"A", 640),
    (b"0", 530),
    (b".", 340),
    (b"\n", 930),
    (b"\t", 1050),
    (b"Aa", 870),
    (b"aaaaaaaa", 1490),
    (b".a", 1500),
    (b" a", 1060),
    (b" .", 750),
    (b" 0", 2010),
    (b"  ", 200),
    (b"0.", 840),
    (b"a0", 1060),
    (b"0a", 2790),
    (b"\na", 670),
)

# For each character, by the first byte of its UTF-8.
OTHER_WEIGHTS = (
    (b"L", 4250),  # Latin with accents
    (b"G", 1120),  # Greek, Cyrillic
    (b"S", 1360),  # Armenian, Hebrew, Arabic
    (b"I", 1710),  # Indic, Thai
    (b"P", 1030),  # dashes, quotes, arrows
    (b"K", 1100),  # kana
    (b"H", 1710),  # Han
    (b"R", 1580),  # Hangul
    (b"W", 1030),  # full width
    (b"E", 3090),  # emoji
)

# First and last byte -> class of the characters that begin so.
SCRIPTS = (
    (0xC2, 0xCD, b"L"),
    (0xCE, 0xD3, b"G"),
    (0xD4, 0xDF, b"S"),
    (0xE0, 0xE1, b"I"),
    (0xE2, 0xE2, b"P"),
    (0xE3, 0xE3, b"K"),
    (0xE4, 0xE9, b"H"),
    (0xEA, 0xED, b"R"),
    (0xEE, 0xEF, b"W"),
    (0xF0, 0xFF, b"E"),
)


def _make_classes() -> bytes:
    """Return the table for bytes.translate() from a byte to its class."""
    classes = bytearray(b"c" * 256)
    for byte in range(128):
        character = chr(byte)
        if character.isalpha():
            classes[byte] = ord("a" if character.islower() else "A")
        elif character.isdigit():
            classes[byte] = ord("0")
        elif character in " \n":
            classes[byte] = byte
        else:
            classes[byte] = ord("." if character.isprintable() else "\t")
    for first, last, name in SCRIPTS:
        for byte in range(first, last + 1):
            classes[byte] = name[0]
    return bytes(classes)


_CLASSES = _make_classes()


def estimate(text: str) -> int:
    """Return a number of tokens that few texts exceed; 0 for an empty text."""
    return round_up(weigh(text)) if text else 0


def weigh(text: str) -> int:
    """Return the estimate of a text in thousandths, without START.

    For a text that begins with a newline, it can be added to that of any text before it.
    """
    classes = text.encode("utf-8", "surrogatepass").translate(_CLASSES)
    count = classes.count
    # Integers give the same result on every machine.
    weight = sum(count(pattern) * each for pattern, each in ASCII_WEIGHTS)
    if not text.isascii():
        weight += sum(count(pattern) * each for pattern, each in OTHER_WEIGHTS)
    return weight


def round_up(weight: int) -> int:
    """Return the tokens of a text of this weight."""
    return -(-(START + weight) // 1000)
