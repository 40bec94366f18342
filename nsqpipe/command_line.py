"""Makes a command line from tables of settings: the options of each job, the file of `--config`, and one-line errors.

Typer reads a command's options from the signature of its function. This module builds that signature from the job's
table, so each setting is written once, in `jobs.py`. We only use typer's public names, because typer contains its own
copy of click, which doesn't accept the classes of an installed click.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from nsqcommon.entry import release_signals
from nsqcommon.version import suite_version
from nsqpipe.configuration import Values, read_config
from nsqpipe.settings import Job, Setting, settings_of

ABOUT_CONFIG: Final = "TOML file with options: a table for each command, as in [land] topic = ['clicks']"
WRONG: Final = 2  # the exit status of a wrong command line

Commands = Mapping[str, tuple[type[Job], Callable[[Any], None]]]  # by name; a group is its first word


class _OneLine(TyperGroup):
    """The group of all commands, which reports a wrong command line in one line."""

    def main(self, *args: Any, **extra: Any) -> Any:
        extra["standalone_mode"] = False
        try:
            status = super().main(*args, **extra)
        except typer.TyperException as error:
            context = getattr(error, "ctx", None)
            name = context.command_path if context else "nsqpipe"
            typer.echo(f"{name}: {_one_line(error.format_message())} ({name} --help)", err=True)
            status = WRONG
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override] # typer.Context is the public name of its base
        try:
            release_signals()
            return super().invoke(ctx)
        except KeyboardInterrupt:  # before there was anything to stop
            typer.echo("nsqpipe: stopped", err=True)
            raise typer.Exit from None


def root(about: str, epilog: str, groups: Mapping[str, str], commands: Commands) -> typer.Typer:
    """Return the command line with all commands; `groups` has the help text of each group."""
    top = _group(cls=_OneLine, help=about, epilog=epilog, context_settings={"help_option_names": ["-h", "--help"]})
    top.callback(invoke_without_command=True)(_first(commands))
    within = {name: _group(help=text, callback=_help_if_alone) for name, text in groups.items()}
    for name, (job, run) in commands.items():
        *group, last = name.split()
        _add(within[group[0]] if group else top, last, job, run)
    for name, made in within.items():
        top.add_typer(made, name=name, invoke_without_command=True)
    return top


def _group(**about: Any) -> typer.Typer:
    # Help is plain text, because rich would parse the [tables] of a TOML file in it as markup.
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, **about)


def _first(commands: Commands) -> Callable[..., None]:
    """Return the callback for the options before a command."""
    jobs = {name: job for name, (job, _) in commands.items()}

    def configure(
        context: typer.Context,
        config: Annotated[Path | None, typer.Option(help=ABOUT_CONFIG)] = None,
        version: Annotated[bool, typer.Option("--version", help="show the version")] = False,
    ) -> None:
        if version:
            typer.echo(f"nsqpipe v{suite_version()}")
            raise typer.Exit
        _help_if_alone(context)
        if config is not None:
            try:
                context.default_map = _nested(read_config(config, jobs))
            except ValueError as error:
                context.fail(str(error))

    return configure


def _help_if_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(WRONG)


def _nested(said: Mapping[str, Values]) -> dict[str, Any]:
    """Return the values in typer's form: the commands of a group are in a dictionary of that group."""
    found: dict[str, Any] = {}
    for name, values in said.items():
        *group, last = name.split()
        (found.setdefault(group[0], {}) if group else found)[last] = values
    return found


# One command


def _add(to: typer.Typer, name: str, job: type[Job], run: Callable[[Any], None]) -> None:
    settings = ordered(job)

    def start(context: typer.Context, **given: Any) -> None:
        made = job(**{it.name: tuple(given[it.name] or ()) if it.repeats else given[it.name] for it in settings})
        for problem in made.problems():
            context.fail(problem)
        run(made)

    own = inspect.signature(start).parameters["context"]
    parameters = [own.replace(annotation=typer.Context), *map(_parameter, settings)]
    start.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer asks inspect, which asks here
    takes_words = any(not it.flag and it.repeats for it in settings)
    extra = {"allow_interspersed_args": False} if takes_words else {}
    to.command(name, help=job.__doc__, context_settings=extra)(start)


def ordered(job: type[Job]) -> list[Setting]:
    """Return the settings in the order of `--help`: required ones, then this job's own, then the rest."""
    own = vars(job).get("__annotations__", {})
    return sorted(settings_of(job), key=lambda it: (not it.is_required, it.name not in own))


def _parameter(it: Setting) -> inspect.Parameter:
    # Help shows the default from the table of settings, because a value from the --config file may be a password.
    about: Any = {"help": it.help, "parser": _parser(it), "show_default": it.shown_default() or False}
    if it.repeats:
        about |= {"metavar": f"<{it.type.__name__}>"}  # typer would show a list
    if it.flag:
        about |= {"min": it.at_least}
    made: Any = typer.Option(it.flag, **about) if it.flag else typer.Argument(**about)
    of_one: Any = it.type
    kind: Any = GenericAlias(list, (of_one,)) if it.repeats else of_one
    default: Any = inspect.Parameter.empty if it.is_required else list(it.default) if it.repeats else it.default
    return inspect.Parameter(it.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, made])


def _parser(it: Setting) -> Callable[[Any], Any] | None:
    """Return the function that parses a word, if the type isn't enough. Its errors say which values are valid."""
    convert: Callable[[str], Any]
    if it.parse is not None:
        convert = it.parse
    elif issubclass(it.type, StrEnum):
        convert = partial(_word, it.type)
    else:
        return None

    def parse(value: Any) -> Any:
        try:
            return convert(str(value))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse


def _word(words: type[StrEnum], text: str) -> StrEnum:
    try:
        return words(text)
    except ValueError:
        raise ValueError(f"expected {', '.join(words)}, not {text!r}") from None


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")
