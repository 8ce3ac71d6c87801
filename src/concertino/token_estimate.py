"""Estimates the number of tokens that a text has for a language model, without a vocabulary.

The estimate is an upper limit. At least 99 % of the measured texts have no more tokens than
estimated. The texts were English prose, source code, Chinese, Japanese and Korean of 250 characters
or more. The vocabularies were those of OpenAI's models, of Claude (as far as Anthropic has
published it), of Qwen 3 and of Gemma 3. For prose and code, the estimate is 10 to 30 % too high on
average: least for Gemma 3, most for OpenAI's models.

Tokenizers first split a text into words, numbers, punctuation and so on. The estimate imitates
tokenizers: it replaces each byte of the text by a class such as "lower case letter", counts how
often some patterns of classes occur, and adds up the weights of these occurrences.
docs/decisions/0009 describes how the weights were found.
"""

from __future__ import annotations

__all__ = ["estimate", "to_tokens", "weigh"]

# All weights are in thousandths of a token. to_tokens() adds START once for each text, because the
# numbers of tokens of short texts vary most.
START = 4000

# (pattern of classes, weight of each occurrence). The class of a lower case letter is `a`, of an
# upper case letter `A`, of a digit `0`, of punctuation `.`, and of a control character a tab. A
# space and a newline are their own classes. `aaaaaaaa` is counted once for each eight letters of a
# word that is too long for one token.
ASCII_WEIGHTS = (
    (b"A", 640),
    (b"0", 650),
    (b".", 340),
    (b"\n", 930),
    (b"\t", 1500),
    (b"Aa", 870),
    (b"aaaaaaaa", 1490),
    (b".a", 1700),
    (b" a", 1060),
    (b" .", 750),
    (b" 0", 2010),
    (b"  ", 310),
    (b"0.", 1500),
    (b"a0", 1060),
    (b"0a", 2790),
    (b"\na", 1300),
)

# (class, weight of each character), for characters outside ASCII.
OTHER_WEIGHTS = (
    (b"L", 4250),  # Latin with accents
    (b"G", 1120),  # Greek, Cyrillic
    (b"M", 2380),  # Armenian
    (b"S", 1360),  # Hebrew, Arabic
    (b"I", 2010),  # Indic, Thai
    (b"X", 2960),  # Georgian, Ethiopic, Khmer
    (b"P", 2600),  # dashes, quotes, arrows
    (b"K", 1100),  # kana
    (b"H", 1710),  # Han
    (b"R", 1580),  # Hangul
    (b"W", 1030),  # full width
    (b"E", 3090),  # emoji
)

# (first byte, last byte, class): the class of a character whose UTF-8 begins with such a byte.
SCRIPTS = (
    (0xC2, 0xCD, b"L"),
    (0xCE, 0xD3, b"G"),
    (0xD4, 0xD5, b"M"),
    (0xD6, 0xDF, b"S"),
    (0xE0, 0xE0, b"I"),
    (0xE1, 0xE1, b"X"),
    (0xE2, 0xE2, b"P"),
    (0xE3, 0xE3, b"K"),
    (0xE4, 0xE9, b"H"),
    (0xEA, 0xED, b"R"),
    (0xEE, 0xEF, b"W"),
    (0xF0, 0xFF, b"E"),
)


def _make_classes() -> bytes:
    """Return the table for bytes.translate() that replaces each byte by its class."""
    # `c` is the class of all other bytes: the later bytes of characters outside ASCII, which have
    # no weight.
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
    """Return the estimated number of tokens of a text; 0 for an empty text."""
    return to_tokens(weigh(text)) if text else 0


def weigh(text: str) -> int:
    """Return the weight of a text: about 1000 for each token.

    The weights of parts can be added up if the text is divided before newlines. to_tokens()
    converts the sum to a number of tokens.
    """
    classes = text.encode("utf-8", "surrogatepass").translate(_CLASSES)
    # The weights are integers, so that the result is the same on every machine.
    total = sum(classes.count(pattern) * weight for pattern, weight in ASCII_WEIGHTS)
    if not text.isascii():
        total += sum(classes.count(name) * weight for name, weight in OTHER_WEIGHTS)
    return total


def to_tokens(weight: int) -> int:
    """Return the estimated number of tokens of a text with this weight, rounded up."""
    return (START + weight + 999) // 1000
