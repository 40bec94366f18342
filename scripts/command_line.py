"""Command lines of scripts, benchmarks and tests: typer reads what a dataclass describes.

    @dataclass(frozen=True, kw_only=True)
    class Options:
        folder: Path = argument("for the result")
        rate: float = option(50, "messages a second")

    options = read_options(Options, name="scripts/make-noise", about="Makes noise.")

Scripts that also run where only the daemons are installed, such as scripts/demo, use nsqcommon.subcommands instead.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import GenericAlias, NoneType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

import typer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
TableT = TypeVar("TableT", bound="DataclassInstance")

_INDENT: Final = "  "
_HELP: Final = {"help_option_names": ["--help", "-h"]}


# --- the table


def option(
    default: T,
    help: str = "",
    *,
    flag: str = "",
    word: str = "",
    parse: Callable[[str], object] | None = None,
    choices: Sequence[str] = (),
    is_hidden: bool = False,
) -> T:
    """Declare an option. Its flag is `flag` or the name of its field. An option of tuple[str, ...] may be repeated.

    `word` stands for the value in the help. `parse` converts a word, and raises ValueError with the reason.
    """
    is_shown = isinstance(default, str | int | float) and default not in ("", False) and "(default" not in help
    shown = f" (default: {default})" if is_shown else ""
    about = {"help": (help + shown).strip(), "metavar": word or "|".join(choices) or None, "hidden": is_hidden}
    made: T = field(default=default, metadata={"about": about, "flag": flag, "parse": _parser(parse, choices)})
    return made


def required(help: str = "", *, word: str = "") -> Any:
    """Declare an option that must be given."""
    return field(metadata={"about": {"help": help, "metavar": word or None}, "flag": "", "parse": None})


def argument(help: str = "", *, word: str = "", default: Any = dataclasses.MISSING, choices: Sequence[str] = ()) -> Any:
    """Declare an argument, required unless it has a default. One of tuple[str, ...] takes all remaining words."""
    about = {"help": help, **({"metavar": word} if word else {})}
    return field(default=default, metadata={"about": about, "parse": _parser(None, choices)})


def _parser(parse: Callable[[str], object] | None, choices: Sequence[str]) -> Callable[[str], object] | None:
    def parsed(text: str) -> object:
        if choices and text not in choices:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(choices)}")
        try:
            return text if parse is None else parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parsed if parse or choices else None


# --- reading


@dataclass(frozen=True)
class Command:
    table: type[DataclassInstance]
    about: str


def read_options(
    table: type[TableT],
    arguments: Sequence[str] | None = None,
    *,
    name: str,
    about: str | None,
    epilog: str = "",
    leaves_others: bool = False,
) -> TableT:
    """Return the options in the arguments, or in this process's own. Exits after --help, and with 2 if they are wrong.

    A ValueError of the table's `__post_init__` says what is wrong with their combination. With `leaves_others`, options
    that the table doesn't have are words of its last argument.
    """
    app = _app()
    settings = {"ignore_unknown_options": True} if leaves_others else _HELP
    app.command(help=_formatted(about), epilog=_formatted(epilog), context_settings=settings)(_reader(table))
    found: TableT = _run(app, arguments, name)
    return found


def read_command(
    commands: Mapping[str, Command], arguments: Sequence[str] | None = None, *, name: str, about: str | None
) -> tuple[str, Any]:
    """Return the name of the chosen command, and its options."""
    app = _app()
    app.callback(help=_formatted(about), context_settings=_HELP)(lambda: None)
    for word, it in commands.items():
        app.command(word, help=_formatted(it.about), short_help=it.about, context_settings=_HELP)(
            _reader(it.table, word)
        )
    found: tuple[str, Any] = _run(app, arguments, name)
    return found


def _app() -> typer.Typer:
    return typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


def _run(app: typer.Typer, arguments: Sequence[str] | None, name: str) -> Any:
    try:
        found = app(sys.argv[1:] if arguments is None else [*arguments], prog_name=name, standalone_mode=False)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        if context is not None:
            typer.echo(context.get_usage(), err=True)
        typer.echo(f"{name}: error: {error.format_message()}", err=True)
        sys.exit(2)
    if isinstance(found, int):  # --help was given
        sys.exit(found)
    return found


def _reader(table: type[DataclassInstance], word: str = "") -> Callable[..., Any]:
    """Return a function with a signature for typer. It returns the options, after the command's word if any."""
    types = get_type_hints(table)
    rows = [it for it in dataclasses.fields(table) if it.init]

    def make(**given: Any) -> Any:
        values = {it.name: _value(given[it.name], it) for it in rows}
        try:
            made = table(**{name: value for name, value in values.items() if value is not None})
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        return (word, made) if word else made

    parameters = [_parameter(row, types[row.name]) for row in rows]
    make.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # typer asks inspect, which asks here
    make.__annotations__ = {it.name: it.annotation for it in parameters}
    return make


def _value(given: Any, row: dataclasses.Field[Any]) -> Any:
    """Return what the dataclass gets; None stands for its default."""
    if isinstance(given, list):
        return tuple(given) or None
    return given


def _parameter(row: dataclasses.Field[Any], kind: Any) -> inspect.Parameter:
    """Describe a field to typer. Typer needn't know its default: the dataclass has it."""
    about = {**row.metadata["about"], "parser": row.metadata["parse"]}
    if about["parser"]:
        kind = str
    elif get_origin(kind) is tuple:
        kind = GenericAlias(list, get_args(kind)[:1])
    elif NoneType in get_args(kind):
        kind = next(it for it in get_args(kind) if it is not NoneType)
    default = ... if row.default is dataclasses.MISSING else None
    if "flag" not in row.metadata:
        made = typer.Argument(default, **{"metavar": row.name.upper(), **about})
    else:
        made = typer.Option(default, row.metadata["flag"] or f"--{row.name.replace('_', '-')}", **about)
    return inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=made, annotation=kind)


def _formatted(text: str | None) -> str:
    """Return the text for the help, in which lists and examples keep their lines."""
    paragraphs = (text or "").strip().split("\n\n")
    return "\n\n".join(f"\b\n{it}" if f"\n{_INDENT}" in f"\n{it}" else it for it in paragraphs)
