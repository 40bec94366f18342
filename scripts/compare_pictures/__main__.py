"""Take the pictures of both checkouts, and compare them: see the package."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image

from scripts.command_line import argument, option, read_options, required
from scripts.compare_pictures.pixels import compare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scripts.compare_pictures.photographer import Page
    from scripts.compare_pictures.stage import Stage
    from tests.support.browser import Browser

_SIDES: Final = ("before", "after")
_BAD_REQUEST: Final = 400


@dataclass(frozen=True, slots=True)
class _Scene:
    """Pages that one nsqadmin shows."""

    name: str
    pages: tuple[Page, ...]
    options: tuple[str, ...]
    now: float


@dataclass(frozen=True, kw_only=True)
class PicturesOptions:
    before: Path = argument()
    after: Path = argument()
    out: Path = required("folder for all pictures; its content is deleted")
    only: str = option("", "only pages whose name contains this text; pages that depend on others may differ")


def main() -> int:
    about = (
        "Compare pictures of all nsqadmin's pages from two checkouts; takes some minutes. "
        "The exit status is 1 if one of them differs."
    )
    chosen = read_options(PicturesOptions, name="python -m scripts.compare_pictures", about=about)
    shutil.rmtree(chosen.out, ignore_errors=True)
    missing = _take_all((chosen.before.resolve(), chosen.after.resolve()), chosen.out, chosen.only)
    return _report(chosen.out, missing)


# A page's name, with the reasons why it could not be shown before and after
_Missing = dict[str, tuple[str, str]]


def _take_all(trees: tuple[Path, Path], out: Path, only: str) -> _Missing:
    from scripts.compare_pictures.photographer import prepare, take
    from scripts.compare_pictures.stage import nsqadmin_of, open_stage

    missing: _Missing = {}
    with _temporary() as folder, open_stage(folder) as stage:
        for scene in _scenes(stage):
            pages = [it for it in scene.pages if only in f"{scene.name}/{it.name}"]
            if not pages:
                continue
            with ExitStack() as stack:
                bases = []
                for side, tree in enumerate(trees):
                    stage.turn(side)
                    bases.append(stack.enter_context(nsqadmin_of(tree, *scene.options, now=scene.now)))
                browser = stack.enter_context(_browser(folder / scene.name))
                prepare(browser, scene.now)
                for page in pages:
                    shown = []
                    for side, base in enumerate(bases):
                        stage.turn(side)
                        shown.append(take(browser, page, base, out / _SIDES[side] / scene.name))
                    missing[f"{scene.name}/{page.name}"] = _why_missing(*shown)
        for recorder in stage.recorders:
            for side, name in enumerate(_SIDES):
                for question in recorder.asked_only_by(side):
                    print(f"asked only {name}: {question}", file=sys.stderr)
    return missing


def _why_missing(before: tuple[int, str], after: tuple[int, str]) -> tuple[str, str]:
    """Return why each side doesn't show a page, or "". Each argument is a status and the reason of `take`."""
    if before[0] == after[0]:
        return before[1], after[1]
    why_before, why_after = (
        why or (f"HTTP {status}" if status >= _BAD_REQUEST else "") for status, why in (before, after)
    )
    return why_before, why_after


def _scenes(stage: Stage) -> tuple[_Scene, ...]:
    from scripts.compare_pictures import pages
    from tests.support.picture import NOW

    demo = f"snapshot={stage.folder / 'demo.json'}"
    return (
        # This scene is the first one, because the nodes disconnect its consumers after a while.
        _Scene("cluster", pages.of_cluster(stage.nodes), stage.options, stage.now),
        _Scene("demo", pages.DEMO, (demo,), NOW),
        _Scene("forbidden", pages.FORBIDDEN, (demo, f"roles-file={stage.folder / 'roles.toml'}"), NOW),
        _Scene("login", pages.LOGIN, (demo, f"auth-file={stage.folder / 'accounts'}"), NOW),
        _Scene("empty", pages.EMPTY, (f"lookupd-http-address={stage.empty.address}",), stage.now),
    )


@contextmanager
def _temporary() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="nsq-compare-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # the browser may still be writing


@contextmanager
def _browser(profile: Path) -> Iterator[Browser]:
    from tests.support.browser import open_browser

    with open_browser(profile) as browser:
        yield browser


def _report(out: Path, missing: _Missing) -> int:
    """Print one row for each page, and write pictures of the differences."""
    from scripts.compare_pictures.photographer import LOOKS

    differing = 0
    for page, reasons in missing.items():
        said = [f"not shown {side}: {why}" for side, why in zip(_SIDES, reasons, strict=True) if why]
        if not said:
            for look in LOOKS:
                before, after = (Image.open(out / side / f"{page}.{look}.png") for side in _SIDES)
                if difference := compare(before, after):
                    path = out / "differences" / f"{page}.{look}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    difference.picture.save(path)
                    said.append(f"{look}: {difference.count} pixels, {path}")
        differing += bool(said)
        print(f"{page}: {'; '.join(said) or 'equal'}", flush=True)
    print(f"{differing} of {len(missing)} pages differ")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
