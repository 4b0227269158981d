"""`laneway demo` as a person or a program runs it, without the jobs (tests/pipeline has those)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from laneway.cli import cli, demo
from laneway.journal.segments.journal import SegmentJournal

QUICK = ("--seconds", "3", "--rate", "100", "--no-jobs")


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "laneway", "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        env={**os.environ, **(env or {})},
    )


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ("demo", *arguments), prog_name="laneway")
    assert done.exit_code == 2, done.output
    return done.output


def test_a_program_gets_one_document_and_nothing_else(tmp_path: Path) -> None:
    # A server named in the environment is somebody else's: the demo has its own.
    done = run(*QUICK, "--json", "--data", str(tmp_path / "data"), env={"LANEWAY_URL": "http://127.0.0.1:1"})
    assert (done.returncode, done.stderr) == (0, "")
    report = json.loads(done.stdout)
    assert report["is_good"] and report["is_drained"] and report["differences"] == []
    assert report["messages"] == sum(tally["published"] for tally in report["queues"].values()) >= 300
    assert (report["data"], report["report"]) == (str(tmp_path / "data"), None)
    assert list(tmp_path.glob("data/*")), "the data folder stays"


def test_a_person_is_told_what_happens_where_things_are_and_what_to_do_next(tmp_path: Path) -> None:
    done = run(*QUICK, "--data", str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    assert "are down" in done.stderr and "rates squeezed and not its times" in done.stderr
    assert re.search(r"^payments +\d+ +\d+", done.stdout, re.MULTILINE)
    assert "the server's totals are the same" in done.stdout
    assert f"laneway serve --data {tmp_path / 'data'}" in done.stdout
    assert max(map(len, done.stdout.replace(str(tmp_path), "").splitlines())) <= 80


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_demo_and_its_server(tmp_path: Path, number: signal.Signals) -> None:
    running = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "laneway",
            "demo",
            "--seconds",
            "600",
            "--rate",
            "20",
            "--no-jobs",
            "--data",
            str(tmp_path / "data"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr is not None
    for line in running.stderr:
        if "a usual morning" in line:
            break
    running.send_signal(number)
    out, said = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "")
    assert said == f"laneway: stopped; what was there by then is in {tmp_path / 'data'}\n"
    # Nobody holds the folder any more.
    assert "stopping" in (tmp_path / "data.log").read_text()
    SegmentJournal(tmp_path / "data")


def test_folders_that_hold_something_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").touch()
    assert "--data" in (said := refusal("--no-jobs", "--data", str(tmp_path / "data")))
    assert "not an empty folder" in said
    (tmp_path / "warehouse").mkdir()
    (tmp_path / "warehouse" / "slo").mkdir()
    assert "--warehouse" in refusal("--no-jobs", "--data", str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--seconds", "1"), "--seconds is from 2 s to 1 h, not 1s"),
        (("--seconds", "2h"), "not 2h"),
        (("--rate", "0"), "--rate"),
        (("--seed", "x"), "--seed"),
    ],
)
def test_bad_values_are_refused(arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in refusal("--no-jobs", *arguments)


def test_without_spark_it_says_so_before_a_minute_is_spent(tmp_path: Path) -> None:
    done = run("--data", str(tmp_path / "data"), env={"JAVA_HOME": str(tmp_path / "nowhere")})
    assert done.returncode == 1
    assert "Java 17" in done.stderr and "--no-jobs" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_report_is_opened_only_where_there_are_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(demo.webbrowser, "open", lambda url: not opened.append(url))
    monkeypatch.setattr(demo.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    page = tmp_path / "report.html"
    assert not demo._open(page) and opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert demo._open(page) and opened == [page.as_uri()]
