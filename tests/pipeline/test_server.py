from __future__ import annotations

from collections.abc import Sequence

import pytest

from laneway.client import ClientError
from laneway.pipeline import server


def test_letters_that_have_gone_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "IDS_AT_ONCE", 10)
    gone = {"3", "4", "17"}
    asked: list[int] = []

    def ask(ids: Sequence[str]) -> list[str]:
        asked.append(len(ids))
        if gone & set(ids):
            raise ClientError("message_not_found", "gone")
        return list(ids)

    ids = [str(n) for n in range(25)]
    answers = server.of_those_there(ids, ask)
    assert [one for answer in answers for one in answer] == [one for one in ids if one not in gone]
    assert max(asked) == 10 and len(asked) < 25
    assert server.of_those_there([], ask) == []


def test_a_queue_that_has_gone_has_nothing_and_other_errors_are_told() -> None:
    def refuse(code: str) -> object:
        def ask(ids: Sequence[str]) -> None:
            raise ClientError(code, "no")

        return server.of_those_there(["1", "2"], ask)

    assert refuse("queue_not_found") == []
    with pytest.raises(ClientError, match="no"):
        refuse("forbidden")
