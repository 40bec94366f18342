"""What `scripts/release` ships, installed: every command starts, messages go through, and the right core runs.

`NSQ_TEST_WHEELS=dist scripts/test tests/e2e/test_wheels.py` tests the wheels in this folder. Otherwise the pure ones are
built here as a release builds them, and the compiled modules are those of scripts/compile, as compiling again takes
minutes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Final

import pytest

from bench.builds import AUTO, Build, chosen
from bench.work import Failed
from scripts.releasing.archives import differences
from scripts.releasing.building import build
from scripts.releasing.dependencies import needed_by
from scripts.releasing.distributions import distributions_of, stage
from scripts.releasing.source import unpack
from tests.e2e.conftest import SHIPPED, VERSION, Wheels
from tests.e2e.installed import TIMESTAMP, Installed, install
from tests.support.needs import need
from tests.support.process import ROOT, Nsqd
from tests.support.spark import KEPT, address, numbered, publish

pytestmark = [
    pytest.mark.skipif("NSQ_TEST_PYTHON" in os.environ, reason="it installs both cores itself"),
]

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS: Final = sorted(PROJECT["scripts"])
FILES: Final = (
    "import importlib, sys; print(*(importlib.import_module(name).__file__ for name in sys.argv[1:]), sep='\\n')"
)


@pytest.fixture(scope="module")
def compiled_wheel(pure_wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the suite's compiled wheel.

    That of scripts/compile has all of the checkout. So what it has compiled is put beside the suite's pure modules,
    which is what the release's has.
    """
    own = "-cp{}{}-*.whl".format(*sys.version_info)
    if SHIPPED is not None:
        (wheel,) = (ROOT / SHIPPED).glob(f"nsq_suite-{VERSION}{own}")
        return wheel
    if subprocess.run([ROOT / "scripts" / "compile", "--check"], check=False).returncode:
        pytest.skip("scripts/compile has not compiled this code")
    (whole,) = (ROOT / ".venv-compiled" / "wheel").glob(f"*{own}")
    wheel = tmp_path_factory.mktemp("joined") / pure_wheels.suite.name
    with zipfile.ZipFile(wheel, "w") as joined, zipfile.ZipFile(pure_wheels.suite) as pure:
        for name in pure.namelist():
            joined.writestr(name, pure.read(name))
        with zipfile.ZipFile(whole) as compiled:
            for name in compiled.namelist():
                if name.endswith(".so"):
                    joined.writestr(name, compiled.read(name))
    return wheel


@pytest.fixture(scope="module")
def compiled(
    compiled_wheel: Path, pure_wheels: Wheels, pure: Installed, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """Install the compiled wheel. If it was made here, that is the installation of the pure ones with what is compiled."""
    folder = tmp_path_factory.mktemp("compiled") / "installed"
    if SHIPPED is not None:
        return install([pure_wheels.client, compiled_wheel], folder)
    installed = pure.copy(folder)
    with zipfile.ZipFile(compiled_wheel) as files:
        files.extractall(installed.modules, [name for name in files.namelist() if name.endswith(".so")])
    return installed


# What is in them


def files_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as files:
        return {*files.namelist()}


def top_level_names(wheel: Path) -> set[str]:
    """Return what is then beside the packages of all others."""
    return {name.partition("/")[0] for name in files_in(wheel)}


def test_no_name_of_ours_is_anybody_elses(pure_wheels: Wheels) -> None:
    assert top_level_names(pure_wheels.client) == {"nsqclient", "nsqcommon", f"nsqclient-{VERSION}.dist-info"}
    names = top_level_names(pure_wheels.suite)
    assert {"nsqd", "nsqpytest", "pyspark_nsqtable"} <= names
    assert not [name for name in names if not name.startswith(("nsq", "pyspark_nsq"))]


def test_the_two_wheels_have_no_file_in_common(pure_wheels: Wheels) -> None:
    assert files_in(pure_wheels.client).isdisjoint(files_in(pure_wheels.suite))


def test_the_compiled_wheel_adds_compiled_modules_and_their_library(compiled_wheel: Path, pure_wheels: Wheels) -> None:
    added = {it for it in files_in(compiled_wheel) - files_in(pure_wheels.suite) if it.endswith(".so")}
    assert {it.partition("/")[0] for it in added if "/" in it} == {"nsqcommon", "nsqd"}
    (library,) = (it for it in added if "/" not in it)
    assert library.startswith("nsq_core__mypyc.")
    assert files_in(compiled_wheel).isdisjoint(files_in(pure_wheels.client))


@pytest.mark.parametrize("which", ["client", "suite"])
def test_an_sdist_builds_the_same_wheel(which: str, built_wheels: Wheels, tmp_path: Path) -> None:
    is_client, wheel = which == "client", getattr(built_wheels, which)
    client, suite = distributions_of(ROOT)
    staged = stage(client if is_client else suite, ROOT, tmp_path / "staged")
    python = Path(sys.executable)
    sdist = build("sdist", staged, tmp_path / "sdist", python=python, timestamp=TIMESTAMP)
    source = unpack(sdist, tmp_path / "unpacked")
    again = build("wheel", source, tmp_path / "again", python=python, timestamp=TIMESTAMP)
    assert differences(wheel, again) == []
    assert any(it.startswith("nsqcommon/") for it in files_in(wheel)) == is_client
    # Both have the sources of nsqcommon: the suite's compiled wheel has what is compiled of them.
    there = {path.relative_to(source) for path in (source / "common").rglob("*.py")}
    assert there == {path.relative_to(ROOT) for path in (ROOT / "common").rglob("*.py")}


# Both, installed

NOT_OURS: Final = ("trio", "httptools", "cramjam", "google_crc32c", "uvicorn", "trio_asyncio", "ssl")  # but needed


def check_commands(installed: Installed, *preloaded: str) -> None:
    """Run every command in a fork of one process, which has imported these modules."""
    commands = [installed.command(name) for name in COMMANDS]
    assert {it.read_text().partition("\n")[0] for it in commands} == {f"#!{installed.command('python')}"}
    done = installed.run("python", "-c", IN_FORKS, " ".join(preloaded), *map(str, commands))
    assert done.returncode == 0, done.stderr


IN_FORKS: Final = """
import importlib, os, runpy, sys
for module in sys.argv[1].split():
    importlib.import_module(module)
failed = []
for command in sys.argv[2:]:
    if not (pid := os.fork()):
        sys.argv = [command, "--help"]
        runpy.run_path(command, run_name="__main__")
        sys.exit("it has not ended by itself")
    if os.waitpid(pid, 0)[1]:
        failed.append(command)
sys.exit(", ".join(failed) or 0)
"""


def check_core(installed: Installed, core: str, data_path: Path) -> None:
    """Send a message through nsqd with two other commands, and see which core nsqd runs."""
    with installed.nsqd(data_path) as nsqd:
        assert core_of(nsqd) == core
        address = f"--nsqd-tcp-address=127.0.0.1:{nsqd.tcp[1]}"
        sent = installed.run("to_nsq", address, "--topic=t", input="hello\n")
        assert sent.returncode == 0, sent
        got = installed.run("nsq_tail", address, "--topic=t", "-n=1")
        assert (got.returncode, got.stdout) == (0, "hello\n"), got
        assert nsqd.stop() == 0


def core_of(nsqd: Nsqd) -> str | None:
    found = re.search("core: (.*)$", nsqd.log, re.MULTILINE)
    return found and found[1]


def test_the_pure_wheels(pure: Installed, tmp_path: Path) -> None:
    """Each command imports all modules of ours by itself. Those that `check_core` uses are started from their files."""
    check_commands(pure, *NOT_OURS)
    check_core(pure, "pure Python", tmp_path)


def test_the_compiled_wheel(compiled: Installed, tmp_path: Path) -> None:
    check_commands(compiled, "nsqclient", "nsqcommon.daemon", "nsqd.daemon", "nsqtools.cli")
    check_core(compiled, "compiled", tmp_path)


def test_the_compiled_wheel_as_pure_python(compiled: Installed, compiled_wheel: Path, tmp_path: Path) -> None:
    as_pure = compiled.with_environ({"NSQ_PURE": "1"})
    with as_pure.nsqd(tmp_path) as nsqd:
        assert core_of(nsqd) == "pure Python"
        client = nsqd.connect()
        client.subscribe("t", "c", ready=1)
        nsqd.connect().publish("t", b"hello")
        assert client.bodies(1) == [b"hello"]
        assert nsqd.stop() == 0
    names = compiled_modules(compiled_wheel)
    for installed, suffix in ((compiled, ".so"), (as_pure, ".py")):
        said = installed.run("python", "-c", FILES, *names)
        assert said.returncode == 0, said
        files = [Path(it) for it in said.stdout.split()]
        assert len(files) == len(names)
        assert [it for it in files if it.suffix != suffix or not it.is_relative_to(compiled.folder)] == []


def compiled_modules(wheel: Path) -> list[str]:
    names = [it.partition(".")[0] for it in files_in(wheel) if it.endswith(".so") and "__mypyc" not in it]
    assert len(names) > 20
    return [it.replace("/", ".") for it in names]


def test_the_benchmark_knows_the_core_of_what_is_installed(pure: Installed, compiled: Installed) -> None:
    assert chosen(AUTO, pure.folder) is Build.PURE
    assert chosen(AUTO, compiled.folder) is Build.COMPILED
    with pytest.raises(Failed, match="runs the compiled core"):
        chosen(Build.PURE, compiled.folder)


# Spark


LOOKED_UP: Final = """
import importlib, io, pickle, pkgutil, sys
from pyspark.serializers import read_int
from pyspark.sql.types import StructType
from pyspark.sql.worker import lookup_data_sources

told = io.BytesIO()
lookup_data_sources._main(io.BytesIO(), told)
told.seek(0)
formats = {}
for _ in range(read_int(told)):
    name = told.read(read_int(told)).decode()
    formats[name] = pickle.loads(told.read(read_int(told)))
print(*sorted(formats))

for package in ("pyspark_nsq", "pyspark_nsqtable"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)

reader = formats["nsq"]({"nsqd": sys.argv[1], "topic": "t"}).reader(StructType().add("body", "binary"))
batches = [batch for part in reader.partitions() for batch in reader.read(part)]
print(*(body.decode() for batch in batches for body in batch["body"].to_pylist()))
print(*{module.__file__ for name, module in sys.modules.items() if name.startswith("pyspark_nsq")}, sep="\\n")
"""


def test_spark_finds_both_formats_by_itself(pure: Installed, tmp_path: Path) -> None:
    """Call what Spark starts to find them. Its driver gets their names, and loads none of them."""
    need("pyspark", "pyarrow")
    with Nsqd(tmp_path, KEPT, "sync-every=1") as nsqd:
        publish(nsqd, "t", numbered(3))
        said = pure.run("python", "-c", LOOKED_UP, address(nsqd))
    assert said.returncode == 0, said.stderr
    found, bodies, *files = said.stdout.splitlines()
    assert (found, bodies) == ("nsq nsqtable", "0 1 2")
    assert [it for it in files if not Path(it).is_relative_to(pure.folder)] == []


# The client alone


IMPORT_ALL: Final = """
import importlib, importlib.util, pkgutil
for package in ("nsqd", "nsqlookupd", "nsqtools", "nsqpytest", "uvicorn", "msgpack", "trio_asyncio", "pytest"):
    assert importlib.util.find_spec(package) is None, package
import nsqclient
others = ("otel", "pytest_plugin")  # for one of its extras; of nsq-suite
for module in pkgutil.walk_packages(nsqclient.__path__, "nsqclient."):
    if module.name.rpartition(".")[2] not in others:
        importlib.import_module(module.name)
from nsqcommon.version import suite_version
print(suite_version())
"""
PUBLISH_AND_CONSUME: Final = """
import asyncio, sys, trio
import nsqclient, nsqclient.aio, nsqclient.sync
address = sys.argv[1]

async def on_trio():
    async with nsqclient.open_producer(address) as producer, nsqclient.open_consumer("t", "c", nsqd=address) as consumer:
        await producer.publish("t", b"one")
        async for message in consumer:
            message.finish()
            return message.body

async def on_asyncio():
    async with nsqclient.aio.open_producer(address) as producer:
        await producer.publish("t", b"two")

print(trio.run(on_trio))
asyncio.run(on_asyncio())
config = nsqclient.Config(compression="snappy")
with nsqclient.sync.consumer("t", "c", nsqd=address, config=config) as consumer:
    message = next(consumer.messages(idle_timeout=60))
    message.finish()
    print(message.body)
"""


@pytest.fixture(scope="module")
def client(pure_wheels: Wheels, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install the client where nothing but what it says it needs can be seen."""
    needed = {it.name for it in needed_by(pure_wheels.client).packages if it.is_required}
    assert {"trio", "httptools", "google-crc32c", "cramjam"} <= needed
    return install([pure_wheels.client], tmp_path_factory.mktemp("client") / "installed", only=needed, compiles=False)


def test_the_client_alone_is_complete(client: Installed) -> None:
    said = client.run("python", "-c", IMPORT_ALL)
    assert (said.returncode, said.stdout) == (0, f"{VERSION}\n"), said.stderr


def test_the_client_alone_publishes_and_consumes(client: Installed, tmp_path: Path) -> None:
    with Nsqd(tmp_path) as nsqd:
        said = client.run("python", "-c", PUBLISH_AND_CONSUME, f"127.0.0.1:{nsqd.tcp[1]}")
    assert (said.returncode, said.stdout) == (0, "b'one'\nb'two'\n"), said.stderr
