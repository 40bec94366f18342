"""Imports every module of a package, with other packages hidden: `import_all.py PACKAGE HIDDEN...`"""

from __future__ import annotations

import importlib
import pkgutil
import sys


def main() -> None:
    package, *hidden = sys.argv[1:]
    for name in hidden:
        assert name not in sys.modules, f"{name} is imported already, so nothing would miss it"
        sys.modules[name] = None  # type: ignore[assignment]  # from now on importing it is an ImportError
    if package in ("nsqjobs", "nsqjobs.django"):  # Django's models can be imported in a site only
        import django.conf

        django.conf.settings.configure(INSTALLED_APPS=["nsqjobs.django"])
        django.setup()
    found = importlib.import_module(package)
    for module in pkgutil.walk_packages(found.__path__, package + "."):
        if module.name.startswith("nsqcommon.bodies."):  # it needs the extra `spark`: tests/nsqcommon/bodies
            continue
        if not module.name.endswith("__main__"):  # importing that one is running it
            importlib.import_module(module.name)
    print(*sys.modules)


if __name__ == "__main__":
    main()
