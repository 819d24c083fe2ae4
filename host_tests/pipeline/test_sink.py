"""Sinks: the committed rows in a database, each once, also after kills."""

import csv
import datetime
import errno
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from host_tests.pipeline import postgres
from host_tests.pipeline.conftest import Local
from host_tests.pipeline.test_plain import Tables
from tools.bootstrap import ROOT
from tools.command import explained
from tools.pipeline import compact, forget, sink
from tools.pipeline.batch import dating
from tools.pipeline.sink import Position, SinkError, bring, open_sink
from tools.pipeline.tables import commits
from tools.pipeline.tables.commits import OutputError
from tools.pipeline.tables.storage import Storage

LACKS_POSTGRES = (
    "NOT TESTED: there is no PostgreSQL (initdb, postgres) on this machine, or no user that it would run as"
)


@pytest.fixture(scope="session")
def server():
    if postgres.programs() is None or postgres.as_another_user()[0] is None:
        pytest.skip(LACKS_POSTGRES)
    started = postgres.Server()
    yield started
    started.close()


@pytest.fixture(params=["duckdb", "postgres"])
def to(request, tmp_path):
    """The address of a sink: a new file, or a server without our schema."""
    if request.param == "duckdb":
        yield str(tmp_path / "readings.duckdb")
        return
    import psycopg

    address = request.getfixturevalue("server").address
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS flashmqtt CASCADE")
    yield address


@contextmanager
def reader(to):
    """Yield a function that reads from a sink as any program does."""
    if "://" in to:
        import psycopg

        with psycopg.connect(to, autocommit=True) as connection:
            connection.execute("SET search_path TO flashmqtt, public")
            connection.execute("SET TIME ZONE 'UTC'")

            def read(sql, parameters=None):
                found = connection.execute(sql, parameters)
                return found.fetchall() if found.description else []

            yield read
        return
    import duckdb

    with duckdb.connect(to) as connection:
        yield lambda sql, parameters=None: connection.execute(sql, parameters).fetchall()


def run(to, sql, parameters=None):
    """Read once."""
    with reader(to) as read:
        return read(sql, parameters)


def moment(value):
    return value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else value


def in_sink(read, table):
    """Return all rows of a sink's table."""
    columns = sink.TABLES[table].names
    names = ", ".join(f'"{name}"' for name in columns)
    return sorted(repr([moment(one) for one in row]) for row in read(f"SELECT {names} FROM {table}"))


def in_tables(output, table):
    """Return the same rows from our tables."""
    columns = sink.TABLES[table].names
    files = output.latest().state_files("audit") if table == "boots" else output.files(table)
    rows = []
    for name in files:
        found = pq.read_table(output.storage.path(name), columns=columns, partitioning=None).select(columns).to_pylist()
        rows += [repr([moment(row[name]) for name in columns]) for row in found]
    return sorted(rows)


def all_in_tables(output):
    return {table: in_tables(output, table) for table in sink.TABLES}


def assert_same(to, output, wanted=None):
    with reader(to) as read:
        for table, rows in (wanted or all_in_tables(output)).items():
            assert in_sink(read, table) == rows, table


def readings_in_sink(to):
    with reader(to) as read:
        return in_sink(read, "readings")


def update(to, output, **more):
    opened = open_sink(to)
    try:
        return bring(output, opened, **more)
    finally:
        opened.close()


def fill(tables, seq, boots=1):
    """Land some of each kind: packs, events, clocks, plain messages."""
    landing = tables.landing
    for n in range(3):
        landing.message("a", boots, seq + n, up=seq + n / 2, bt=1_790_000_000 + seq + n / 2)
        landing.message("b", 1, seq + n, value=1.5)
        landing.raw("d/t", b"%d" % n)
    landing.message("a", boots, seq + 3, dropped=0)  # an event
    landing.raw("json/k", '{"a": "=1+1;\\"x\\"", "b": "", "c": true, "z": "\u00e4\\n"}'.encode())


@pytest.fixture(scope="module")
def made_once(tmp_path_factory):
    """Return the folder of two batches, and the tables."""
    home = tmp_path_factory.mktemp("tables")
    made = Tables(home)
    for seq in (1, 5):
        fill(made, seq)
        made.batch()
    return home, made


@pytest.fixture
def tables(made_once, tmp_path):
    """A copy for each test."""
    home, made = made_once
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    found = Tables(tmp_path)
    vars(found.landing).update({**vars(made.landing), "directory": found.landing.directory, "rows": []})
    return found


@pytest.mark.req("P3")
def test_sink_equals_the_tables_and_a_repeated_update_adds_nothing(to, tables):
    assert [batch for batch, _ in update(to, tables.output)] == [1, 2]
    assert_same(to, tables.output)
    assert update(to, tables.output) == []
    fill(tables, 11, boots=2)
    tables.batch()
    assert [batch for batch, _ in update(to, tables.output)] == [3]
    assert_same(to, tables.output)


@pytest.mark.req("P3", "P4")
def test_late_messages_correct_missing_counts_of_boots(to, tables):
    fill(tables, 11)
    tables.batch()
    update(to, tables.output)
    assert run(to, "SELECT missing FROM boots WHERE device = 'a'") == [(2,)]
    tables.landing.message("a", 1, 9)
    tables.landing.message("a", 1, 10)
    tables.batch()
    update(to, tables.output)
    assert run(to, "SELECT missing FROM boots WHERE device = 'a'") == [(0,)]
    assert_same(to, tables.output)


@pytest.mark.req("P3")
@pytest.mark.parametrize("reached", [0, 1, 2, 3])
def test_compaction_at_any_sink_position_changes_no_row(to, tables, reached):
    if reached:
        opened = open_sink(to)
        for _ in range(min(reached, 2)):
            sink._next(tables.output, sink.identity(tables.output), opened, False, lambda: None)
        opened.close()
    fill(tables, 9)
    tables.batch()
    if reached == 3:
        update(to, tables.output)
    compact.compact(Local(), tables.output.storage.uri)
    update(to, tables.output)
    assert_same(to, tables.output)
    fill(tables, 13)
    tables.batch()
    update(to, tables.output)
    assert_same(to, tables.output)


def test_update_is_restarted_when_a_compaction_deletes_its_files(to, tables, monkeypatch):
    real = sink._rows
    compacted = []

    def rows(*arguments):
        if not compacted:
            compacted.append(compact.compact(Local(), tables.output.storage.uri))
        return real(*arguments)

    monkeypatch.setattr(sink, "_rows", rows)
    update(to, tables.output)
    assert_same(to, tables.output)


@pytest.mark.req("P3")
def test_sink_does_not_pass_over_a_missing_commit(tables, tmp_path):
    (tmp_path / "out" / commits.name_of(1)).rename(tmp_path / "lost")
    with pytest.raises(OutputError, match="is missing, and only it names the files of its batch: restore it"):
        update(str(tmp_path / "readings.duckdb"), tables.output)
    (tmp_path / "lost").rename(tmp_path / "out" / commits.name_of(1))
    update(str(tmp_path / "readings.duckdb"), tables.output)
    assert_same(str(tmp_path / "readings.duckdb"), tables.output)


def test_rows_deleted_by_retention_stay_in_the_sink(to, tables):
    update(to, tables.output)
    before = readings_in_sink(to)
    compact.compact(Local(), tables.output.storage.uri, "2099-01-01")
    assert in_tables(tables.output, "readings") == []
    update(to, tables.output)
    assert readings_in_sink(to) == before


def test_other_or_older_tables_are_refused_unless_anew_is_given(to, tables, tmp_path):
    update(to, tables.output)
    other = Tables(tmp_path / "other") if (tmp_path / "other").mkdir() is None else None
    fill(other, 1)
    other.batch()
    with pytest.raises(SinkError, match="has rows of other tables"):
        update(to, other.output)
    update(to, other.output, anew=True)
    assert_same(to, other.output)
    update(to, tables.output, anew=True)
    assert_same(to, tables.output)
    Path(tables.output.storage.path("commits/000000002.json")).unlink()
    with pytest.raises(SinkError, match="is at batch 2, but the tables end before it"):
        update(to, tables.output)
    opened = open_sink(to)
    with opened.transaction():
        opened.move(Position(sink.identity(tables.output), 1, "x", 1, layout=0))
    opened.close()
    with pytest.raises(SinkError, match="layout 0, this program writes 2"):
        update(to, tables.output)
    run(to, "UPDATE position SET told = '{\"of a later version\": 1}'")
    with pytest.raises(SinkError, match="another program or version wrote its table `position`"):
        update(to, tables.output)


@pytest.mark.req("P3")
def test_database_that_lost_its_position_gets_no_row_twice(to, tables):
    update(to, tables.output)
    with reader(to) as read:
        read("DELETE FROM position")
    with pytest.raises(
        SinkError, match="has rows, but no position: --anew deletes its rows and copies everything again"
    ):
        update(to, tables.output)
    assert_same(to, tables.output)
    update(to, tables.output, anew=True)
    assert_same(to, tables.output)


def test_sink_continues_after_the_disk_was_full_when_its_file_was_made(tables, tmp_path):
    to = str(tmp_path / "readings.duckdb")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # a write that makes a file longer fails
    try:
        with pytest.raises(SinkError, match="File too large"):
            open_sink(to)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    update(to, tables.output)
    assert_same(to, tables.output)


CREATE = """
import resource, signal, sys
from tools.pipeline.sink import open_sink
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
open_sink(sys.argv[1])
"""
"""Makes a database; a write behind a position kills the process."""


@pytest.mark.req("P3")
@pytest.mark.parametrize("size", [0, 4096, 8192])
def test_sink_killed_while_its_file_is_made_continues(tables, tmp_path, size):
    to = str(tmp_path / "readings.duckdb")
    assert subprocess.run([sys.executable, "-c", CREATE, to, str(size)]).returncode == -signal.SIGXFSZ
    update(to, tables.output)
    assert_same(to, tables.output)
    assert [path.name for path in tmp_path.iterdir() if "duckdb" in path.name] == ["readings.duckdb"]


@pytest.mark.req("P3")
def test_sink_whose_file_another_one_has_made_meanwhile_uses_that(tables, tmp_path, monkeypatch):
    import duckdb

    to, connect = str(tmp_path / "readings.duckdb"), duckdb.connect

    def closed():
        monkeypatch.undo()
        update(to, tables.output)

    monkeypatch.setattr(duckdb, "connect", lambda path: connect(path).close() or SimpleNamespace(close=closed))
    assert update(to, tables.output) == []
    assert_same(to, tables.output)


@pytest.mark.req("P7")
def test_full_disk_while_a_device_is_deleted_is_named_and_does_not_stop_other_databases(tables, tmp_path, monkeypatch):
    import duckdb

    from tools.pipeline.sinks.duckdb_file import DuckSink

    names, run_one = ("full.duckdb", "other.duckdb"), DuckSink._run
    for name in names:
        update(str(tmp_path / name), tables.output)
        sink.register(tables.output, str(tmp_path / name), "")

    def failing(opened, sql, parameters=None):
        if sql.startswith("COPY FROM DATABASE") and opened.path.name == names[0]:
            raise duckdb.IOException("No space left on device")
        return run_one(opened, sql, parameters)

    monkeypatch.setattr(DuckSink, "_run", failing)
    with pytest.raises(SinkError, match=r"full\.duckdb: No space left on device"):
        sink.forget(tables.output, ["a"])
    assert {path.name for path in tmp_path.glob("*duckdb*")} == {*names}
    with reader(str(tmp_path / names[1])) as read:
        assert read("SELECT count(*) FROM readings WHERE device = 'a'") == [(0,)]


@pytest.mark.req("P7")
@pytest.mark.parametrize("table", ["boots", "dated", "position"])
def test_table_of_another_program_is_named_and_not_changed(to, tables, table):
    if "://" in to:
        run(to, "CREATE SCHEMA flashmqtt")
    run(to, f"CREATE TABLE {table} (device text, x integer)")
    run(to, f"INSERT INTO {table} VALUES ('mine', 1)")
    for anew in (False, True):
        with pytest.raises(SinkError, match=r"another program's tables, give another --to, or --schema; "):
            update(to, tables.output, anew=anew)
    assert run(to, f"SELECT * FROM {table}") == [("mine", 1)]


def test_columns_that_somebody_added_get_their_defaults(server, tables):
    to = server.address
    run(to, "DROP SCHEMA IF EXISTS flashmqtt CASCADE")
    update(to, tables.output)
    run(to, "ALTER TABLE readings ADD site text NOT NULL DEFAULT 'x', ADD id bigint GENERATED ALWAYS AS IDENTITY")
    fill(tables, 9)
    tables.batch()
    update(to, tables.output)
    assert_same(to, tables.output)
    count = len(in_tables(tables.output, "readings"))
    assert run(to, "SELECT count(DISTINCT id) FROM readings WHERE site = 'x'") == [(count,)]


@pytest.mark.parametrize("change", ["DROP TABLE events", "ALTER TABLE readings DROP COLUMN value"])
def test_changed_table_is_reported_and_made_again_by_anew(to, tables, change):
    update(to, tables.output)
    for sql in ("DROP VIEW dated", "DELETE FROM position", *(f"DELETE FROM {table}" for table in sink.TABLES), change):
        run(to, sql)
    with pytest.raises(SinkError, match=r"; if ours were changed, give --anew$"):
        update(to, tables.output)
    update(to, tables.output, anew=True)
    assert_same(to, tables.output)


def test_damaged_position_is_named_and_made_again_by_anew(to, tables):
    update(to, tables.output)
    ((text,),) = run(to, "SELECT told FROM position")
    of_another_type = [json.dumps({**json.loads(text), name: None}) for name in ("batch", "boots")]
    for told in ("", "[1]", "null", '{"output": "x"}', *of_another_type):
        run(to, "DELETE FROM position")
        run(to, f"INSERT INTO position VALUES ('{told}')")
        with pytest.raises(SinkError, match=r"its table `position`: .*; if ours were changed, give --anew$"):
            update(to, tables.output)
        update(to, tables.output, anew=True)
        assert update(to, tables.output) == []
    run(to, "ALTER TABLE position ADD more text")
    update(to, tables.output, anew=True)
    assert_same(to, tables.output)


def test_deleted_view_is_made_again_by_anew(to, tables):
    update(to, tables.output)
    run(to, "DROP VIEW dated")
    update(to, tables.output, anew=True)
    assert run(to, "SELECT count(*) FROM dated") == [(len(in_tables(tables.output, "readings")),)]


def test_role_without_rights_on_the_database_fills_its_own_schema(server, tables):
    run(server.address, "CREATE ROLE plant LOGIN")
    run(server.address, "CREATE SCHEMA plant AUTHORIZATION plant")
    opened = open_sink(server.address.replace("user=tester", "user=plant"), "plant")
    assert len(bring(tables.output, opened)) == 2
    opened.close()
    run(server.address, "ALTER TABLE plant.readings OWNER TO tester")
    run(server.address, "GRANT ALL ON plant.readings TO plant")
    opened = open_sink(server.address.replace("user=tester", "user=plant"), "plant")
    with pytest.raises(SinkError, match=r'"readings".* vacuum'):
        opened.forget(["a"])
    opened.close()


KILLED = """
import os, signal, sys
import duckdb, psycopg, pandas, pyarrow.csv, pyarrow.dataset  # once, not in each child
sys.path.insert(0, {root!r})
from tools.pipeline import sink
from tools.pipeline.sinks import duckdb_file, postgres
from tools.pipeline.tables.commits import Output
calls = moment = 0
def killed(real):
    def call(self, sql, *more):
        global calls
        done = real(self, sql, *more)
        calls += 1
        if calls == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    return call
for kind in (duckdb_file.DuckSink, postgres.PostgresSink):
    for name in ("_run", "_copy"):
        if hasattr(kind, name):
            setattr(kind, name, killed(getattr(kind, name)))
for line in sys.stdin:
    child = os.fork()
    if not child:
        moment = int(line)
        opened = sink.open_sink(sys.argv[2])
        sink.bring(Output(sys.argv[1]), opened)
        opened.close()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.req("P3")
def test_sink_killed_after_any_statement_is_completed_by_the_next_run(to, tables, monkeypatch):
    """After a kill, other connections see whole commits, and the next start copies the
    rest. So a process is killed after the first and the last statement that leave the same rows."""
    compact.compact(Local(), tables.output.storage.uri)
    fill(tables, 9)
    tables.batch()
    wanted = all_in_tables(tables.output)
    left = left_by_statements(to, tables.output, monkeypatch)
    assert_same(to, tables.output, wanted)
    assert [rows and len(rows["readings"]) for rows, _, _ in left] == [None, 28, 42]
    assert left[-1][2] > 30
    command = [sys.executable, "-c", KILLED.format(root=str(ROOT)), tables.output.storage.uri, to]
    children = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for rows, first, last in left:
            for statement in (first, last):
                wipe(to)
                children.stdin.write(f"{statement}\n")
                children.stdin.flush()
                assert int(children.stdout.readline()) == -signal.SIGKILL
                with reader(to) as read:
                    assert rows_there(read) == rows
                update(to, tables.output)
                assert_same(to, tables.output, wanted)
    finally:
        children.stdin.close()
        children.wait(60)


def left_by_statements(to, output, monkeypatch):
    """Copy all; return what another connection saw: (rows, first and last statement after which it saw them)."""
    opened, left, count = open_sink(to), [], 0

    def seen(real):
        def call(*arguments):
            nonlocal count
            done = real(*arguments)
            count += 1
            rows = rows_there(read)
            if not left or rows != left[-1][0]:
                left.append([rows, count, count])
            left[-1][2] = count
            return done

        return call

    with other_connection(to, opened) as read:
        for name in ("_run", "_copy"):
            if hasattr(opened, name):
                monkeypatch.setattr(opened, name, seen(getattr(opened, name)))
        bring(output, opened)
    opened.close()
    return left


@contextmanager
def other_connection(to, opened):
    """Yield a function that reads on another connection. Only the process that has a DuckDB file open can read it."""
    if "://" in to:
        with reader(to) as read:
            yield read
    else:
        with opened._connection.cursor() as cursor:
            yield lambda sql: cursor.execute(sql).fetchall()


def rows_there(read):
    """Return all rows of a sink, None if it has no tables."""
    try:
        position = read("SELECT told FROM position")
    except Exception as error:
        assert "exist" in str(error)
        return None
    return {"position": position, **{table: in_sink(read, table) for table in sink.TABLES}}


def wipe(to):
    if "://" in to:
        run(to, "DROP SCHEMA IF EXISTS flashmqtt CASCADE")
        return
    for name in Path(to).parent.glob("readings.duckdb*"):
        name.unlink()


def test_table_file_without_a_column_is_named_as_damaged(tables, tmp_path, capsys):
    storage = tables.output.storage
    name = tables.output.files("readings")[0]
    pq.write_table(storage.table(name).drop_columns(["seq"]), storage.path(name))
    assert sink.main(["--out", storage.uri, "--to", str(tmp_path / "r.duckdb")]) == 2
    said = capsys.readouterr().err
    assert f"{name} is damaged: restore it from a copy." in said
    assert said.endswith("(it has no column seq)\n")


def test_unusable_database_is_reported_in_one_line(tables, tmp_path):
    (tmp_path / "notes.duckdb").write_text("no database " * 1000)
    command = [sys.executable, "-m", "tools.pipeline.sink", "--out", tables.output.storage.uri]
    for to, named in (
        (str(tmp_path / "notes.duckdb"), "Is it a DuckDB file"),
        ("postgresql://nobody@127.0.0.1:1/plant", "host=127.0.0.1 port=1: "),
    ):
        ended = subprocess.run(
            [*command, "--to", to], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
        assert ended.stderr.startswith("sink: ") and named in ended.stderr


@pytest.mark.req("P3")
def test_killed_server_loses_no_committed_row(server, tables):
    import psycopg

    to = server.address
    with psycopg.connect(to, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS flashmqtt CASCADE")
    opened = open_sink(to)
    with pytest.raises(SinkError), opened.transaction():
        for rows in sink._rows(tables.output.storage, tables.output.files("readings"), sink.TABLES["readings"]):
            opened.add("readings", rows, False)
        server.stop(signal.SIGQUIT)
        opened.move(Position(sink.identity(tables.output), 2, "s", 2))
    server.start()
    update(to, tables.output)
    server.stop(signal.SIGQUIT)
    server.start()
    assert update(to, tables.output) == []
    assert_same(to, tables.output)


def test_server_killed_while_the_sink_connects_is_an_error_of_the_sink(server, monkeypatch):
    """With --follow, the sink then tries again."""
    import psycopg

    connect = psycopg.connect

    def connect_and_kill(*args, **more):
        connection = connect(*args, **more)
        server.stop(signal.SIGQUIT)
        return connection

    with monkeypatch.context() as patched:
        patched.setattr(psycopg, "connect", connect_and_kill)
        try:
            with pytest.raises(SinkError, match=r"terminat|closed"):
                open_sink(server.address)
        finally:
            patched.undo()
            server.start()


def test_readings_become_a_hypertable_with_timescaledb(server, tables):
    """TimescaleDB is not installed here: a function of the same name replaces it and records its arguments."""
    import psycopg

    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS flashmqtt CASCADE")
        connection.execute("CREATE TABLE public.asked (what text)")
        connection.execute(
            "CREATE FUNCTION public.create_hypertable(relation regclass, column_name name, chunk_time_interval interval)"
            " RETURNS void LANGUAGE sql AS $$ INSERT INTO public.asked"
            " VALUES (relation::text || ' ' || column_name || ' ' || chunk_time_interval) $$"
        )
        try:
            update(server.address, tables.output)
            assert connection.execute("SELECT what FROM public.asked").fetchall() == [("readings arrival 7 days",)]
            keys = connection.execute(
                "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
                " WHERE conrelid = 'flashmqtt.readings'::regclass AND contype = 'p'"
            ).fetchone()
            assert "arrival" in keys[0], "a hypertable's key holds the column that it is cut by"
        finally:
            connection.execute("DROP FUNCTION public.create_hypertable")
            connection.execute("DROP TABLE public.asked")
    assert_same(server.address, tables.output)


def test_dates_equal_the_pipelines_and_follow_a_late_tie(to, tables, spark):
    landing = tables.landing
    for n in range(4):
        landing.message("late", 1, n + 1, up=n + 1.0)
    landing.message("jumps", 1, 1, up=1.0, bt=1_700_000_000)
    landing.message("jumps", 1, 2, up=2.0, bt=1_790_000_000)
    landing.message("jumps", 1, 3, up=3.0, bt=1_790_000_001)
    landing.message("wrong", 1, 1, up=1.0, bt=1_990_000_000)
    tables.batch()
    update(to, tables.output)
    assert set(run(to, "SELECT dated_by FROM dated WHERE device = 'late'")) == {("arrival",)}
    landing.message("late", 1, 5, up=5.0, bt=1_790_000_100)
    tables.batch()
    update(to, tables.output)
    columns = ["device", "seq", "index", "taken", "dated_by"]
    readings = tables.output.read(spark, "readings")
    clocks = dating.clocks(tables.output.read(spark, "ties"))
    # Not by `collect`, whose times are in this machine's time zone.
    dated = dating.dated(readings, clocks).select(columns).toArrow().to_pylist()
    wanted = [tuple(moment(one) for one in row.values()) for row in dated]
    found = [
        tuple(moment(one) for one in row) for row in run(to, 'SELECT device, seq, "index", taken, dated_by FROM dated')
    ]
    assert sorted(found) == sorted(wanted)
    assert set(run(to, "SELECT dated_by FROM dated WHERE device = 'late'")) == {("uptime",), ("clock",)}


def test_unusual_texts_and_long_names_are_copied(to, tables):
    landing = tables.landing
    landing.raw("long/" * 2000 + "name", b"1")
    landing.raw("long/" * 2000 + "other", b"2")
    landing.raw(
        "json/k2", b'{"nul": "a\\u0000b", "quote": "\\"", "empty": "", "word": "NULL", "csv": "\\\\.", "n": "\\r\\n,"}'
    )
    tables.batch()
    update(to, tables.output)
    texts = dict(run(to, "SELECT name, text FROM readings WHERE device = 'k2'"))
    nul = texts.pop("nul")
    assert nul in ("a\0b", "a\ufffdb")
    assert texts == {"quote": '"', "empty": "", "word": "NULL", "csv": "\\.", "n": "\r\n,"}
    long = run(
        to, "SELECT count(*), count(DISTINCT device), max(length(device)) FROM readings WHERE device LIKE 'long%'"
    )
    assert long[0][:2] == (2, 1)
    assert long[0][2] in (9999, 561 + 32)


def bytes_of(to, server_directory=None):
    if "://" not in to:
        return b"".join(path.read_bytes() for path in Path(to).parent.glob("*readings.duckdb*"))
    return b"".join(path.read_bytes() for path in (server_directory / "data" / "base").rglob("*") if path.is_file())


def test_forgotten_device_leaves_no_row_and_no_byte_in_the_sink(to, tables, request):
    landing = tables.landing
    for n in range(50):
        landing.raw(f"secret-device-{n % 2}/t", b"7")
    tables.batch()
    opened = open_sink(to)
    sink.register(tables.output, to, "flashmqtt")
    bring(tables.output, opened)
    opened.close()
    total = len(readings_in_sink(to))
    directory = request.getfixturevalue("server").directory if "://" in to else None
    if directory:
        run(to, "CHECKPOINT")
    assert b"secret-device-1" in bytes_of(to, directory)
    (place,) = sink.registered(tables.output)
    assert sink.forget(tables.output, ["secret-device-0", "secret-device-1"]) == {place["to"]: 50}
    if directory:
        run(to, "CHECKPOINT")
    assert b"secret-device" not in bytes_of(to, directory)
    assert len(readings_in_sink(to)) == total - 50
    assert update(to, tables.output) == []
    landing.raw("d/t", b"8")
    tables.batch()
    assert len(update(to, tables.output)) == 1


def test_forgetting_a_plain_device_updates_sink_and_verdict(tables, tmp_path):
    to, output = str(tmp_path / "r.duckdb"), tables.output
    tables.landing.raw("secret-device/t", b"7")
    tables.batch()
    assert sink.main(["--out", output.storage.uri, "--to", to]) == 0
    assert "3 devices without an identity" in tables.judge().line
    done = forget.forget(str(tables.landing.directory), output.storage.uri, ["secret-device"])
    assert (done.left, done.rows[to]) == ([], 1)
    assert "2 devices without an identity: no proof of delivery; all 8 messages" in tables.judge().line
    assert b"secret-device" not in bytes_of(to)
    assert update(to, output) == []
    assert_same(to, output)


def test_forgotten_name_in_texts_of_other_devices_becomes_asterisks_in_the_sink(to, tables):
    landing = tables.landing
    landing.raw("secret-device/t", b"7")
    landing.raw("json/k", b'{"a": "near secret-device", "b": "secret-device-2 is another one"}')
    landing.raw("secret-device-2/t", b"7")
    landing.message("b", 1, 8, kind="boot", cause="by secret-device")
    tables.batch()
    out = tables.output.storage.uri
    assert sink.main(["--out", out, "--to", to]) == 0
    assert forget.forget(str(landing.directory), out, ["secret-device"]).left == []
    assert_same(to, tables.output)
    texts = {text for (text,) in run(to, "SELECT text FROM readings WHERE device = 'k' AND seq > 10")}
    assert {"near *************", "secret-device-2 is another one"} <= texts


def test_unusable_database_ends_the_command_and_follow_retries(tables, tmp_path):
    to, out = tmp_path / "r.duckdb", tables.output.storage.uri
    to.write_text("no database")
    command = [sys.executable, "-m", "tools.pipeline.sink", "--out", out, "--to", str(to)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert re.fullmatch(r"sink: .* Is it a DuckDB file, of this version\?\n", ended.stderr)
    follows = subprocess.Popen(
        [*command, "--follow", "0.1"], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert follows.stderr.readline().endswith("; trying again\n")
        to.unlink()
        assert "batch 1" in follows.stdout.readline()
    finally:
        follows.kill()
        follows.communicate()


@pytest.mark.parametrize("name", ["anew", 'a"b', "a'b"])
def test_forget_rewrites_a_file_of_any_name(tables, tmp_path, name):
    opened = open_sink(str(tmp_path / f"{name}.duckdb"))
    bring(tables.output, opened)
    assert opened.forget(["a", "b"]) > 0 and opened._run("SELECT count(*) FROM boots") == [(0,)]
    opened.close()


def test_forget_deletes_rows_in_the_target_of_a_symlink(tables, tmp_path):
    file, link, out = tmp_path / "real" / "r=1.duckdb", tmp_path / "readings.duckdb", tables.output.storage.uri
    file.parent.mkdir()
    link.symlink_to(file)
    tables.landing.raw("secret-device/t", b"7")
    tables.batch()
    assert sink.main(["--out", out, "--to", str(link)]) == 0
    assert b"secret-device" in file.read_bytes()
    assert list(sink.forget(tables.output, ["secret-device"]).values()) == [1]
    assert b"secret-device" not in file.read_bytes()
    assert link.is_symlink()
    assert sink.main(["--out", out, "--to", str(file)]) == 0


def test_forget_leaves_databases_of_other_tables_unchanged(tables, tmp_path, capsys):
    (tmp_path / "text.duckdb").write_text("no database")
    theirs, ours = str(tmp_path / "theirs.duckdb"), str(tmp_path / "ours.duckdb")
    (tmp_path / "others").mkdir()
    others = Tables(tmp_path / "others")
    fill(others, 1)
    others.batch()
    assert sink.main(["--out", others.output.storage.uri, "--to", theirs]) == 0
    for to in (theirs, str(tmp_path / "text.duckdb"), str(tmp_path / "no" / "r.duckdb")):
        assert sink.main(["--out", tables.output.storage.uri, "--to", to]) == 2
    assert sink.registered(tables.output) == []
    assert sink.main(["--out", tables.output.storage.uri, "--to", ours]) == 0
    assert sink.main(["--out", others.output.storage.uri, "--to", ours, "--anew"]) == 0
    assert sink.forget(tables.output, ["a"]) == {ours: 0}
    assert_same(ours, others.output)
    assert_same(theirs, others.output)


def test_two_databases_that_register_at_the_same_moment_are_both_kept(tables, tmp_path, monkeypatch):
    first, second = str(tmp_path / "first.duckdb"), str(tmp_path / "second.duckdb")
    write = Storage.write_json
    waiting = [second]

    def write_after_the_other(storage, name, value):
        if waiting:
            sink.register(tables.output, waiting.pop(), "flashmqtt")
        write(storage, name, value)

    monkeypatch.setattr(Storage, "write_json", write_after_the_other)
    sink.register(tables.output, first, "flashmqtt")
    assert sorted(one["to"] for one in sink.registered(tables.output)) == [first, second]
    for _ in range(2):
        sink.register(tables.output, first, "flashmqtt")
    assert len(sink.registered(tables.output)) == 2


def test_databases_in_an_earlier_versions_list_are_still_known(tables, tmp_path):
    old = {"to": str(tmp_path / "old.duckdb"), "schema": "flashmqtt"}
    tables.output.storage.write_json("sinks/registered.json", [old])
    sink.register(tables.output, old["to"], old["schema"])
    assert sink.registered(tables.output) == [old]


@pytest.mark.parametrize("content", ["", "{", "0"])
@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("id.json", "delete it, and give --anew"),
        ("*.registered.json", "delete it, and run the sink for its database again"),
    ],
)
def test_damaged_file_of_the_sinks_is_named_and_made_again(tables, tmp_path, capsys, content, name, remedy):
    command = ["--out", tables.output.storage.uri, "--to", str(tmp_path / "readings.duckdb")]
    assert sink.main(command) == 0
    (path,) = (tmp_path / "out" / "sinks").glob(name)
    path.write_text(content)
    assert sink.main(command) == 2
    assert capsys.readouterr().err == f"sink: {path} is damaged: restore it from a copy; if there is none, {remedy}\n"
    path.unlink()
    assert sink.main([*command, "--anew"]) == 0
    assert len(sink.registered(tables.output)) == 1


def test_missing_database_file_is_named_and_not_created(tables, tmp_path):
    gone, there = tmp_path / "gone.duckdb", tmp_path / "there.duckdb"
    for to in (gone, there):
        assert sink.main(["--out", tables.output.storage.uri, "--to", str(to)]) == 0
    gone.unlink()
    with pytest.raises(SinkError, match=r"gone\.duckdb does not exist: .*registered\.json"):
        sink.forget(tables.output, ["a"])
    assert not gone.exists()
    assert run(str(there), "SELECT count(*) FROM readings WHERE device = 'a'") == [(0,)]


@pytest.fixture
def latin(server):
    """The address of an empty database with the encoding LATIN1."""
    import psycopg

    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS latin")
        connection.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    return server.address.replace("/postgres?", "/latin?")


def test_latin1_database_stores_and_forgets_non_ascii_names(latin, tables):
    to = latin
    tables.landing.raw("k\u00fcche/t", b"7")
    tables.batch()
    assert sink.main(["--out", tables.output.storage.uri, "--to", to]) == 0
    assert run(to, "SELECT count(*) FROM readings WHERE device = 'k\u00fcche'") == [(1,)]
    assert list(sink.forget(tables.output, ["k\u00fcche"]).values()) == [1]


def test_text_beyond_a_databases_encoding_ends_the_sink_between_two_batches_with_a_remedy(
    latin, server, tables, capsys
):
    command = ["--out", tables.output.storage.uri, "--to"]
    assert sink.main([*command, latin]) == 0
    before = readings_in_sink(latin)
    fill(tables, 9)
    tables.landing.raw("\u6e7f\u5ea6/t", b"7")
    tables.batch()
    for _ in range(2):
        capsys.readouterr()
        assert sink.main([*command, latin]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "LATIN1" in error and "ENCODING 'UTF8'" in error, error
        assert readings_in_sink(latin) == before
    assert list(sink.forget(tables.output, ["\u6e7f\u5ea6"]).values()) == [0]
    assert sink.main([*command, server.address, "--anew"]) == 0
    assert_same(server.address, tables.output)


@pytest.mark.parametrize("text", ["a\0b", "long/" * 2000 + "name"])
def test_changed_texts_fit_into_a_latin1_database(latin, tables, text):
    tables.landing.raw("json/k2", json.dumps({"value": text}).encode())
    tables.landing.raw(f"{text}/t".replace("\0", ""), b"1")
    tables.batch()
    assert sink.main(["--out", tables.output.storage.uri, "--to", latin]) == 0


def test_file_size_limit_is_reported_and_a_later_update_succeeds(tables, tmp_path):
    for n in range(20_000):
        tables.landing.raw(f"device-{n}/t", b"%d" % n)
    tables.batch()
    to = tmp_path / "r.duckdb"
    command = [sys.executable, "-m", "tools.pipeline.sink", "--out", tables.output.storage.uri, "--to", str(to)]
    for limit_kb in (64, 400, 800):
        limited = ["bash", "-c", f"trap '' XFSZ; ulimit -f {limit_kb}; exec \"$@\"", "-", *command]
        ended = subprocess.run(limited, cwd=ROOT, capture_output=True, text=True, check=False)
        assert ended.returncode == 2, ended.stdout + ended.stderr
        assert ended.stderr.startswith("sink: "), ended.stderr
        assert "Traceback" not in ended.stderr
    update(str(to), tables.output)
    assert_same(str(to), tables.output)


def test_password_is_not_stored_in_the_registration(server, tables):
    to = server.address.replace("user=tester", "user=tester&password=hunter2")
    sink.register(tables.output, to, "flashmqtt")
    assert "hunter2" not in json.dumps(sink.registered(tables.output))
    assert "user=tester" in sink.registered(tables.output)[0]["to"]


def test_csv_that_is_a_folder_is_refused_before_anything_is_copied(tmp_path, capsys):
    with pytest.raises(SystemExit):
        sink.main(["--out", str(tmp_path), "--to", str(tmp_path / "x.duckdb"), "--csv", str(tmp_path)])
    assert f"--csv: {tmp_path} is a folder; give a file" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_csv_export_has_bom_header_and_escaped_formulas(to, tables, tmp_path):
    out, file = tables.output.storage.uri, tmp_path / "readings.csv"
    assert sink.main(["--out", out, "--to", to, "--csv", str(file)]) == 0
    assert file.read_bytes().startswith(b"\xef\xbb\xbftaken,device,name,value,unit,")
    with file.open(encoding="utf-8-sig", newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert len(rows) == len(in_tables(tables.output, "readings"))
    assert {row["text"] for row in rows} == {"", '\'=1+1;"x"', "ä\n"}
    (row,) = [row for row in rows if (row["device"], row["value"]) == ("d", "2.0")][:1]
    assert datetime.datetime.fromisoformat(row["taken"]).year == 2026


def test_csv_that_could_not_be_written_is_written_by_the_next_run(tables, tmp_path, capsys, monkeypatch):
    arguments = [
        "--out",
        tables.output.storage.uri,
        "--to",
        str(tmp_path / "r.duckdb"),
        "--csv",
        str(tmp_path / "r.csv"),
    ]
    assert sink.main(arguments) == 0
    before = (tmp_path / "r.csv").read_bytes()
    fill(tables, 9)
    tables.batch()
    with monkeypatch.context() as patched:
        patched.setattr(sink.Sink, "dated", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        assert sink.main(arguments) == 2
    assert (tmp_path / "r.csv").read_bytes() == before
    assert sink.main(arguments) == 0
    assert len((tmp_path / "r.csv").read_bytes()) > len(before)


@pytest.mark.parametrize("where", ["csv", "tables"])
def test_following_sink_outlives_a_full_disk(tables, tmp_path, capsys, monkeypatch, where):
    """The list of databases is a file in the tables' folder."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "x"))
    failing, tries = {"csv": (sink, "write_csv"), "tables": (sink, "register")}[where], []

    def is_full(*_):
        raise full

    def pause(_):
        tries.append(1)
        if len(tries) == 2:
            monkeypatch.setattr(*failing, works)
        if len(tries) == 3:
            raise KeyboardInterrupt

    works = getattr(*failing)
    monkeypatch.setattr(*failing, is_full)
    monkeypatch.setattr(sink.time, "sleep", pause)
    to, file = str(tmp_path / "r.duckdb"), tmp_path / "r.csv"
    with pytest.raises(KeyboardInterrupt):
        sink.main(["--out", tables.output.storage.uri, "--to", to, "--csv", str(file), "--follow", "1"])
    assert capsys.readouterr().err == f"sink: {explained(full)}; trying again\n"
    assert_same(to, tables.output)
    assert len(file.read_text().splitlines()) > len(in_tables(tables.output, "readings"))


def test_csv_export_does_not_depend_on_the_servers_settings(server, tables, tmp_path):
    out, files = tables.output.storage.uri, [tmp_path / "usual.csv", tmp_path / "other.csv"]
    tables.landing.raw("d/precise", b"123456.789")
    tables.batch()
    other = "&options=-c%20DateStyle%3DSQL%20-c%20extra_float_digits%3D-15%20-c%20TimeZone%3DPacific/Apia"
    for file, more in zip(files, ("", other), strict=True):
        assert sink.main(["--out", out, "--to", server.address + more, "--csv", str(file), "--anew"]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    assert b",123456.789," in files[0].read_bytes()


def test_query_in_the_readme_runs(to, tables):
    (query,) = re.findall(r"```sql\n(.*?)```", (ROOT / "tools" / "pipeline" / "README.md").read_text(), re.DOTALL)
    update(to, tables.output)
    rows = run(to, query)
    assert {(row[0], row[1], row[3]) for row in rows} >= {("b", "load1", 1.5), ("d", "t", 1.0)}
    assert all(moment(row[2]).minute == 0 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--out is missing"),
        (["--out", "{tmp}/out"], "--to is missing"),
        (["--out", "{tmp}/none", "--to", "x.duckdb"], "has no tables yet"),
        (["--out", "{tmp}/out", "--to", "mysql://x/y"], "give a file's path, or postgresql://"),
        (["--out", "{tmp}/out", "--to", "postgresql://127.0.0.1:1/x"], "host=127.0.0.1"),
        (["--out", "{tmp}/out", "--to", "postgresql://x?nonsense=1"], "this is no PostgreSQL address"),
        (["--out", "{tmp}/out", "--to", "{tmp}/text.duckdb"], "Is it a DuckDB file"),
        (["--out", "{tmp}/out", "--to", "{tmp}/none/x.duckdb"], "none: make it, or check the path\n"),
        (["--out", "{tmp}/out", "--to", "{tmp}"], " is a folder: give a file in it"),
        (["--out", "{tmp}/out", "--to", "/proc/x.duckdb"], "No such file or directory\n"),
        (["--out", "{tmp}/out", "--to", " "], "--to is missing"),
        (["--out", "{tmp}/out", "--to", "{tmp}/x.csv"], "--csv"),
        (["--out", "{tmp}/out", "--to", "{tmp}/x.XLSX"], "--csv"),
        (["--out", "{tmp}/out", "--to", "postgresql://x/y", "--schema", 'a"b'], "--schema has to be"),
    ],
)
def test_wrong_argument_is_named(tables, tmp_path, capsys, arguments, text):
    (tmp_path / "text.duckdb").write_text("no database at all, but rather long" * 99)
    assert sink.main([one.format(tmp=tmp_path) for one in arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sink: ")
    assert text in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("package", "to", "module"),
    [("duckdb", "x.duckdb", "duckdb_file"), ("psycopg", "postgresql://x/y", "postgres")],
)
def test_missing_driver_is_named(tables, capsys, monkeypatch, package, to, module):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"tools.pipeline.sinks.{module}", raising=False)
    assert sink.main(["--out", tables.output.storage.uri, "--to", to]) == 2
    assert f"the package {package} is not installed: pip install -r requirements.txt" in capsys.readouterr().err


def test_file_open_in_another_program_is_named(tables, tmp_path, capsys):
    to = str(tmp_path / "r.duckdb")
    program = f"import duckdb, sys; c = duckdb.connect({to!r}); print('open', flush=True); sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"open\n"
        assert sink.main(["--out", tables.output.storage.uri, "--to", to]) == 2
        assert "is open in another program: close it there" in capsys.readouterr().err
    finally:
        other.stdin.close()
        other.wait(60)


def test_following_sink_copies_new_batches_until_terminated(tables, tmp_path):
    to = str(tmp_path / "r.duckdb")
    command = [
        sys.executable,
        "-m",
        "tools.pipeline.sink",
        "--out",
        tables.output.storage.uri,
        "--to",
        to,
        "--follow",
        "0.1",
    ]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'firmware'}"}
    following = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert "batch 1" in following.stdout.readline()
        assert "batch 2" in following.stdout.readline()
        fill(tables, 9)
        tables.batch()
        assert "batch 3: 14 readings" in following.stdout.readline()
    finally:
        following.terminate()
        assert following.wait(60) == 130
    assert_same(to, tables.output)
