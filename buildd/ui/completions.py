"""Completions of the command line for bash, zsh and fish, written from its description.

Names of targets and builds come from buildd itself, when they are asked for. Knows no command by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from buildd.ui.command_line import Command, Value, Word

TARGETS = "buildd build --list 2>/dev/null | cut -d' ' -f1"
BUILDS = "echo last; buildd log 2>/dev/null | grep -oE '^[0-9a-f]{6,}'"
"""Shell commands that list names, one a line. They run in the folder of the shell."""


def completion(shell: str, commands: Sequence[Command]) -> str:
    """The script for a shell: "bash", "zsh" or "fish"."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](commands)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _all(commands: Iterable[Command]) -> list[Command]:
    """Commands and their actions."""
    return [each for command in commands for each in (command, *command.below)]


# ---------------------------------------------------------------- bash

_BASH = """\
# bash completion of buildd; written by `buildd completion bash`

_buildd() {
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= at=1
    local options= folders= files= programs= targets= builds= words= choices=
    COMPREPLY=()
    while [ "$at" -lt "$COMP_CWORD" ]; do
        case ${COMP_WORDS[at]} in
            -C|--directory|--color) at=$((at+2)) ;;
            -*) at=$((at+1)) ;;
            *) command=${COMP_WORDS[at]}; break ;;
        esac
    done
    if [ "$command" = cache ] && [ "$((at+1))" -lt "$COMP_CWORD" ]; then
        command="cache ${COMP_WORDS[at+1]}"
    fi
    case $command in
@CASES@
    esac
    local IFS=$'\\n'
    case $previous in
        -*)
            if [[ $folders == *" $previous "* ]]; then
                compopt -o filenames; COMPREPLY=($(compgen -d -- "$word")); return
            elif [[ $files == *" $previous "* ]]; then
                compopt -o filenames; COMPREPLY=($(compgen -f -- "$word")); return
            elif [[ $programs == *" $previous "* ]]; then
                COMPREPLY=($(compgen -c -- "$word")); return
            elif [[ $targets == *" $previous "* ]]; then
                COMPREPLY=($(compgen -W "$(@TARGETS@)" -- "$word")); return
            elif [[ $choices == *" $previous="* ]]; then
                choices=${choices#*" $previous="}
                IFS=' '; COMPREPLY=($(compgen -W "$(IFS=,; echo ${choices%% *})" -- "$word")); return
            elif [[ $texts == *" $previous "* ]]; then
                return
            fi ;;
    esac
    if [[ $word == -* ]]; then
        IFS=' '; COMPREPLY=($(compgen -W "$options" -- "$word")); return
    fi
    case " $words " in
        *" command "*) _buildd_command "$at"; return ;;
    esac
    local found=
    case " $words " in *" target "*) found=$(@TARGETS@) ;; esac
    case " $words " in *" build "*) found=$(@BUILDS@) ;; esac
    case " $words " in *" list "*) found=${list// /$'\\n'} ;; esac
    COMPREPLY=($(compgen -W "$found" -- "$word"))
    case " $words " in
        *" file "*) compopt -o filenames; COMPREPLY+=($(compgen -f -- "$word")) ;;
        *" folder "*) compopt -o filenames; COMPREPLY+=($(compgen -d -- "$word")) ;;
    esac
}

_buildd_command() {
    local at=$(($1+1))
    while [ "$at" -lt "$COMP_CWORD" ] && [[ ${COMP_WORDS[at]} == -* ]]; do
        case ${COMP_WORDS[at]} in
            --) at=$((at+1)); break ;;
            -j|--jobs|--record|--color) at=$((at+2)) ;;
            *) at=$((at+1)) ;;
        esac
    done
    if [ "$at" -ge "$COMP_CWORD" ]; then
        COMPREPLY=($(compgen -c -- "$word"))
    elif declare -F _command_offset >/dev/null; then
        _command_offset "$at"
    else
        compopt -o filenames; COMPREPLY=($(compgen -f -- "$word"))
    fi
}

complete -F _buildd buildd
"""


def _bash(commands: Sequence[Command]) -> str:
    names = " ".join(command.name for command in commands)
    top = "        '') options='--help --version -C --color' folders=' -C ' choices=' --color=auto,always,never '"
    cases = [f"{top} words=list list={_quoted(names)} ;;"]
    for command in _all(commands):
        options = [name for option in command.options for name in option.names]
        parts = [f"options={_quoted(' '.join(options))}"]
        for variable, value in (
            ("folders", Value.FOLDER),
            ("files", Value.FILE),
            ("programs", Value.PROGRAM),
            ("targets", Value.TARGET),
            ("texts", Value.TEXT),
        ):
            spelled = [name for option in command.options if value in option.values for name in option.names]
            if spelled:
                parts.append(f"{variable}=' {' '.join(spelled)} '")
        chosen = [f"{name}={','.join(each.choices)}" for each in command.options if each.choices for name in each.names]
        if chosen:
            parts.append(f"choices=' {' '.join(chosen)} '")
        words = [value.value for argument in command.arguments for value in argument.values]
        listed = [choice for argument in command.arguments for choice in argument.choices]
        listed += [action.name.split()[-1] for action in command.below]
        if listed:
            words.append("list")
            parts.append(f"list={_quoted(' '.join(listed))}")
        parts.append(f"words={_quoted(' '.join(words))}")
        cases.append(f"        {_quoted(command.name)}) {' '.join(parts)} ;;")
    text = _BASH.replace("@CASES@", "\n".join(cases)).replace("@TARGETS@", TARGETS).replace("@BUILDS@", BUILDS)
    return text.replace("local options= folders=", "local list= texts= options= folders=")


# ---------------------------------------------------------------- zsh

_ZSH = """\
#compdef buildd
# zsh completion of buildd; written by `buildd completion zsh`

_buildd_targets() { compadd "$@" -- ${(f)"$(@TARGETS@)"} }
_buildd_builds() { compadd "$@" -- ${(f)"$(@BUILDS@)"} }

_buildd() {
    local curcontext=$curcontext state line
    typeset -A opt_args
    _arguments -C \\
        '(- *)'{-h,--help}'[show the help]' '(- *)'{-V,--version}'[show the version]' \\
        '*-C[go to this folder first]:folder:_files -/' '--color[colours]:when:(auto always never)' \\
        '1:command:->command' '*::argument:->argument' && return
    case $state in
        command)
            local -a commands=(
@COMMANDS@
            )
            _describe command commands ;;
        argument)
            curcontext="${curcontext%:*}-$words[1]:"
            case $words[1] in
@CASES@
            esac ;;
    esac
}

if [ "$funcstack[1]" = _buildd ]; then _buildd "$@"; else compdef _buildd buildd; fi
"""
_ZSH_ACTIONS = {
    Value.TEXT: " ",
    Value.FILE: "_files",
    Value.FOLDER: "_files -/",
    Value.PROGRAM: "_command_names -e",
    Value.TARGET: "_buildd_targets",
    Value.BUILD: "_buildd_builds",
}


def _zsh(commands: Sequence[Command]) -> str:
    listed = "\n".join(f"                {_quoted(_escaped(each.name) + ':' + each.summary)}" for each in commands)
    cases = []
    for command in commands:
        if command.below:
            cases.append(_zsh_below(command))
        else:
            cases.append(f"                {command.name}) _arguments -s -S \\\n{_zsh_arguments(command, 20)} ;;")
    text = _ZSH.replace("@COMMANDS@", listed).replace("@CASES@", "\n".join(cases))
    return text.replace("@TARGETS@", TARGETS).replace("@BUILDS@", BUILDS)


def _zsh_below(command: Command) -> str:
    """A command whose first argument is an action with arguments of its own."""
    actions = " ".join(_quoted(f"{each.name.split()[-1]}:{each.summary}") for each in command.below)
    cases = "\n".join(
        f"                        {each.name.split()[-1]}) _arguments -s -S \\\n{_zsh_arguments(each, 28)} ;;"
        for each in command.below
    )
    own = _zsh_arguments(command, 20)
    return f"""\
                {command.name})
                    local -a actions=({actions})
                    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then _describe action actions; return; fi
                    shift words; (( CURRENT-- ))
                    case $words[1] in
{cases}
                        *) _arguments -s -S \\
{own} ;;
                    esac ;;"""


def _zsh_arguments(command: Command, indent: int) -> str:
    specs = []
    for option in command.options:
        takes = option.values != (Value.NONE,)
        help = _escaped(option.help)
        tail = f":{_escaped(option.metavar)}:{_zsh_action(option)}" if takes else ""
        for name in option.names:
            specs.append(_quoted(f"*{name}{'=' if takes and name.startswith('--') else ''}[{help}]{tail}"))
    for number, argument in enumerate(command.arguments, 1):
        if Value.COMMAND in argument.values:
            specs += ["'(-)1:command:_command_names -e'", "'*::argument:_normal'"]
        else:
            place = "*" if argument.many else number
            specs.append(_quoted(f"{place}:{_escaped(argument.metavar)}:{_zsh_action(argument)}"))
    return " \\\n".join(" " * indent + spec for spec in specs)


def _zsh_action(word: Word) -> str:
    if word.choices:
        return f"({' '.join(word.choices)})"
    actions = [_ZSH_ACTIONS[value] for value in word.values]
    return actions[0] if len(actions) == 1 else "{" + "; ".join(actions) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace(":", "\\:").replace("[", "\\[").replace("]", "\\]")


# ---------------------------------------------------------------- fish


def _fish(commands: Sequence[Command]) -> str:
    lines = [
        "# fish completion of buildd; written by `buildd completion fish`",
        "complete -c buildd -f",
        "complete -c buildd -n __fish_use_subcommand -s h -l help -d 'show the help'",
        "complete -c buildd -n __fish_use_subcommand -s V -l version -d 'show the version'",
        "complete -c buildd -n __fish_use_subcommand -s C -x -a '(__fish_complete_directories)' -d 'go to this folder'",
        "complete -c buildd -n __fish_use_subcommand -l color -x -a 'auto always never' -d colours",
    ]
    for command in commands:
        lines.append(f"complete -c buildd -n __fish_use_subcommand -a {command.name} -d {_fished(command.summary)}")
        within = f"__fish_seen_subcommand_from {command.name}"
        actions = " ".join(each.name.split()[-1] for each in command.below)
        lines += _fish_words(command, within)
        for each in command.below:
            name = each.name.split()[-1]
            first = f"{within}; and not __fish_seen_subcommand_from {actions}"
            lines.append(f"complete -c buildd -n {_fished(first)} -a {name} -d {_fished(each.summary)}")
            lines += _fish_words(each, f"{within}; and __fish_seen_subcommand_from {name}")
    return "\n".join(lines) + "\n"


_FISH_ARGUMENTS = {
    Value.FILE: "-r -F",
    Value.FOLDER: "-x -a '(__fish_complete_directories)'",
    Value.PROGRAM: "-x -a '(__fish_complete_command)'",
    Value.TARGET: f'-x -a "({TARGETS})"',
    Value.BUILD: f'-x -a "({BUILDS})"',
    Value.COMMAND: "-x -a '(__fish_complete_subcommand --fcs-skip=2)'",
    Value.TEXT: "-x",
}


def _fish_words(command: Command, within: str) -> list[str]:
    start = f"complete -c buildd -n {_fished(within)}"
    lines = []
    for option in command.options:
        names = " ".join(f"-l {each[2:]}" if each.startswith("--") else f"-s {each[1:]}" for each in option.names)
        takes = "" if option.values == (Value.NONE,) else _FISH_ARGUMENTS[option.values[0]] + " "
        if option.choices:
            takes = f"-x -a {_fished(' '.join(option.choices))} "
        lines.append(f"{start} {names} {takes}-d {_fished(option.help)}")
    for argument in command.arguments:
        if argument.choices:
            lines.append(f"{start} -a {_fished(' '.join(argument.choices))}")
            continue
        for value in argument.values:
            if value is not Value.TEXT:
                lines.append(start + " " + _FISH_ARGUMENTS[value].removeprefix("-x ").removeprefix("-r "))
    return lines


def _fished(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
