"""Generates the scripts of `concertino completion`, which complete command lines in a shell.

SCRIPTS has a function for each shell. It takes all commands (command_words.py) and returns the
script, which is a template of that shell with the commands, options and values filled in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from shlex import quote

from concertino.cli.command_words import CommandWords, OptionWords, Values

__all__ = ["SCRIPTS"]


# bash


def _make_bash(commands: Sequence[CommandWords]) -> str:
    """Return a script for bash 3.2 and newer, which needs no other package."""
    # The lists below become branches of the `case` statements in _BASH. The pattern of a branch is
    # `PATH:WORD`, where PATH is a command such as `certs issue`, and WORD is an option, a
    # subcommand, `options`, or the number of an argument.
    # Branches that add a subcommand to the path when the subcommand has been typed.
    subcommands: list[str] = []
    # Patterns of the options that take a value.
    takers: list[str] = []
    # Branches that complete the value of an option.
    values: list[str] = []
    # Branches that complete options, subcommands and arguments.
    words: list[str] = []
    for command in commands:
        path = command.path
        for name in command.commands:
            subcommands.append(f"{_case(path, name)}) path={quote(f'{path} {name}'.strip())} ;;")
        for option in command.options:
            if option.values is not None:
                cases = "|".join(_case(path, name) for name in option.names)
                takers.append(cases)
                values.append(f"{cases}) {_format_bash_values(option.values)} ;;")
        names = [name for option in command.options for name in option.names]
        words.append(f"{_case(path, 'options')}) {_format_bash_values(Values(tuple(names)))} ;;")
        if command.commands:
            choices = Values(tuple(command.commands))
            words.append(f"{_case(path, '0')}) {_format_bash_values(choices)} ;;")
        for place, argument in enumerate(command.arguments):
            pattern = _case(path, place)
            if command.has_rest and place == len(command.arguments) - 1:
                # The last argument may be repeated, so this branch is for any further number.
                pattern = f"{quote(path + ':')}*"
            words.append(f"{pattern}) {_format_bash_values(argument)} ;;")
    return _BASH.format(
        subcommands="\n            ".join(subcommands),
        takers=" | ".join(takers),
        values="\n            ".join(values),
        words="\n            ".join(words),
    )


def _case(path: str, word: object) -> str:
    """Return the pattern `PATH:WORD` of a branch, quoted for the shell."""
    return quote(f"{path}:{word}")


def _format_bash_values(values: Values) -> str:
    """Return the shell command that completes a value; `:`, which does nothing, for any text."""
    if values.choices:
        return f"_concertino_words {quote(' '.join(values.choices))}"
    if values.is_folder:
        return "_concertino_files -d"
    return "_concertino_files -f" if values.is_file else ":"


_BASH = """\
# Completion of concertino for bash; made by: concertino completion bash

_concertino_words() {{
    COMPREPLY=($(compgen -W "$1" -- "$cur"))
}}

_concertino_files() {{
    local IFS=$'\\n'
    COMPREPLY=($(compgen "$1" -- "$cur"))
    # Appends slashes to folders, and quotes spaces; bash 3.2 does not have it.
    compopt -o filenames 2>/dev/null
}}

_concertino() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} path= option= place=0 index word
    COMPREPLY=()
    for ((index = 1; index < COMP_CWORD; index++)); do
        word=${{COMP_WORDS[index]}}
        # bash splits words at these.
        [[ $word == [=:] ]] && continue
        if [[ $word == -- ]]; then
            _concertino_server $((index + 1))
            return
        elif [[ -n $option ]]; then
            option=
            continue
        fi
        case $path:$word in
            {takers}) option=$word ;;
            {subcommands}
            *:-*) ;;
            *) ((place++)) ;;
        esac
    done
    [[ $cur == [=:] ]] && cur=
    if [[ -n $option ]]; then
        case $path:$option in
            {values}
        esac
        return
    fi
    [[ $cur == -* ]] && place=options
    case $path:$place in
            {words}
    esac
}}

# Completes the command line of a server, from this word on.
_concertino_server() {{
    if declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif ((COMP_CWORD == $1)); then
        _concertino_files -c
    else
        _concertino_files -f
    fi
}}

complete -F _concertino concertino
"""


# zsh


def _make_zsh(commands: Sequence[CommandWords]) -> str:
    """Return a script for zsh, to be evaluated or to be put into a folder of fpath."""
    return _ZSH.format(functions="\n".join(_make_zsh_function(command) for command in commands))


def _make_zsh_function(command: CommandWords) -> str:
    """Return a shell function that completes one command."""
    specs = [spec for option in command.options for spec in _format_zsh_option(option)]
    lines = [f"{_zsh_function_name(command.words)}() {{"]
    if command.commands:
        lines.append("    local curcontext=$curcontext state line")
        lines.append("    typeset -A opt_args")
        # These set $state to `command` at the first word, and to `words` at the words after it.
        specs += ["1: :->command", "*:: :->words"]
    for place, values in enumerate(command.arguments, 1):
        is_last = place == len(command.arguments)
        index = "*" if is_last and command.has_rest else str(place)
        specs.append(f"{index}: :{_format_zsh_values(values)}")
    lines.append(f"    _arguments -C {' '.join(map(quote, specs))}")
    if command.commands:
        described = [
            quote(f"{name}:{_escape_zsh(text, ':')}") for name, text in command.commands.items()
        ]
        lines += [
            "    case $state in",
            "        command)",
            f"            local -a commands=({' '.join(described)})",
            "            _describe -t commands command commands",
            "            ;;",
            "        words)",
            "            case $line[1] in",
            *(
                f"                {name}) {_zsh_function_name((*command.words, name))} ;;"
                for name in command.commands
            ),
            "            esac",
            "            ;;",
            "    esac",
        ]
    lines.append("}\n")
    return "\n".join(lines)


def _zsh_function_name(words: tuple[str, ...]) -> str:
    return "_".join(("_concertino_at", *words))


def _format_zsh_option(option: OptionWords) -> list[str]:
    """Return the specification of an option for _arguments, one for each spelling."""
    help = _escape_zsh(option.help, "[]:")
    # `*` allows the option several times. `(NAMES)` excludes all its spellings once one was typed.
    prefix = "*" if option.is_repeatable else f"({' '.join(option.names)})"
    specs: list[str] = []
    for name in option.names:
        if option.values is None:
            specs.append(f"{prefix}{name}[{help}]")
        else:
            equals = "=" if name.startswith("--") else ""
            specs.append(f"{prefix}{name}{equals}[{help}]: :{_format_zsh_values(option.values)}")
    return specs


def _format_zsh_values(values: Values) -> str:
    if values.choices:
        return f"({' '.join(values.choices)})"
    if values.is_folder:
        return "_files -/"
    # `()`, an empty list of words, stands for a value that cannot be completed. With a space
    # instead, zsh would not complete options in its place.
    return "_files" if values.is_file else "()"


def _escape_zsh(text: str, special: str) -> str:
    return "".join(f"\\{char}" if char in f"\\{special}" else char for char in text)


_ZSH = """\
#compdef concertino
# Completion of concertino for zsh; made by: concertino completion zsh

_concertino() {{
    # After -- is the command line of a server.
    local -i separator=${{words[(i)--]}}
    if ((separator < CURRENT)); then
        shift $separator words
        ((CURRENT -= separator))
        _normal
        return
    fi
    _concertino_at
}}

{functions}
# A file in a folder of fpath is run as the function itself.
if [[ ${{funcstack[1]}} == _concertino ]]; then
    _concertino "$@"
else
    compdef _concertino concertino
fi
"""


# fish


def _make_fish(commands: Sequence[CommandWords]) -> str:
    """Return a script for fish 3.1 and newer."""
    paths = [command.path for command in commands if command.path]
    lines = [_FISH.replace("@PATHS@", " ".join(map(_quote_fish, paths)))]
    for command in commands:
        condition = f"__concertino_at {_quote_fish(command.path)}"
        start = f"complete -c concertino -n {_quote_fish(condition)}"
        for name, text in command.commands.items():
            lines.append(f"{start} -a {name} -d {_quote_fish(text)}")
        for option in command.options:
            names = [
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            ]
            value = "" if option.values is None else f" {_format_fish_values(option.values, '-x')}"
            lines.append(f"{start} {' '.join(names)}{value} -d {_quote_fish(option.help)}")
        for values in dict.fromkeys(command.arguments):
            # Values() stands for any text, which cannot be completed.
            if values != Values():
                lines.append(f"{start} {_format_fish_values(values, '')}".rstrip())
    return "\n".join(lines) + "\n"


def _format_fish_values(values: Values, exclusive: str) -> str:
    """Return the arguments of fish's `complete` for values.

    exclusive: "-x" for the value that an option requires; "" for the argument of a command.
    """
    if values.choices:
        return f"{exclusive} -a {_quote_fish(' '.join(values.choices))}".strip()
    if values.is_folder:
        return f"{exclusive} -a '(__fish_complete_directories (commandline -ct))'".strip()
    if values.is_file:
        return "-r -F" if exclusive else "-F"
    return exclusive


def _quote_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_FISH = """\
# Completion of concertino for fish; made by: concertino completion fish

# Whether the words so far are these commands; "--" stands for the command line of a server.
function __concertino_at
    set -l words (commandline -opc)[2..-1]
    set -l path ''
    if contains -- -- $words
        set path --
    else
        for word in $words
            set -l next (string trim -- "$path $word")
            contains -- $next @PATHS@; and set path $next
        end
    end
    test "$path" = "$argv[1]"
end

# Completes the command line of a server.
function __concertino_server
    set -l words (commandline -opc) (commandline -ct)
    set -l first (math (contains -i -- -- $words) + 1)
    set -l line (string escape -- $words[$first..-1])
    complete -C (string join ' ' -- $line)
end

complete -c concertino -f
complete -c concertino -n '__concertino_at --' -a '(__concertino_server)'
"""

SCRIPTS: dict[str, Callable[[Sequence[CommandWords]], str]] = {
    "bash": _make_bash,
    "zsh": _make_zsh,
    "fish": _make_fish,
}
