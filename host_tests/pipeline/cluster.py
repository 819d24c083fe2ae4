"""`python -m host_tests.pipeline.cluster`: test the pipeline on a Spark standalone cluster on this machine, also with kills.

A master and two workers run as separate processes. The same job runs there with no other options than `--master` and
paths, started as `python -m tools.pipeline.run`, and by `spark-submit` with one configuration file. The executors get our
code only from the driver. The driver is also killed with SIGKILL at random times and started again. The tables must always
equal those of a run in one process. Each run is a process of its own, as a user would start it.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tools.bootstrap import ROOT
from tools.children import kill, popen
from tools.pipeline import java
from tools.pipeline.tables.commits import Output
from tools.proof import fleet

KEY = ["device", "life", "boot", "seq", "index", "name", "value", "arrival", "collector", "segment", "row"]


class Cluster:
    """A standalone master and workers, as child processes that end with this process."""

    def __init__(self, directory: Path, workers: int, cores: int, memory: str):
        import pyspark

        self.directory = directory
        self.processes: list[subprocess.Popen[bytes]] = []
        home = Path(pyspark.__file__).parent
        self.launcher, self.submitter = home / "bin" / "spark-class", home / "bin" / "spark-submit"
        self.environment = {
            **{
                name: value for name, value in os.environ.items() if name != "PYTHONPATH"
            },  # only the code that the driver sends
            "JAVA_HOME": str(java.find_java()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER_HOST": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_WORKER_DIR": str(directory / "work"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            # All temporary files in one directory, so that they can be deleted also after a kill.
            "JAVA_TOOL_OPTIONS": f"-XX:-UsePerfData -Djava.io.tmpdir={directory}",
        }
        base = "org.apache.spark.deploy"
        self._start("master", f"{base}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._wait("master", r"Starting Spark master at (spark://\S+)")
        for n in range(workers):
            options = ["--cores", str(cores), "--memory", memory, "--webui-port", "0", "--host", "127.0.0.1", self.url]
            self._start(f"worker-{n}", f"{base}.worker.Worker", *options)
        for n in range(workers):
            self._wait(f"worker-{n}", r"(Successfully registered with master)")

    def _start(self, name: str, *command: str) -> None:
        with open(self.directory / f"{name}.log", "wb") as log:
            self.processes.append(popen([str(self.launcher), *command], env=self.environment, stdout=log, stderr=log))

    def _wait(self, name: str, pattern: str, deadline_s: float = 180) -> str:
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            found = re.search(pattern, (self.directory / f"{name}.log").read_text(errors="replace"))
            if found:
                return found[1]
            time.sleep(0.2)
        raise TimeoutError(f"{name} did not start: see {self.directory}/{name}.log")

    def submit(self, landing: Path, out: Path) -> subprocess.Popen[bytes]:
        """Start the pipeline with spark-submit; a configuration file has the paths."""
        config = self.directory / "pipeline.toml"
        config.write_text(
            f'landing = "{landing}"\nout = "{out}"\nno-report = true\n\n[conf]\n"spark.ui.enabled" = "false"\n'
        )
        options = ["--master", self.url, "--executor-memory", "512m", "--conf", "spark.executor.cores=1"]
        job = [str(ROOT / "tools" / "pipeline" / "submit.py"), "--config", str(config)]
        return popen(
            [str(self.submitter), *options, *job],
            cwd=self.directory,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def executors(self) -> int:
        """Return the number of executors that the workers have started so far."""
        return len(list((self.directory / "work").glob("app-*/*")))

    def stop(self) -> None:
        """End master and workers."""
        for process in reversed(self.processes):
            kill(process, signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                kill(process, signal.SIGKILL)
                process.wait()


def start(landing: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    """Start the pipeline with the command that a user would type."""
    paths = ("--landing", str(landing), "--out", str(out))
    command = [sys.executable, "-m", "tools.pipeline.run", *paths, "--no-report", *more]
    return popen(
        command,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(out.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait until a pipeline ends; raise RuntimeError if it failed."""
    printed, _ = process.communicate(timeout=900)
    if process.returncode:
        raise RuntimeError(f"the pipeline ended with {process.returncode}:\n{printed.decode()}")


def readings(out: Path) -> list[tuple[object, ...]]:
    """Return an output's readings, sorted, without Spark."""
    output = Output(str(out))
    paths = [output.storage.path(name) for name in output.files("readings")]
    for path in out.joinpath("readings").rglob("*.parquet"):
        pq.read_metadata(path)  # files of interrupted attempts must be complete, too
    table = ds.dataset(paths, format="parquet").to_table(columns=KEY)
    return sorted(map(tuple, zip(*(column.to_pylist() for column in table.columns), strict=True)))


def main() -> int:
    """Run the test; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m host_tests.pipeline.cluster", description=__doc__.split("\n")[0])
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="flashmqtt-cluster-"))
    landing, rng = directory / "landing", random.Random(options.seed)
    cluster = None
    running: subprocess.Popen[bytes] | None = None
    try:
        rows = fleet.write(fleet.Fleet(devices=200, boot_every=300), landing, options.messages, options.messages // 8)
        print(f"landing    {rows:,} rows in 8 segments; seed {options.seed}", flush=True)
        finish(running := start(landing, directory / "one"))
        expected = readings(directory / "one")
        print(f"one        {len(expected):,} readings from one process", flush=True)
        cluster = Cluster(directory, workers=2, cores=1, memory="1g")
        common = ["--master", cluster.url, "--conf", "spark.executor.memory=512m", "--conf", "spark.executor.cores=1"]
        finish(running := start(landing, directory / "two", *common))
        if readings(directory / "two") != expected:
            raise RuntimeError("the cluster's readings differ from those of one process")
        print(f"cluster    the same, from {cluster.executors()} executors on 2 workers", flush=True)
        before = cluster.executors()
        finish(running := cluster.submit(landing, directory / "submitted"))
        if readings(directory / "submitted") != expected:
            raise RuntimeError("the readings of spark-submit differ from those of one process")
        print(f"submit     the same by spark-submit, from {cluster.executors() - before} executors", flush=True)
        kills = 0
        commits: list[int] = []
        while kills < options.kills:
            running = start(landing, directory / "three", "--segments-per-batch", "1")
            begun = time.monotonic()
            before = len(Output(str(directory / "three")).commits())
            while running.poll() is None and len(Output(str(directory / "three")).commits()) == before:
                time.sleep(0.05)
                if time.monotonic() - begun > 300:
                    raise TimeoutError("no batch was committed within five minutes")
            time.sleep(rng.uniform(0, 1.5))  # so that the kill is during the next batch
            if running.poll() is not None:
                break
            kill(running)
            running.wait()
            kills += 1
            commits.append(len(Output(str(directory / "three")).commits()))
        finish(running := start(landing, directory / "three", "--segments-per-batch", "1"))
        if readings(directory / "three") != expected:
            raise RuntimeError("the readings after the kills differ from those without kills")
        print(
            f"kill -9    the same after {kills} kills of the driver, with {commits} batches committed at each",
            flush=True,
        )
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, TimeoutError, java.JavaNotFound) as failed:
        print(f"FAILED     {failed}\n           all files are kept in {directory}", file=sys.stderr)
        return 1
    finally:
        if running is not None:
            kill(running)
        if cluster is not None:
            cluster.stop()
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
