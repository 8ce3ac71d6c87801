"""Options that several commands share.

Each function whose name begins with `add_` adds options to a parser of argparse, so that they have
the same names, types and help in all commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from argparse import _ArgumentGroup as ArgumentGroup  # pyright: ignore[reportPrivateUsage]

    from concertino.runtime.entry import LoopFactory

    Options = ArgumentParser | ArgumentGroup


def add_repeatable(
    options: Options,
    name: str,
    metavar: str,
    help: str,
) -> None:
    """Add an option that may be given several times. Its value is a list, by default [].

    options: the parser, or a group of options in it.
    name: the option, such as "--env".
    metavar: the name of the option's value in the help, such as "NAME=VALUE".
    help: the description of the option in the help.
    """
    options.add_argument(name, action="append", default=[], metavar=metavar, help=help)


def add_library_options(options: Options, *, with_prompts: bool = True) -> None:
    """Add --resources, --prompts and --scheme, which say where a library finds its Markdown files.

    with_prompts: whether to add --prompts.
    """
    for kind in ("resources", "prompts") if with_prompts else ("resources",):
        options.add_argument(
            f"--{kind}",
            metavar="DIR",
            help=f"folder of the {kind} (default DIR/{kind}, or {kind.upper()}_PATH)",
        )
    options.add_argument(
        "--scheme", metavar="NAME", help="scheme of the resources' URIs (default orchestr8)"
    )


def add_tokenizer(options: Options) -> None:
    """Add --tokenizer, which selects how tokens are counted."""
    options.add_argument(
        "--tokenizer",
        default="estimate",
        metavar="NAME",
        help="estimate, cl100k_base or o200k_base",
    )


def add_log_format(options: Options) -> None:
    """Add --log-format, which selects the format of the log on stderr."""
    options.add_argument(
        "--log-format", choices=("line", "json", "trace"), help="format of the log lines on stderr"
    )


def add_trace(options: Options) -> None:
    """Add --trace, which shows every message on stderr."""
    # With None, the environment variable CONCERTINO_TRACE decides.
    options.add_argument(
        "--trace", action="store_true", default=None, help="show every message on stderr"
    )


def add_uvloop(options: Options) -> None:
    """Add --uvloop, which selects the event loop of commands that serve HTTP."""
    options.add_argument("--uvloop", action="store_true", help="use the event loop of uvloop")


def read_loop_factory(args: Namespace) -> LoopFactory | None:
    """Return the function that makes the event loop of --uvloop; None without this option.

    Raises UsageError if uvloop is not installed.
    """
    if not args.uvloop:
        return None
    try:
        import uvloop
    except ImportError:
        from concertino.cli import UsageError
        from concertino.installation import missing_extra

        raise UsageError(missing_extra("--uvloop", "uvloop")) from None
    return uvloop.new_event_loop


def parse_positive(text: str) -> int:
    """Return a text as a positive integer, for the `type` of an option.

    Raises ArgumentTypeError for 0 and negative numbers, and ValueError for a text that is not an
    integer. argparse reports both to the user.
    """
    number = int(text)
    if number < 1:
        from argparse import ArgumentTypeError

        raise ArgumentTypeError(f"expected a positive number, got {text}")
    return number


def add_certs_dir(options: Options) -> None:
    """Add --certs-dir, which names the folder of the certificates of hubs and plugins."""
    options.add_argument(
        "--certs-dir",
        metavar="DIR",
        help="folder of the certificates (default ~/.orchestra/certs)",
    )
