"""Front ends, and Spark's source, work on a journal in PostgreSQL: a cross-section of their own tests runs with one."""

from __future__ import annotations

import pytest

from laneway.journal.postgres import Database
from tests.postgres import PostgresServer
from tests.test_through_bytes import run_tests

#: It compares with what is in the folder.
LOOKS = "--deselect=tests/rest/test_journal.py::test_the_history_is_read_in_steps_and_is_what_the_folder_holds"

FILES = {
    "rest": ["tests/rest/test_consume.py", "tests/rest/test_journal.py", "tests/rest/test_producers.py", LOOKS],
    "history": [
        "tests/pipeline/test_following.py::test_a_cursor_follows_what_was_read_and_an_idle_server_is_left_in_peace",
        "tests/pipeline/test_following.py::test_two_streams_with_cursors_do_not_keep_one_another_busy",
    ],
    "amqp": ["tests/amqp/test_channels.py"],
    "sqs": ["tests/sqs/test_dead_letters.py", "tests/sqs/test_fifo.py"],
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("front_end", FILES)
def test_a_front_end_or_a_reader_passes_its_own_tests_on_postgresql(
    front_end: str, postgres_server: PostgresServer
) -> None:
    Database(url := postgres_server.new_database()).migrate()
    run_tests(FILES[front_end], {"LANEWAY_TEST_JOURNAL": url})
