"""Commits to Delta tables whose writers do not learn the outcome."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

make = DeltaTable.create_write_transaction


def lose_an_answer(monkeypatch: pytest.MonkeyPatch, *, refused: bool = False) -> None:
    """Let the next commit be made, and its writer hear that it failed because somebody was quicker.

    `refused`: the writer hears the refusal of the conflict check, as if the request was repeated after the store had
    it.
    """

    def put(table: DeltaTable, *arguments: Any, **more: Any) -> None:
        monkeypatch.undo()
        make(DeltaTable(table.table_uri), *arguments, **more)
        if refused:
            make(table, *arguments, **more)
        raise CommitFailedError("Transaction failed: version already exists")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", put)


def delay_a_commit(monkeypatch: pytest.MonkeyPatch, folder: str = "") -> Callable[[], None]:
    """Let the next commit time out; the store gets it when the returned function is called.

    With `folder`, only commits to the table in this folder count.
    """
    late: list[Callable[[], None]] = []

    def put(table: DeltaTable, *arguments: Any, **more: Any) -> None:
        if not table.table_uri.rstrip("/").endswith(folder):
            make(table, *arguments, **more)
            return
        monkeypatch.undo()
        late.append(partial(make, table, *arguments, **more))
        raise OSError("Generic S3 error: operation timed out")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", put)
    return lambda: late.pop()()
