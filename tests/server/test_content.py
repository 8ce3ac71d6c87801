"""server/content.py: pictures, sound and bytes.

First bytes are those of each format's own specification.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from concertino import audio, blob, image


@pytest.mark.requirement("PM-5")
@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        (b"\x89PNG\r\n\x1a\n....", "image/png"),
        (b"\xff\xd8\xff\xe0....", "image/jpeg"),
        (b"GIF87a....", "image/gif"),
        (b"GIF89a....", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
        (b"<?xml version='1.0'?>\n<!-- a <g> -->\n<svg xmlns='...'/>", "image/svg+xml"),
    ],
)
def test_a_picture_is_known_by_its_first_bytes(data: bytes, mime_type: str, tmp_path: Path) -> None:
    made = image(data)
    assert (made.data, made.mime_type) == (data, mime_type)
    (tmp_path / "file").write_bytes(data)
    assert image(tmp_path / "file") == image(str(tmp_path / "file")) == made


@pytest.mark.parametrize(
    ("data", "mime_type"),
    [
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", "audio/wav"),
        (b"OggS\x00", "audio/ogg"),
        (b"fLaC\x00", "audio/flac"),
        (b"ID3\x04", "audio/mpeg"),
        (b"\xff\xfb\x90\x00", "audio/mpeg"),
        (b"\x00\x00\x00\x20ftypM4A ", "audio/mp4"),
    ],
)
def test_sound_is_known_by_its_first_bytes(data: bytes, mime_type: str) -> None:
    made = audio(data)
    assert (made.data, made.mime_type) == (data, mime_type)


def test_a_type_that_is_given_is_taken() -> None:
    assert image(b"anything", "image/x-mine").mime_type == "image/x-mine"
    assert audio(b"", "audio/x-mine").mime_type == "audio/x-mine"


@pytest.mark.parametrize("data", [b"", b"text", b"\x89PNG", b"RIFF\x00\x00\x00\x00WAVE"])
def test_bytes_of_no_known_picture_are_refused_with_what_to_do(data: bytes) -> None:
    with pytest.raises(ValueError, match="pass mime_type"):
        image(data)


def test_a_picture_is_no_sound() -> None:
    with pytest.raises(ValueError, match="audio"):
        audio(b"\x89PNG\r\n\x1a\n")


def test_a_file_that_is_not_there_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        image("/no/such/file.png")


def test_a_blob_is_an_embedded_resource() -> None:
    made = blob(b"\x00\x01", "report://q3.pdf", "application/pdf")
    assert made.resource.uri == "report://q3.pdf"
    assert made.resource.blob == b"\x00\x01"
    assert made.resource.mime_type == "application/pdf"
    assert blob(b"", "x:y").resource.mime_type == "application/octet-stream"
