"""docs/how-to/many-machines.md, as a reader runs it, and examples/cluster."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from docs.pages import DOCS, ROOT, blocks, paste, run_shell
from orchestra.nats_servers import NatsServerProcess

from concertino.orchestra.authority import create_authority, issue
from concertino.orchestra.certificates import Certificates
from concertino.orchestra.nats_permissions import authorization
from concertino.orchestra.nats_server import find_server

PAGE = DOCS / "how-to" / "many-machines.md"
EXAMPLE = ROOT / "examples" / "cluster"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.mark.slow
def test_the_page_s_commands_do_what_it_says(tmp_path: Path) -> None:
    # Another port, because tests run side by side.
    port = str(free_port())
    page = tmp_path / "page.md"
    text = PAGE.read_text().replace("4222", port)
    page.write_text(text.replace("--store-dir store", f"--store-dir store --port {port}"))
    assert paste(page, tmp_path) == ["counter.py"]
    [file] = blocks(page.read_text(), "yaml")
    (tmp_path / "plugins.yaml").write_text(file)
    said = run_shell(page, tmp_path)
    assert "3 words, says process" in said
    assert "2 words, says process" in said


def test_the_server_s_configuration_is_valid(tmp_path: Path) -> None:
    """nats-server itself checks it, with the permissions of the page's command."""
    certificates = Certificates(tmp_path / "certs")
    create_authority(certificates)
    issue(certificates, "nats-server", hosts=["nats-1.example"])
    shutil.copy(EXAMPLE / "nats.conf", tmp_path)
    (tmp_path / "permissions.conf").write_text(authorization(["tools.counter"], {}))
    done = subprocess.run(
        [find_server(), "--config", "nats.conf", "-t"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "configuration file nats.conf is valid" in done.stderr, done.stderr


def test_the_permissions_of_keys_are_valid(tmp_path: Path) -> None:
    # A public key from the README of the package nkeys.
    key = "UCK5N7N66OBOINFXAYC2ACJQYFSOD4VYNU6APEJTAVFZB2SVHLKGEW7L"
    server = NatsServerProcess(tmp_path, authorization(["tools.counter"], {"tools.counter": key}))
    server.stop()


def test_the_files_of_the_example_name_the_same_machines_and_flags() -> None:
    compose = (EXAMPLE / "compose.yaml").read_text()
    unit = (EXAMPLE / "orchestra-plugin@.service").read_text()
    address = "tls://nats-1.example,nats-2.example,nats-3.example"
    assert address in compose
    assert address in unit
    routes = re.findall(r"nats-route://([\w.-]+):6222", (EXAMPLE / "nats.conf").read_text())
    assert routes == ["nats-1.example", "nats-2.example", "nats-3.example"]


def test_the_units_are_valid(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed: THE UNITS ARE NOT CHECKED HERE.")
    # The programs that they start need not be installed here.
    for name in ("nats-server.service", "orchestra-plugin@.service"):
        text = (EXAMPLE / name).read_text()
        text = re.sub(r"^(ExecStart|ExecReload)=\S+", r"\1=/bin/true", text, flags=re.MULTILINE)
        (tmp_path / name.replace("@", "@counter")).write_text(text)
    units = [str(path) for path in tmp_path.glob("*.service")]
    done = subprocess.run([verify, "verify", *units], capture_output=True, text=True, check=False)
    problems = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert not problems
