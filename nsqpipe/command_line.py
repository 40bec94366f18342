"""From tables of settings to a command line: each job's options, the file of `--config`, and one line for what is wrong."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from common.version import suite_version
from nsqpipe.settings import Job, Parse, Setting, settings_of

WRONG: Final = 2  # the exit status of a command line that cannot be meant

STORAGE: Final = "storage"  # the table about object stores, for all commands
JobT = TypeVar("JobT", bound=Job)


class Commands(click.Group):
    """All commands. An error of usage is one line."""

    def main(self, *args: Any, **extra: Any) -> Any:
        extra["standalone_mode"] = False
        try:
            status = super().main(*args, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            status = WRONG
        except click.UsageError as error:
            name = error.ctx.command_path if error.ctx else "nsqpipe"
            click.echo(f"{name}: {_one_line(error.format_message())} ({name} --help)", err=True)
            status = WRONG
        except click.Abort:  # Ctrl-C, before there was anything to stop
            click.echo("nsqpipe: stopped", err=True)
            status = 0
        sys.exit(status if isinstance(status, int) else 0)


def root(
    about: str, epilog: str, groups: Mapping[str, str], commands: Mapping[str, tuple[type[Job], Callable[[Any], None]]]
) -> Commands:
    """All commands; a name of two words is in a group."""
    top = _root(about, epilog)
    for name, text in groups.items():
        top.add_command(click.Group(name, help=text, no_args_is_help=True))
    for name, (job, run) in commands.items():
        *within, last = name.split()
        found = top.commands[within[0]] if within else top
        assert isinstance(found, click.Group)
        found.add_command(command(last, job, run))
    return top


def _root(about: str, epilog: str) -> Commands:
    options = [
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path),
            help="TOML file with options: a table for each command, as in [land] topic = ['clicks']",
        ),
        click.Option(["--version"], is_flag=True, is_eager=True, help="say which version this is"),
    ]

    @click.pass_context
    def configure(context: click.Context, config: Path | None, version: bool) -> None:
        if version:
            click.echo(f"nsqpipe v{suite_version()}")
            context.exit()
        if config is not None:
            context.default_map = _read_config(config, commands)

    commands = Commands(
        "nsqpipe",
        callback=configure,
        params=list(options),
        help=about,
        epilog=epilog,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return commands


def command(name: str, job: type[JobT], run: Callable[[JobT], None]) -> click.Command:
    """`run` gets a job whose settings are all in order, each alone and together."""
    settings = ordered(job)

    @click.pass_context
    def start(context: click.Context, /, **given: Any) -> None:
        made = job(**given)
        for problem in made.problems():
            raise click.UsageError(problem, context)
        run(made)

    takes_words = any(not it.flag for it in settings)
    return click.Command(
        name,
        callback=start,
        params=[_parameter(it) for it in settings],
        help=job.__doc__,
        context_settings={"allow_interspersed_args": False} if takes_words else {},
    )


def ordered(job: type[Job]) -> list[Setting]:
    """As they are shown: what is required comes first, then what only this job has."""
    own = vars(job).get("__annotations__", {})
    return sorted(settings_of(job), key=lambda it: (not it.is_required, it.name not in own))


def _parameter(it: Setting) -> click.Parameter:
    if not it.flag:
        return click.Argument([it.name], nargs=-1, type=click.UNPROCESSED)
    if it.type is bool:
        return click.Option([it.flag, it.name], is_flag=True, default=it.default, help=it.help)
    default = {} if it.is_required else {"default": it.default, "show_default": it.shown_default() or False}
    return click.Option(
        [it.flag, it.name], type=_type(it), multiple=it.repeats, required=it.is_required, help=it.help, **default
    )


def _type(it: Setting) -> click.ParamType[Any]:
    if it.parse is not None:
        return _Parsed(it.parse)
    if issubclass(it.type, StrEnum):
        return _Word(it.type)
    if it.type is Path:
        return click.Path(path_type=Path)
    if it.type is int:
        return click.IntRange(min=None if it.at_least is None else int(it.at_least))
    return click.FloatRange(min=it.at_least) if it.type is float else click.STRING


class _Parsed(click.ParamType[Any]):
    name = "text"

    def __init__(self, parse: Parse) -> None:
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value  # a default, or what has been converted
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Word(click.ParamType[Any]):
    """One of an enum's."""

    name = "word"

    def __init__(self, kinds: type[StrEnum]) -> None:
        self._kinds = kinds

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._kinds(value)
        except ValueError:
            self.fail(f"expected {', '.join(self._kinds)}, not {value!r}", param, ctx)


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


# The file of --config


def _read_config(path: Path, commands: click.Group) -> dict[str, Any]:
    """Names as on the command line, with - or _; a list, or one value, where an option may be repeated."""
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise click.UsageError(f"--config {path}: {error}") from None
    stored = found.pop(STORAGE, {})
    if not isinstance(stored, dict):
        raise click.UsageError(f"--config {path}: {STORAGE} is a table of options")
    defaults = dict(_defaults(f"--config {path}: ", found, commands.commands))
    _add_storage(defaults, commands, [f"{name}={value}" for name, value in stored.items()])
    return defaults


def _add_storage(defaults: dict[str, Any], group: click.Group, words: list[str]) -> None:
    """What is said once of the object store counts for each command that has a --storage of its own."""
    for name, found in group.commands.items():
        here = defaults.setdefault(name, {})
        if isinstance(found, click.Group):
            _add_storage(here, found, words)
        elif words and any(parameter.name == STORAGE for parameter in found.params):
            here.setdefault(STORAGE, words)


def _defaults(
    where: str, tables: Mapping[str, Any], commands: Mapping[str, click.Command]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, options in tables.items():
        found = commands.get(name)
        if found is None or not isinstance(options, dict):
            raise click.UsageError(f"{where}{name} is no command with options")
        if isinstance(found, click.Group):
            yield name, dict(_defaults(f"{where}{name}.", options, found.commands))
        else:
            yield name, dict(_values(f"{where}{name}", options, found.params))


def _values(where: str, options: Mapping[str, Any], parameters: Sequence[click.Parameter]) -> Iterator[tuple[str, Any]]:
    known = {word.removeprefix("--").replace("-", "_"): it for it in parameters for word in it.opts}
    for spelled, value in options.items():
        found = known.get(spelled.replace("-", "_"))
        if found is None or found.name is None:
            raise click.UsageError(f"{where} has no option {spelled}")
        if isinstance(value, dict):
            raise click.UsageError(f"{where}: {spelled} is a table, and should be a value")
        if isinstance(found, click.Option) and found.multiple:
            value = value if isinstance(value, list) else [value]
        elif isinstance(value, list):
            raise click.UsageError(f"{where}: {spelled} is given once, and cannot be a list")
        yield found.name, value
