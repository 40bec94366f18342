"""Empty Debian folders, made once by debootstrap and copied for each machine.

A machine behind a proxy or a mirror can install packages only as its host does. So whatever the host says about that is
copied when it is needed, and nothing of it is in the repository: apt's sources, keys and settings, certificates, the
settings of pip and npm.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, TextIO

from scripts.door.machines import USER, Failed, Machine

SUITE: Final = "bookworm"
PACKAGES: Final = ("ca-certificates", "git", "python3")  # beside the least that makes a Debian
NEEDED: Final = ("apt-get", "debootstrap", "nsenter", "pivot_root", "setpriv", "unshare")
_FILES: Final = (
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d/*.list",
    "/etc/apt/sources.list.d/*.sources",
    "/etc/apt/trusted.gpg.d/*",
    "/etc/apt/keyrings/*",
    "/usr/share/keyrings/*",
    "/usr/local/share/ca-certificates/*.crt",
    "/etc/pip.conf",
    "/etc/npmrc",
    "/etc/hosts",
    "/etc/resolv.conf",
)
_VARIABLE: Final = re.compile(
    r"(pip|npm_config|uv)_\w+|\w+_proxy|ssl_cert_\w+|git_ssl_cainfo|curl_ca_bundle|requests_ca_bundle|node_extra_ca_certs",
    re.IGNORECASE,
)


def why_not() -> str:
    """Return why no machine can be made here, or ""."""
    if os.getuid() != 0:
        return "it takes root to make machines"
    missing = [it for it in NEEDED if shutil.which(it) is None]
    return f"no {', no '.join(missing)} here: it takes Debian with the package debootstrap" if missing else ""


def environment(root: Path) -> dict[str, str]:
    """Return the host's variables that say how to reach package indexes, but for paths that are not on the machine."""
    return {
        name: value
        for name, value in os.environ.items()
        if _VARIABLE.fullmatch(name) and not (value.startswith("/") and not (root / value[1:]).exists())
    }


def base(cache: Path, *, user: bool, log: TextIO) -> Path:
    """Return the folder of a machine for root, or of one for a user. Make it if it is not there."""
    name = "user" if user else "root"
    made = cache / f"{SUITE}-{name}"
    if made.exists():
        return made
    growing = cache / f"{SUITE}-{name}.part"
    shutil.rmtree(growing, ignore_errors=True)
    if user:
        copy(base(cache, user=False, log=log), growing)
        _give_a_user_what_he_has(growing, log)
    else:
        _debootstrap(growing, log)
        _copy_settings(growing)
        with Machine("base", growing, {}) as machine:
            machine.run("update-ca-certificates 2>&1", log)
    return growing.rename(made)


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--archive", "--reflink=auto", source, target], check=True)


def _debootstrap(root: Path, log: TextIO) -> None:
    root.mkdir(parents=True)
    print(f"base: debootstrap of {SUITE}, which takes a minute or two", flush=True)
    # In namespaces, because it mounts things, and should take them along if it is killed.
    namespaces = ("--mount", "--pid", "--fork", "--kill-child")
    made = subprocess.run(
        [
            "setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "debootstrap", "--variant=minbase",
            f"--include={','.join(PACKAGES)}", SUITE, root, _mirror(),
        ],
        stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
    )  # fmt: skip
    if made.returncode:
        raise Failed(f"debootstrap failed, see {log.name}")


def _mirror() -> str:
    """Return where the host gets this Debian from."""
    known = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for line in known.splitlines():
        release, component, uri = line.split(maxsplit=2)
        if (release, component) == (SUITE, "main"):
            return uri
    raise Failed(f"apt's sources on this machine have no {SUITE}")


def _copy_settings(root: Path) -> None:
    (root / "etc/apt/sources.list").unlink(missing_ok=True)
    for pattern in _FILES:
        for source in map(Path, glob.glob(pattern)):
            target = root / source.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    settings = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True, check=True).stdout
    lines = [it for it in settings.splitlines(keepends=True) if not it.startswith("Acquire::IndexTargets")]
    (root / "etc/apt/apt.conf.d/99host").write_text("".join(lines))


def _give_a_user_what_he_has(root: Path, log: TextIO) -> None:
    with Machine("base", root, environment(root)) as machine:
        machine.run("apt-get -qq update", log)
        machine.run("DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends -y python3-venv", log)
        machine.run(f"useradd --create-home --shell /bin/bash {USER}", log)
