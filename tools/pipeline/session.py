"""Make the Spark session, with the same settings on one machine and on a cluster, without output on the terminal.

On one machine this module starts the JVM and redirects its output to a log file, because Spark's launcher and the JVM print
warnings before the log level applies. Under `spark-submit` the existing session is used.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.command import Failure

from . import java
from .scratch import Scratch
from .tables import schemas
from .tables.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
ROOT = Path(__file__).resolve().parents[2]

JVM_OPTIONS = "spark.driver.extraJavaOptions"
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # still INT96 by default
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    "spark.sql.ansi.enabled": "true",
    "spark.speculation": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.ui.showConsoleProgress": "false",
}
ON_ONE_MACHINE = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "640m",
    "spark.sql.shuffle.partitions": "4",
    # The Python workers do most of the work; the JVM only starts, plans and copies. Its second compiler costs more time
    # than it saves: without it, start and first audit need 17 CPU s instead of 29.
    JVM_OPTIONS: "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
}
SHORTEST_END_S = 1
LONGEST_END_S = 10


def make(master: str | None = None, log: Path | None = None, more: dict[str, str] | None = None) -> SparkSession:
    """Return the session.

    Args:
        master: a Spark master's URL; None: that of spark-submit, or all cores of this machine.
        log: the file for the output of a JVM that is started here; None: the terminal.
        more: settings that override those of this module.

    Raises:
        java.JavaNotFound: there is no Java.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted:
        os.environ["JAVA_HOME"] = str(java.find_java())
        if os.environ.get("LC_ALL") in {"C", "POSIX"}:  # Python uses UTF-8 there; the JVM would know ASCII paths only
            os.environ["LC_ALL"] = "C.UTF-8"
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        if (master or LOCAL).startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        path = os.environ.get("PYTHONPATH", "")
        if str(ROOT) not in path.split(os.pathsep):
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "firmware"), path]))
    builder = SparkSession.builder.appName("flashmqtt")
    settings = dict(SETTINGS)
    if not submitted:
        chosen = master or LOCAL
        builder = builder.master(chosen)
        if chosen.startswith("local"):
            settings |= ON_ONE_MACHINE
            archive = archive_file()
            if archive.exists():
                settings[JVM_OPTIONS] += f' "-XX:SharedArchiveFile={archive}"'
    settings |= more or {}
    scratch = None
    if not submitted and SparkContext._gateway is None:  # else there is a JVM already, with its own folder
        scratch = Scratch()
        settings[JVM_OPTIONS] = f'{settings.get(JVM_OPTIONS, "")} "-Djava.io.tmpdir={scratch.path}"'
    for key, value in settings.items():
        builder = builder.config(key, value)
    before, usual = _children(), tempfile.tempdir
    if scratch:
        tempfile.tempdir = str(scratch.path)  # for PySpark's folder with the JVM's port
    try:
        with _output_to(None if submitted else log):
            spark = builder.getOrCreate()
    finally:
        tempfile.tempdir = usual
        if scratch and SparkContext._gateway is not None:
            atexit.register(_end, SparkContext._gateway, scratch)
        elif scratch:  # Ctrl-C before the JVM has written its port: it cannot write it any more, and would never end
            for child in _children() - before:
                os.kill(child, signal.SIGKILL)
            scratch.remove()
    spark.sparkContext.setLogLevel("ERROR" if log is None else "WARN")
    # If the JVM is killed, these would print a traceback.
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)  # py4j uses this one, too
    spark.sparkContext._accumulatorServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    if not str(spark.sparkContext.master).startswith("local"):
        spark.sparkContext.addPyFile(str(code_archive(Path(spark.sparkContext._temp_dir))))
    return spark


@contextmanager
def opened(master: str | None, out: Storage, more: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """Yield the session of `make`. Stop it after the block, unless it existed before.

    The JVM's log is in the output directory `out` if that is on this machine and can be written.

    Raises:
        Failure: Spark raised an error in the block, or its JVM ended.
    """
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
    from pyspark import SparkContext
    from pyspark.errors import PySparkException

    log = Path(out.root) / "spark.log" if out.local and os.access(out.root, os.W_OK) else None
    was_there = SparkContext._active_spark_context is not None
    spark = None
    try:
        spark = make(master, log, more)
        yield spark
    except (PySparkException, Py4JError, ConnectionError) as error:
        more_details = f"\nMore details are in {log}" if log else ""
        if SparkContext._gateway is None:
            said = re.findall(r'^Exception in thread "main" \S+: (.*)', log.read_text() if log else "", re.MULTILINE)
            why = said[-1] if said else "its JVM ended at once"
            raise Failure(f"Spark did not start: {why}. Correct --master or --conf{more_details}") from error
        if _has_ended(SparkContext._gateway, error, spark):
            ended = "Spark's JVM was ended, by a signal or because there was too little memory; run the command again"
            raise Failure(ended + more_details) from error
        if isinstance(error, PySparkException | Py4JJavaError):
            raise Failure(cause(error) + more_details) from error
        raise
    finally:
        if spark and not was_there:
            with suppress(Py4JError, OSError), warnings.catch_warnings():  # the JVM may have been killed
                warnings.simplefilter("ignore")
                spark.stop()


TRACEBACK = re.compile(  # the error's own text behind it: up to an empty line, or a line of Spark's
    r"^([ \t]*)(?:\S.*)?Traceback \(most recent call last\):\n(?:\1[ \t].*\n)+\1(\S.*"
    r"(?:\n(?!\s*(?:$|at |JVM stacktrace|Caused by|Traceback|\.\.\. |SQLSTATE: |=== )).*)*)",
    re.MULTILINE,
)
SURROUNDING = re.compile(
    r"^(\[STREAM_FAILED\] Query \[.*?\] terminated with exception: |: (\S+: )?)|(\s+SQLSTATE: \w+)+$"
)
CALLED = "An error occurred while calling "
OURS = ("tools.", "pyarrow.lib.")
LONGEST_CAUSE = 2000


def cause(error: Exception) -> str:
    """Return the text of the last Python error inside Spark, or the first line of Spark's own text.

    If a worker was killed in a batch, there is also a Python error: of the call that ran the tasks.
    """
    text = str(error)
    if "Python worker exited unexpectedly" in text:
        return (
            "a Python worker was killed, probably because there was too little memory. Give it more"
            " (spark.executor.memoryOverhead on a cluster), or use fewer cores"
        )
    if found := TRACEBACK.findall(text):
        last = SURROUNDING.sub("", " ".join(line.strip() for line in found[-1][1].splitlines()))
        kind, _, words = last.partition(": ")
        return (words if words and kind.startswith(OURS) else last)[:LONGEST_CAUSE]
    lines = (line.strip() for line in text.splitlines())
    return SURROUNDING.sub("", next((line for line in lines if line and not line.startswith(CALLED)), repr(error)))


def _has_ended(gateway: Any, error: Exception, spark: SparkSession | None) -> bool:
    """Return whether an error was raised because the JVM ends. At SIGTERM it first stops Spark, which raises other errors."""
    from py4j.protocol import Py4JError

    jvm: subprocess.Popen[bytes] | None = gateway.proc
    if jvm is None:  # spark-submit started it
        return isinstance(error, ConnectionError)
    stops = True
    with suppress(Py4JError, OSError):  # without an answer it is at its end
        stops = spark is not None and spark.sparkContext._jsc.sc().isStopped()
    with suppress(subprocess.TimeoutExpired):
        jvm.wait(LONGEST_END_S if stops else SHORTEST_END_S)
    return jvm.poll() is not None


def _end(gateway: Any, scratch: Scratch) -> None:
    """End the JVM, which ends with its standard input, and remove its folder."""
    jvm: subprocess.Popen[bytes] = gateway.proc
    if jvm.poll() is None:
        # Objects that Python frees from now on are not reported to the JVM. `gateway.shutdown()` would do this, too, and then
        # may never return: it waits for the reader of each callback connection, and the JVM does not close a connection that
        # it opens while it is shutting down.
        gateway._gateway_client.is_connected = False
        jvm.stdin.close()  # type: ignore[union-attr]
        try:
            jvm.wait(LONGEST_END_S)
        except subprocess.TimeoutExpired:
            jvm.kill()
            jvm.wait()
    scratch.remove()


def _children() -> set[int]:
    """Return the ids of this process's child processes. Empty on a system that does not have /proc."""
    return {int(child) for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()}


def archive_file() -> Path:
    """Return the path of this machine's archive of loaded classes for this Spark and Java. It may not exist."""
    import pyspark

    home = Path(os.environ["JAVA_HOME"]).resolve()
    what = (
        f"{home} {(home / 'bin' / 'java').stat().st_mtime_ns} {pyspark.__file__} {pyspark.__version__} {schemas.FORMAT}"
    )
    return java.cache_directory() / f"spark-{zlib.crc32(what.encode()):08x}.jsa"


@contextmanager
def _output_to(log: Path | None) -> Iterator[None]:
    """Redirect the output of processes that are started in the block (the JVM) to a log file."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.flush()
    sys.stdout.flush()
    kept = [os.dup(1), os.dup(2)]
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for n, one in enumerate(kept, 1):
            os.dup2(one, n)
            os.close(one)


def code_archive(directory: Path) -> Path:
    """Return a zip of the code that tasks need, in the form of `--py-files`."""
    archive = directory / "flashmqtt_pipeline.zip"
    ours = (ROOT, ("tools/__init__.py", "tools/command.py", "tools/landing/*.py", "tools/pipeline/**/*.py"))
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for base, patterns in (ours, (ROOT / "firmware", ("flashmqtt/**/*.py",))):
            for path in (path for pattern in patterns for path in sorted(base.glob(pattern))):
                out.write(path, str(path.relative_to(base)))
    return archive
