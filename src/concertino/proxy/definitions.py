"""Definitions: descriptions of the program that an entry of a server file runs.

The user approves the definition of a server before concertino starts it. A definition is a dict
with a member for each value of the entry, such as `command` or `env.TOKEN`. Each member has a
digest of the value, and its text if the value is not secret. approvals.py stores the approved
definitions; a server whose definition has changed needs a new approval.
"""

from __future__ import annotations

import hmac
import shlex
from collections.abc import Mapping

from msgspec import Struct

from concertino.excerpts import shorten
from concertino.logs.formats import escape_controls
from concertino.logs.redact import learn_named_secrets, redactor
from concertino.proxy.expansion import NOT_SHOWN, find_defaults, find_inputs, show_references
from concertino.proxy.secret_sources import SECRET
from concertino.proxy.server_file import ServerEntry, ServerFile
from concertino.proxy.value_reader import Template

__all__ = [
    "CODE_VARIABLES",
    "Definition",
    "DefinitionPart",
    "MemberText",
    "compare_definitions",
    "define_server",
    "is_same_definition",
    "make_definition",
    "value_text",
    "visible_texts",
]

# How many characters of a value are stored and logged at most.
MAX_SHOWN = 300
# Variables, in upper case, that make programs load or install other code. Their values are shown,
# because like the command they decide which code runs.
CODE_VARIABLES = frozenset(
    """
    BASH_ENV DYLD_INSERT_LIBRARIES DYLD_LIBRARY_PATH EDITOR ENV GIT_EXTERNAL_DIFF GIT_SSH
    GIT_SSH_COMMAND JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS LD_AUDIT LD_LIBRARY_PATH LD_PRELOAD
    NODE_OPTIONS NODE_PATH NPM_CONFIG_PREFIX NPM_CONFIG_REGISTRY NPM_CONFIG_SCRIPT_SHELL PAGER PATH
    PERL5LIB PERL5OPT PIP_EXTRA_INDEX_URL PIP_INDEX_URL PYTHONHOME PYTHONPATH PYTHONSTARTUP RUBYLIB
    RUBYOPT SHELL UV_DEFAULT_INDEX UV_EXTRA_INDEX_URL UV_INDEX UV_INDEX_URL _JAVA_OPTIONS
    """.split()  # noqa: SIM905
)
# The options under `auth` whose values are secrets.
SECRET_AUTH_OPTIONS = ("client_secret", "private_key")


class DefinitionPart(Struct, frozen=True, array_like=True):
    """One member of a server's definition (what the user approves), such as `env.TOKEN`.

    digest: the HMAC-SHA256 of its text. Without the user's key, a secret cannot be guessed from it.
    log_text: the text for logs, without secrets and shortened; "" if all of it may be a secret.
    """

    digest: str
    log_text: str


class MemberText(Struct, frozen=True):
    """The text of one member of a definition.

    whole: the text as it is in the file, which decides what runs.
    visible: the text that users may see, in which `(not shown)` stands for each part that may be a
        secret; "" if all of it may be a secret.
    """

    whole: str
    visible: str


# Name of a member -> the member.
Definition = Mapping[str, DefinitionPart]


def define_server(
    entry: ServerEntry,
    file: ServerFile,
    env_file: Mapping[str, str],
    key: bytes,
) -> Definition:
    """Return the definition of a server: everything that decides which program runs, and how.

    Returns name of a member -> the member. The members are what the entry has of these values:

    - the command, its arguments and the working directory;
    - the environment variables and HTTP headers;
    - the address, and the OAuth settings for it;
    - the defaults of the inputs to which the entry refers;
    - which clients share a process, and whether changed tools are withheld.

    References such as `${VAR}` are not replaced: the user who starts this program sets the
    variables, and trusts them. The same holds for `secret:...`: only where a secret is stored, or
    which command prints it, is part of the definition.
    entry: the server's entry in `file`.
    env_file: the variables in the server's `envFile`.
    key: the user's secret key for the digests of values that users do not see.
    """
    # The default of a variable with a secret name, as in ${TOKEN:-abc}, is a secret too. Tell the
    # Redactor, which hides secrets in logs, about these defaults.
    defaults = [
        pair for template in _list_templates(entry) for pair in find_defaults(template.text)
    ]
    # Two variables of one name may have different defaults, so each name gets a number. `TOKEN__1`
    # still counts as a secret name. All are learned in one call, because each call builds the
    # Redactor again.
    learn_named_secrets({f"{name}__{number}": text for number, (name, text) in enumerate(defaults)})
    return make_definition(_make_member_texts(entry, file, env_file), key)


def make_definition(texts: Mapping[str, MemberText], key: bytes) -> Definition:
    """Make a definition, name of a member -> the member, from the texts of its members.

    The texts that users must not see are also hidden in logs from now on.
    texts: name of a member -> its text.
    key: the user's secret key for the digests.
    """
    # Values that are hidden must not be shown in other members either, such as an argument. The
    # Redactor decides by the name after the dot, as in `env.TOKEN`.
    hidden = {name: text.whole for name, text in texts.items() if text.visible != text.whole}
    learn_named_secrets({name.partition(".")[2]: text for name, text in hidden.items()})
    return {
        member: DefinitionPart(_make_digest(key, member, text.whole), _clean(text.visible))
        for member, text in texts.items()
    }


def visible_texts(
    entry: ServerEntry, file: ServerFile, env_file: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the texts of a server's definition that a user sees before approving it.

    Returns name of a member -> its text. Secret members are missing. The texts are not shortened,
    and commands are not redacted: otherwise a file could hide a part of a command from the user.
    entry, file, env_file: the same as for define_server().
    """
    texts = _make_member_texts(entry, file, env_file)
    return {member: text.visible for member, text in texts.items() if text.visible}


def value_text(text: str) -> MemberText:
    """Return the text of a value that may contain secrets, and what users may see of it.

    They may see its `${...}` references, and all of a value such as `secret:NAME`.
    text: the value, as in the server file.
    """
    # A value such as `secret:NAME` says where a secret is stored, and does not contain it, so all
    # of it may be shown.
    return MemberText(text, text if text.startswith(SECRET) else show_references(text))


def _make_member_texts(
    entry: ServerEntry, file: ServerFile, env_file: Mapping[str, str]
) -> dict[str, MemberText]:
    """Return the texts of all members of a definition."""
    texts = {member: MemberText(text, text) for member, text in _list_plain_texts(entry).items()}
    for name, value in env_file.items():
        # References in an envFile are not replaced, so they are not shown like those in `env`.
        texts[f"envFile.{name}"] = MemberText(value, value if _is_code_variable(name) else "")
    for name, template in entry.env.items():
        is_visible = _is_code_variable(name)
        texts[f"env.{name}"] = _make_member_text(template.text, is_visible=is_visible)
    for name, template in entry.headers.items():
        texts[f"headers.{name}"] = value_text(template.text)
    for name, template in entry.options.auth.items():
        is_visible = name not in SECRET_AUTH_OPTIONS
        texts[f"auth.{name}"] = _make_member_text(template.text, is_visible=is_visible)
    used = {id for template in _list_templates(entry) for id in find_inputs(template.text)}
    for id in sorted(used & file.inputs.keys()):
        declared = file.inputs[id]
        if (default := declared.default) is not None:
            # Like value_text(), show a default that only says where a secret is stored.
            is_visible = not declared.is_secret or default.startswith(SECRET)
            texts[f"inputs.{id}"] = MemberText(default, default if is_visible else "")
    return texts


def _is_code_variable(name: str) -> bool:
    return name.upper() in CODE_VARIABLES


def _make_member_text(text: str, *, is_visible: bool) -> MemberText:
    """Return the text of a value.

    is_visible: whether users see the whole value, or only the `${...}` references in it.
    """
    return MemberText(text, text) if is_visible else value_text(text)


def _list_plain_texts(entry: ServerEntry) -> dict[str, str]:
    """Return the members of an entry that cannot contain secrets."""
    texts: dict[str, str] = {}
    if entry.command is not None:
        texts["command"] = entry.command.text
        if entry.args:
            texts["args"] = shlex.join(arg.text for arg in entry.args)
    if entry.url is not None:
        texts["url"] = entry.url.text
    if entry.cwd is not None:
        texts["cwd"] = entry.cwd.text
    options = entry.options
    if options.inherit:
        texts["inherit"] = ", ".join(options.inherit)
    if options.isolation != "auto":
        texts["isolation"] = options.isolation
    if options.shared:
        texts["shared"] = "true"
    if options.pin:
        texts["pin"] = "true"
    return texts


def _list_templates(entry: ServerEntry) -> list[Template]:
    """Return all texts of an entry that may contain `${...}`."""
    single = (entry.command, entry.url, entry.cwd, entry.env_file)
    return [
        *(template for template in single if template is not None),
        *entry.args,
        *entry.env.values(),
        *entry.headers.values(),
        *entry.options.auth.values(),
    ]


def _make_digest(
    key: bytes,
    member: str,
    text: str,
) -> str:
    # JSON may contain lone surrogates, such as "\ud800", which UTF-8 does not allow.
    data = f"{member}\0{text}".encode("utf-8", "surrogatepass")
    return hmac.digest(key, data, "sha256").hex()


def _clean(text: str) -> str:
    """Return a text for logs: in one line, shortened, and without the secrets that are known."""
    return shorten(escape_controls(redactor().text(text)), MAX_SHOWN)


def is_same_definition(approved: Definition | None, current: Definition) -> bool:
    """Return whether two definitions are equal in all members, so that the approval holds.

    approved: the approved definition. None if there is none; then the result is False.
    current: the definition for the present content of the server file.
    """
    # Compare only the digests. The texts for logs may differ, because each process hides the
    # secrets that it knows.
    return approved is not None and _digests_of(approved) == _digests_of(current)


def _digests_of(definition: Definition) -> Mapping[str, str]:
    return {member: part.digest for member, part in definition.items()}


def compare_definitions(
    approved: Definition | None, current: Definition, texts: Mapping[str, str] | None = None
) -> list[str]:
    """Return lines that tell a user how the definition of a server differs from the approved one.

    The lines are like those of a diff: `- command: uvx a`, `+ command: uvx b`. If the difference
    is in a secret, the line is `~ env.TOKEN: another value`. Returns [] if nothing differs.
    approved: the approved definition; None if the server is new.
    current: the definition for the present content of the server file.
    texts: member of the current definition -> its whole text, as visible_texts() returns them. If
        this is None, the lines contain the shortened texts for logs.
    """
    whole = texts or {}
    before = approved or {}
    lines: list[str] = []
    for member in (*current, *(name for name in before if name not in current)):
        old, new = before.get(member), current.get(member)
        old_text = None if old is None else _describe(old)
        new_text = None if new is None else _describe(new)
        if new is not None and member in whole:
            new_text = escape_controls(whole[member])
        if old is not None and new is not None:
            if hmac.compare_digest(old.digest, new.digest):
                continue
            if old_text == new_text:
                # The values differ only in a part that is not shown.
                lines.append(f"  ~ {member}: another value")
                continue
        if old_text is not None:
            lines.append(f"  - {member}: {old_text}")
        if new_text is not None:
            lines.append(f"  + {member}: {new_text}")
    return lines


def _describe(part: DefinitionPart) -> str:
    return part.log_text or NOT_SHOWN
