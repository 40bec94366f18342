"""`/debug`: the counterpart of Go's pprof pages, as far as Python can provide them.

We keep all of NSQ's routes, methods and statuses because tools rely on them. The contents of a profile depend on the
runtime. The two commands return 500 although they succeed: NSQ has this bug, and tools may expect it.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import Final

import trio

from nsqcommon.daemon import blocks_since_start, collect_garbage
from nsqcommon.http_api import TEXT, HttpError, Request, Response, handler_slices, parse_query, plain
from nsqcommon.memory import return_unused
from nsqcommon.passwords import mask_option
from nsqcommon.wire.quoting import quote
from nsqd.http.access import OPERATE_NODE, GuardedRoute
from nsqd.stats.memory import memory_now

_NOSNIFF: Final = (b"x-content-type-options", b"nosniff")
_HTML: Final = (b"content-type", b"text/html; charset=utf-8")
_BINARY: Final = (b"content-type", b"application/octet-stream")
_is_integer: Final = re.compile(r"[+-]?[0-9]+", re.ASCII).fullmatch
_INT64: Final = range(-(2**63), 2**63)
_LONGEST_FORM: Final = 64 * 1024

_PROFILE_SECONDS: Final = 30.0
_MOST_PROFILE_SECONDS: Final = 300.0
_SAMPLE_INTERVAL: Final = 0.01
_MOST_TYPES: Final = 100
_OBJECTS_AT_ONCE: Final = 10_000
MOST_OBJECTS: Final = 150_000  # the most without `force`, because gc.get_objects() blocks until all are listed
_LISTED_IN_MS: Final = 10_000  # objects per millisecond if scattered in memory; a fast machine lists twice as many

_PROFILES: Final = {
    "goroutine": "all trio tasks as a tree, each with its stack, and the stack of every thread",
    "heap": "live objects by type, and memory in use",
    "block": "the same as goroutine: where each task waits",
    "threadcreate": "the stack of every thread",
    "profile": "where CPU time goes: sampled stacks and their counts, for a flame graph; ?seconds=30",
    "cmdline": "the command line of the process",
    "symbol": "empty: Python has no symbols to look up",
}

RunTrio = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]


def debug_routes(run_trio: RunTrio) -> list[GuardedRoute]:
    return [
        GuardedRoute("GET", "/debug/pprof/", _show_index, access=OPERATE_NODE, logged=False),
        GuardedRoute("GET", "/debug/pprof", _redirect_to_index, access=OPERATE_NODE, logged=False),
        GuardedRoute("GET", "/debug/pprof/cmdline", _show_command_line, access=OPERATE_NODE, logged=False),
        GuardedRoute("GET", "/debug/pprof/symbol", _show_symbols, access=OPERATE_NODE, logged=False),
        GuardedRoute("POST", "/debug/pprof/symbol", _show_symbols, access=OPERATE_NODE, logged=False),
        GuardedRoute(
            "GET",
            "/debug/pprof/goroutine",
            partial(_show, run_trio, tasks_and_threads),
            access=OPERATE_NODE,
            logged=False,
        ),
        GuardedRoute(
            "GET", "/debug/pprof/block", partial(_show, run_trio, tasks_and_threads), access=OPERATE_NODE, logged=False
        ),
        GuardedRoute(
            "GET", "/debug/pprof/threadcreate", partial(_show, run_trio, threads), access=OPERATE_NODE, logged=False
        ),
        GuardedRoute("GET", "/debug/pprof/heap", _show_heap, access=OPERATE_NODE, logged=False),
        GuardedRoute("GET", "/debug/pprof/profile", partial(_profile, run_trio), access=OPERATE_NODE, logged=False),
        GuardedRoute("PUT", "/debug/setblockrate", _set_block_rate, access=OPERATE_NODE, change="set_block_rate"),
        GuardedRoute("POST", "/debug/freememory", _free_memory, access=OPERATE_NODE, change="free_memory"),
    ]


# Pages


async def _show_index(request: Request) -> Response:
    items = "".join(f'<li><a href="{name}?debug=1">{name}</a>: {text}</li>\n' for name, text in _PROFILES.items())
    page = f"<!doctype html><title>/debug/pprof/</title>\n<h1>Inside this process</h1>\n<ul>\n{items}</ul>\n"
    return Response(body=page.encode(), headers=(_HTML, _NOSNIFF))


async def _redirect_to_index(request: Request) -> Response:
    return Response(301, b"", ((b"location", b"/debug/pprof/"), _NOSNIFF))


async def _show_command_line(request: Request) -> Response:
    words = map(mask_option, sys.argv)
    return Response(body="\0".join(words).encode("utf-8", "surrogateescape"), headers=(TEXT, _NOSNIFF))


async def _show_symbols(request: Request) -> Response:
    return Response(body=b"num_symbols: 1\n", headers=(TEXT, _NOSNIFF))


async def _show(run_trio: RunTrio, describe: Callable[[], Iterator[str]], request: Request) -> Response:
    """Call `describe` in trio, and return the lines that it yields."""
    lines: list[str] = []

    async def describe_in_trio() -> None:
        lines.extend(describe())

    await run_trio(describe_in_trio)
    return _text(request, lines)


async def _show_heap(request: Request) -> Response:
    objects = blocks_since_start()
    if objects > MOST_OBJECTS and parse_query(request.query_string).get("force") != "true":
        raise HttpError(409, "TOO_MANY_OBJECTS", details={"reason": _cost_of_listing(objects)})
    return _text(request, await handler_slices().all_of(heap()))


def _cost_of_listing(objects: int) -> str:
    return (
        f"up to {objects:,} objects: listing them stops the broker for up to {objects // _LISTED_IN_MS} ms; "
        "add force=true to do it anyway"
    )


def _text(request: Request, lines: Iterable[str]) -> Response:
    """Return a profile. It is always text, but pprof's tools expect a text content type only with `debug=1`."""
    kind = TEXT if parse_query(request.query_string).get("debug", "0") not in ("", "0") else _BINARY
    return Response(body="\n".join(lines).encode() + b"\n", headers=(kind, _NOSNIFF))


async def _profile(run_trio: RunTrio, request: Request) -> Response:
    text = parse_query(request.query_string).get("seconds", "")
    try:
        seconds = min(float(text), _MOST_PROFILE_SECONDS) if text else _PROFILE_SECONDS
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        seconds = _PROFILE_SECONDS
    stacks: list[str] = []

    async def sample() -> None:
        watched = threading.get_ident()
        stacks.extend(await trio.to_thread.run_sync(partial(sampled_stacks, watched, seconds)))

    await run_trio(sample)
    return Response(body="\n".join(stacks).encode() + b"\n", headers=(_BINARY, _NOSNIFF))


# Profiles


def tasks_and_threads() -> Iterator[str]:
    yield "tasks"
    root = trio.lowlevel.current_root_task()
    if root is not None:
        yield from _task(root, 1)
    yield ""
    yield from threads()


def _task(task: trio.lowlevel.Task, depth: int) -> Iterator[str]:
    indent = "  " * depth
    yield f"{indent}{task.name}"
    for frame, line in task.iter_await_frames():
        yield f"{indent}    {frame.f_code.co_filename}:{line} {frame.f_code.co_qualname}"
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda it: it.name):
            yield from _task(child, depth + 1)


def threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {names.get(ident, ident)}"
        for entry in traceback.extract_stack(frame):
            yield f"    {entry.filename}:{entry.lineno} {entry.name}"


def heap() -> Iterator[str | None]:
    """Yield the memory in use and the most frequent types of objects.

    Yields None now and then so that the caller can let other tasks run. Counts only objects that the garbage collector
    tracks, so no numbers, strings or bytes. Objects that existed at startup are frozen, so they aren't counted either.
    """
    memory = memory_now()
    yield f"resident bytes: {memory.heap_in_use_bytes}"
    yield f"allocated blocks: {memory.heap_objects}"
    yield f"garbage collections: {memory.gc_total_runs}"
    yield ""
    counts: Counter[type] = Counter()
    objects = gc.get_objects()
    while objects:
        counts.update(map(type, objects[-_OBJECTS_AT_ONCE:]))
        del objects[-_OBJECTS_AT_ONCE:]
        yield None
    for kind, count in counts.most_common(_MOST_TYPES):
        yield f"{count:10} {kind.__module__}.{kind.__qualname__}"


def sampled_stacks(thread: int, seconds: float) -> Iterator[str]:
    """Sample a thread's stack a hundred times a second. Blocks for `seconds`.

    Returns lines like `outermost;...;innermost count`, most frequent first.
    """
    seen: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (frame := sys._current_frames().get(thread)) is not None:
            seen[";".join(_names_of(frame))] += 1
        time.sleep(_SAMPLE_INTERVAL)
    return iter([f"{stack} {count}" for stack, count in seen.most_common()])


def _names_of(frame: FrameType | None) -> list[str]:
    names: list[str] = []
    while frame is not None:
        names.append(f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}")
        frame = frame.f_back
    names.reverse()
    return names


# Commands


async def _set_block_rate(request: Request) -> Response:
    """Check the rate as NSQ does, then ignore it, because Python has no block profile."""
    rate = (await _form_value(request, "rate")) or ""
    if not _is_integer(rate):
        cause = "invalid syntax"
    elif int(rate[:30]) not in _INT64:
        cause = "value out of range"
    else:
        raise HttpError(500, "INTERNAL_ERROR")
    quoted = quote(rate.encode("utf-8", "surrogateescape")).decode()
    answer = plain(f"invalid block rate : strconv.Atoi: parsing {quoted}: {cause}", status=400)
    return Response(400, answer.body, (_NOSNIFF,), answer.sniffed)


async def _free_memory(request: Request) -> Response:
    collect_garbage()
    return_unused()
    raise HttpError(500, "INTERNAL_ERROR")


async def _form_value(request: Request, name: str) -> str | None:
    """Return a value from a form in the body, or else from the query. Skips a source that can't be parsed."""
    content_type = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    form = await request.read(_LONGEST_FORM) if content_type == b"application/x-www-form-urlencoded" else b""
    for source in (form, request.query_string):
        try:
            value = parse_query(source).get(name)
        except HttpError:
            continue
        if value is not None:
            return value
    return None
