"""A language model with random weights, small enough to be made in a test: a GGUF file.

Format: the specification of GGUF 3 in the repository of ggml (docs/gguf.md). The tokens are the 256
bytes, written as GPT-2 writes them, and the special tokens of Llama 3.
"""

from __future__ import annotations

import random
import struct
from math import prod
from pathlib import Path

__all__ = ["write_model"]

WIDTH, HIDDEN, HEADS = 32, 64, 2
SPECIAL = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
# Types of values and of tokens in a GGUF file.
U32, I32, F32, TEXT, ARRAY = 4, 5, 6, 8, 9
NORMAL, CONTROL = 1, 3
ALIGNMENT = 32


def write_model(path: Path, seed: int) -> None:
    """Write a model of one layer."""
    tokens = [*byte_tokens(), *SPECIAL]
    kinds = [NORMAL] * 256 + [CONTROL] * len(SPECIAL)
    facts = [
        ("general.architecture", TEXT, text("llama")),
        ("general.name", TEXT, text("tiny-random")),
        ("llama.context_length", U32, number(2048)),
        ("llama.block_count", U32, number(1)),
        ("llama.embedding_length", U32, number(WIDTH)),
        ("llama.feed_forward_length", U32, number(HIDDEN)),
        ("llama.attention.head_count", U32, number(HEADS)),
        ("llama.attention.head_count_kv", U32, number(HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)),
        ("llama.rope.freq_base", F32, struct.pack("<f", 10000.0)),
        ("tokenizer.ggml.pre", TEXT, text("llama3")),
        ("tokenizer.ggml.tokens", ARRAY, array(TEXT, [text(token) for token in tokens])),
        ("tokenizer.ggml.token_type", ARRAY, array(I32, [number(kind) for kind in kinds])),
        ("tokenizer.ggml.bos_token_id", U32, number(256)),
        ("tokenizer.ggml.eos_token_id", U32, number(260)),
    ]
    chance = random.Random(seed)
    entries, data = b"", b""
    for name, shape in shapes(len(tokens)).items():
        count = prod(shape)
        is_norm = len(shape) == 1
        values = [1.0 if is_norm else chance.gauss(0, 0.3) for _ in range(count)]
        dimensions = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        entries += text(name) + number(len(shape)) + dimensions
        # The type 0: 32-bit floats.
        entries += struct.pack("<IQ", 0, len(data))
        data += padded(struct.pack(f"<{count}f", *values))
    head = b"GGUF" + struct.pack("<Iqq", 3, len(shapes(0)), len(facts))
    head += b"".join(text(key) + number(kind) + value for key, kind, value in facts)
    path.write_bytes(padded(head + entries) + data)


def shapes(tokens: int) -> dict[str, tuple[int, ...]]:
    """The names and dimensions of the tensors of a Llama model with one layer."""
    square = (WIDTH, WIDTH)
    layer = {
        "attn_norm": (WIDTH,),
        "ffn_norm": (WIDTH,),
        "attn_q": square,
        "attn_k": square,
        "attn_v": square,
        "attn_output": square,
        "ffn_gate": (HIDDEN, WIDTH),
        "ffn_up": (HIDDEN, WIDTH),
        "ffn_down": (WIDTH, HIDDEN),
    }
    return {
        "token_embd.weight": (tokens, WIDTH),
        "output.weight": (tokens, WIDTH),
        "output_norm.weight": (WIDTH,),
        **{f"blk.0.{name}.weight": shape for name, shape in layer.items()},
    }


def byte_tokens() -> list[str]:
    """The names of the 256 bytes: printable bytes are themselves, the others are moved past 255."""
    kept = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in kept else chr(next(others)) for byte in range(256)]


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def number(value: int) -> bytes:
    return struct.pack("<I", value)


def array(kind: int, items: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(items)) + b"".join(items)


def padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % ALIGNMENT)
