# SPDX-License-Identifier: Apache-2.0
"""SQLite with a rollback journal and with a write-ahead log, in one process and in two."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from harness import process

JOURNALS = ["delete", "truncate", "persist", "wal"]
STEPS = Path(__file__).with_name("sqlite_steps.py")
ROWS = 40


def connect(path, journal):
    database = sqlite3.connect(path, timeout=60, isolation_level=None)
    assert database.execute(f"PRAGMA journal_mode={journal}").fetchone()[0] == journal
    return database


def create(path, journal):
    database = connect(path, journal)
    database.execute("CREATE TABLE entries (writer TEXT, number INTEGER, seen INTEGER, body BLOB)")
    return database


@pytest.mark.parametrize("journal", JOURNALS)
def test_transactions_and_rollback(mount, work, journal):
    path = work / "data.db"
    database = create(path, journal)
    database.execute("BEGIN")
    database.executemany("INSERT INTO entries VALUES ('a', ?, 0, ?)", [(i, bytes(5000)) for i in range(500)])
    database.execute("COMMIT")
    database.execute("BEGIN")
    database.execute("DELETE FROM entries")
    database.execute("ROLLBACK")
    database.execute("UPDATE entries SET number = number + 1000 WHERE number % 7 = 0")
    database.execute("VACUUM")
    database.close()
    mount.remount()
    database = connect(path, journal)
    assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    numbers = [row[0] for row in database.execute("SELECT number FROM entries ORDER BY rowid")]
    assert numbers == [i + 1000 if i % 7 == 0 else i for i in range(500)]
    database.close()


@pytest.mark.parametrize("journal", JOURNALS)
def test_two_processes_write_at_once(mount, work, journal):
    path = work / "data.db"
    create(path, journal).close()
    writers = [subprocess.Popen([sys.executable, STEPS, path, journal, name, str(ROWS)], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for name in "ab"]
    for writer in writers:
        assert writer.stdout.readline().strip() == "ready"
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        process.finish(writer)
    mount.remount()
    database = connect(path, journal)
    assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    rows = database.execute("SELECT writer, number, seen, body FROM entries ORDER BY rowid").fetchall()
    # each process saw all rows that were committed before its own
    assert [row[2] for row in rows] == list(range(2 * ROWS))
    for name in "ab":
        assert [row[1] for row in rows if row[0] == name] == list(range(ROWS))
    assert all(row[3] == bytes([row[1] % 256]) * 3000 for row in rows)
    database.close()


def test_reader_of_a_log_sees_a_stable_snapshot(work):
    path = work / "data.db"
    writer = create(path, "wal")
    writer.execute("INSERT INTO entries VALUES ('a', 1, 0, x'00')")
    reader = connect(path, "wal")
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM entries").fetchone()[0] == 1
    writer.execute("INSERT INTO entries VALUES ('a', 2, 0, x'00')")
    assert reader.execute("SELECT count(*) FROM entries").fetchone()[0] == 1
    reader.execute("COMMIT")
    assert reader.execute("SELECT count(*) FROM entries").fetchone()[0] == 2
    assert (work / "data.db-shm").exists()
    reader.close()
    writer.close()


def test_a_locked_database_is_busy_for_another_process(work):
    path = work / "data.db"
    database = create(path, "delete")
    database.execute("BEGIN EXCLUSIVE")
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
    other = process.run([sys.executable, "-c", script, path], codes=None)
    assert other.code != 0 and "locked" in other.err
    database.execute("COMMIT")
    process.run([sys.executable, "-c", script, path])
    database.close()


def test_memory_mapped_reads(mount, work):
    path = work / "data.db"
    database = create(path, "wal")
    database.execute("BEGIN")
    database.executemany("INSERT INTO entries VALUES ('m', ?, 0, ?)",
                         [(i, bytes([i % 256]) * 2000) for i in range(2000)])
    database.execute("COMMIT")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    mount.remount()
    database = connect(path, "wal")
    database.execute("PRAGMA mmap_size=268435456")
    assert database.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    assert database.execute("SELECT sum(length(body)) FROM entries").fetchone()[0] == 4_000_000
    database.close()
