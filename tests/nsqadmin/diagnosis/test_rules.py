"""Each rule has a family and an effect."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nsqadmin.diagnosis
from nsqadmin.cluster.model import Finding, Severity
from nsqadmin.diagnosis.rules import RULES, Family, rule_of

FOLDER = Path(nsqadmin.diagnosis.__file__).parent


def named_rules() -> set[str]:
    """Return the rules that the modules of rules name in their code."""
    named = set()
    for path in FOLDER.glob("*.py"):
        if path.name not in ("rules.py", "wording.py", "suspects.py", "__init__.py"):
            for it in ast.walk(ast.parse(path.read_text())):
                if isinstance(it, ast.Constant) and isinstance(it.value, str) and re.fullmatch(r"D\d+", it.value):
                    named.add(it.value)
    return named


def test_every_rule_is_in_the_table() -> None:
    listed = {name.partition(":")[0] for name in RULES}
    assert named_rules() <= listed
    assert "D16" in named_rules()


def test_rules_about_one_node_are_told_apart() -> None:
    def family(facet: str) -> Family:
        it = Finding(rule="D16", severity=Severity.WARNING, verdict="v", advice="a", node="n1:4151", facet=facet)
        return rule_of(it).family

    assert (family("reach"), family("clock")) == (Family.REACH, Family.CLOCK)
    source = (FOLDER / "nodes.py").read_text() + (FOLDER / "channels.py").read_text()
    facets = {name.partition(":")[2] for name in RULES if ":" in name}
    assert all(f'"{facet}"' in source for facet in facets)
    assert family("") is Family.OTHER  # not one of ours
