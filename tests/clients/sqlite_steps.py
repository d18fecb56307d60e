# SPDX-License-Identifier: Apache-2.0
"""A writer of test_sqlite.py's tests with two processes: adds numbered rows, each in a transaction of its own."""

import sqlite3
import sys


def write(path, journal, name, count):
    database = sqlite3.connect(path, timeout=60, isolation_level=None)
    assert database.execute(f"PRAGMA journal_mode={journal}").fetchone()[0] == journal
    database.execute("PRAGMA synchronous=FULL")
    print("ready", flush=True)
    sys.stdin.readline()
    for index in range(count):
        database.execute("BEGIN IMMEDIATE")
        total = database.execute("SELECT count(*) FROM entries").fetchone()[0]
        database.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", (name, index, total, bytes([index % 256]) * 3000))
        database.execute("COMMIT")
    database.close()


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
