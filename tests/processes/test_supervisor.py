"""The processes of one server: how they start, end, and are started again."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from benchmarks.machine import sockets
from laneway.config import Config
from laneway.errors import ConfigInvalid, StartError
from laneway.node.folder import DataFolder
from laneway.node.storage import FolderStorage, wanted_count
from tests.crash.server import Server, eventually
from tests.processes.several import SeveralProcesses, is_alive


def refused(folder: Path, *options: str) -> str:
    """What a server says that does not start."""
    server = Server(folder, *options)
    with pytest.raises(AssertionError, match="did not start"):
        server.start()
    return server.log()


def test_killed_process_is_started_again_and_nothing_is_lost(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path / "data") as server:
        for connection in server.by_process().values():
            for name in ("p", "q", "r", "s"):
                connection.call("PUT", f"/queues/{name}")
                connection.must(201, "POST", f"/queues/{name}/messages", {"payload": "kept"})
        for at in (0, 1):
            gone = server.kill_child(at)
            eventually("another one took its place", server.whole)
            eventually("it serves", lambda: _answers(server))
            assert gone not in server.children()
        assert "was killed by SIGKILL; it is started again now" in server.log()
        for connection in server.by_process().values():
            for name in ("p", "q", "r", "s"):
                assert connection.must(200, "GET", f"/queues/{name}/stats")["approximate_message_count"] == 2
        assert server.stop() == 0


def _answers(server: Server) -> bool:
    try:
        return all(server.connect().call("GET", "/readyz")[0] == 200 for _ in range(8))
    except OSError:
        return False


def test_process_that_dies_again_and_again_is_started_with_growing_pauses(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path / "data") as server:
        for _ in range(3):
            server.kill_child(1)
            eventually("another one took its place", server.whole)
        pauses = re.findall(r"it is started again (now|in [\d.]+ s)", server.log())
        assert pauses == ["now", "in 0.5 s", "in 1 s"]


def test_stop_leaves_no_process_and_no_socket(tmp_path: Path) -> None:
    server = SeveralProcesses(tmp_path / "data")
    server.start()
    pids = [server.pid, *server.children()]
    assert server.stop() == 0
    assert [pid for pid in pids if is_alive(pid)] == []
    assert list((tmp_path / "data" / "processes").glob("*.sock")) == []
    assert list(DataFolder(tmp_path / "data").sockets().parent.glob("*.sock")) == []


def test_processes_end_with_their_supervisor(tmp_path: Path) -> None:
    server = SeveralProcesses(tmp_path / "data")
    server.start()
    pids = server.children()
    server.kill()
    eventually("they are gone", lambda: not any(map(is_alive, pids)))
    with SeveralProcesses(tmp_path / "data") as again:
        assert again.connect().call("GET", "/readyz")[0] == 200


def test_all_processes_listen_at_the_one_free_port_that_was_found(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path / "data", processes=3) as server:
        inodes = [socket for pid in server.children() for socket in sockets(pid)]
        table = Path("/proc/net/tcp").read_text().splitlines()
        listening = [row.split() for row in table if f":{server.port:04X} 00000000:0000 0A" in row]
        assert len(listening) == 3 and all(f"socket:[{row[9]}]" in inodes for row in listening)


def test_taken_port_is_refused_also_if_another_server_would_share_it(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        assert "somebody listens there already" in refused(tmp_path / "a", "--processes", "2", "--http", address)


def test_second_server_on_the_folder_is_refused(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path / "data") as server:
        for options in (("--processes", "2"), ()):
            assert f"in use by the server of process {server.pid}" in refused(tmp_path / "data", *options)
        assert server.connect().call("GET", "/readyz")[0] == 200
    with Server(tmp_path / "data") as single:
        assert f"of process {single.pid}" in refused(tmp_path / "data", "--processes", "2")


def test_process_that_cannot_start_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    said = refused(tmp_path / "data", "--processes", "2", "--http", "0.0.0.0:0")
    assert "http is 0.0.0.0" in said and "the only account is guest" in said


def test_interrupt_of_a_terminal_stops_the_server_cleanly(tmp_path: Path) -> None:
    server = SeveralProcesses(tmp_path / "data")
    server.start()
    assert all(os.getpgid(pid) == pid for pid in server.children())  # so that the terminal reaches the parent alone
    server.signal(signal.SIGINT)
    assert server.stop() == 0


# --- the data folder


def test_partitions_are_counted_by_their_folders(tmp_path: Path) -> None:
    folder, journals = DataFolder(tmp_path / "data"), FolderStorage(Config(data=tmp_path / "data"))
    assert folder.partition_count() == 1 and folder.is_new()
    assert wanted_count(journals, 0, 3) == 3 and wanted_count(journals, 2, 3) == 2
    folder.make_partitions(3)
    assert folder.partition_count() == 3
    assert folder.partition(2).is_dir() and folder.partition(0) == tmp_path / "data"
    with pytest.raises(ConfigInvalid, match=r"partitions is 2, and .* has 3: there can be more later, never fewer"):
        wanted_count(journals, 2, 1)
    assert wanted_count(journals, 5, 1) == 5


def test_folder_that_has_a_journal_keeps_its_partitions_unless_more_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "0000000000000001.segment").touch()
    journals = FolderStorage(Config(data=tmp_path))
    assert wanted_count(journals, 0, 4) == 1
    assert wanted_count(journals, 4, 4) == 4


def test_start_that_was_killed_while_it_made_folders_goes_on(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.make_partitions(2)  # of 4, and no journal yet
    assert wanted_count(FolderStorage(Config(data=tmp_path)), 0, 4) == 4
    folder.make_partitions(4)
    assert folder.partition_count() == 4


def test_missing_partition_stops_the_start(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.make_partitions(4)
    folder.partition(2).rmdir()
    with pytest.raises(StartError, match="a folder 3 and no folder 2"):
        folder.partition_count()


def test_sockets_of_a_folder_with_a_long_name_lie_elsewhere(tmp_path: Path) -> None:
    short, long = DataFolder(Path("/srv/data")), DataFolder(tmp_path / ("x" * 90))
    assert short.sockets() == Path("/srv/data/processes")
    long.path.mkdir()
    made = long.make_sockets_folder()
    assert made.stat().st_mode & 0o777 == 0o700 and len(os.fsencode(made)) < 87
    (made / "partition-0.sock").touch()
    assert long.make_sockets_folder() == made and not list(made.iterdir())
    long.remove_sockets()
    assert not made.exists()
