from tests.browser.test_pages import *


def test_axe(still_page):
    b = still_page
    for path in ("/topics", "/"):
        b.open(path)
        b.look(width=1400)
        b.run(KINDS)
        b.command("Runtime.evaluate", {"expression": AXE.read_text(encoding="utf-8")})
        base = {"resultTypes": ["violations"], "rules": {"target-size": {"enabled": True}}}
        variants = {
            "now": base,
            "preload false": base | {"preload": False},
            "noselectors": base | {"preload": False, "selectors": False},
            "now again": base,
        }
        for n, o in variants.items():
            ts = []
            for _ in range(6):
                ts.append(
                    b.run(
                        "const t=performance.now(); return ((() => {"
                        + RUN
                        + "})).apply(null, arguments).then(()=>performance.now()-t)",
                        [],
                        o,
                        True,
                    )
                )
            print("AXE", path, n, [round(x) for x in sorted(ts)], flush=True)
