"""Stands for `docker compose` in tests of deploy/demo/lose-a-machine: containers are processes of this machine.

    compose_of_processes.py FOLDER NETWORK [--profile NAME ...] up | run | kill | rm | down ...

The services and their options are those of compose.yaml. The network 10.213.4.0/24 becomes loopback addresses, such as
127.77.4.0/24 with the NETWORK 127.77.4, and volumes become folders. `up` returns when all processes listen.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[2]
PATIENCE: Final = 60.0
LOOKUPDS: Final = {"nsqlookupd1": 1, "nsqlookupd2": 2}  # which have no address of their own in compose.yaml
PORTS: Final = {"nsqlookupd1": 4161, "nsqlookupd2": 4261, "nsqd": 4151}


class Processes:
    def __init__(self, folder: Path, network: str) -> None:
        self.folder = folder
        self.network = network
        self.services: Mapping[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))[
            "services"
        ]

    def up(self, names: Sequence[str]) -> None:
        wanted = [it for it in names if self.services[it]["build"]["target"] == "nsqd"]
        (self.folder / "store").mkdir(parents=True, exist_ok=True)
        for name in (*LOOKUPDS, *wanted):
            self._start(name)
            if name != "a2":  # a standby need not listen
                self._wait_for(name)

    def run(self, name: str, command: Sequence[str]) -> int:
        python, program, *arguments = map(self._here, command)
        assert (python, self.services[name]["build"]["target"]) == ("python", "tools")
        program = str(ROOT / "deploy" / program.removeprefix("/opt/"))
        return subprocess.run([sys.executable, program, *arguments], check=False).returncode

    def kill(self, name: str) -> None:
        os.kill(int((self.folder / f"{name}.pid").read_text(encoding="utf-8")), signal.SIGKILL)

    def remove(self, name: str) -> None:
        shutil.rmtree(self.folder / name)

    def down(self) -> None:
        for file in self.folder.glob("*.pid"):
            try:
                self.kill(file.stem)
            except ProcessLookupError:
                continue

    def _start(self, name: str) -> None:
        service, data = self.services[name], self.folder / name
        data.mkdir()
        environment = {key: self._here(value) for key, value in service.get("environment", {}).items()}
        arguments = [*map(self._here, service["command"]), *self._addresses(name)]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", service["build"]["target"], *arguments],
                env={**os.environ, **environment, "NSQD_DATA_PATH": str(data)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        (self.folder / f"{name}.pid").write_text(str(process.pid), encoding="utf-8")

    def _address(self, name: str) -> str:
        if name in LOOKUPDS:
            return f"{self.network}.{LOOKUPDS[name]}"
        address: str = self._here(self.services[name]["networks"]["default"]["ipv4_address"])
        return address

    def _addresses(self, name: str) -> list[str]:
        """Return what replaces a network of the container's own."""
        http = PORTS.get(name, PORTS["nsqd"])
        return [f"--tcp-address={self._address(name)}:{http - 1}", f"--http-address={self._address(name)}:{http}"]

    def _here(self, text: str) -> str:
        text = text.replace("10.213.4", self.network).replace("file:///store", f"file://{self.folder}/store")
        for name in LOOKUPDS:
            text = text.replace(f"{name}:", f"{self._address(name)}:")
        return text

    def _wait_for(self, name: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with socket.socket() as sock:
                if not sock.connect_ex((self._address(name), PORTS.get(name, PORTS["nsqd"]))):
                    return
            time.sleep(0.05)
        sys.exit(f"{name} does not listen:\n{(self.folder / f'{name}.log').read_text(encoding='utf-8')}")


def main(folder: str, network: str, *arguments: str) -> int:
    processes = Processes(Path(folder), network)
    words = [it for it in arguments if it not in ("--detach", "--build", "--rm", "-T", "--force", "--volumes")]
    while words[0] == "--profile":
        del words[:2]
    match words:
        case ["up", *names]:
            processes.up(names)
        case ["run", name, *command]:
            return processes.run(name, command)
        case ["kill", name]:
            processes.kill(name)
        case ["rm", name]:
            assert "--volumes" in arguments
            processes.remove(name)
        case ["down"]:
            processes.down()
        case _:
            sys.exit(f"unknown: {words}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
