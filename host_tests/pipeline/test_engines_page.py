"""ENGINES.md's programs and the notebook, on tables that have just been made.

A notebook's code cells are run one after the other in one namespace, as Jupyter does: Jupyter itself is not needed.
"""

import json
import re
from pathlib import Path

import duckdb
import pytest

from host_tests.pipeline import engines
from host_tests.pipeline.conftest import taken
from tools.pipeline.tables import delta
from tools.pipeline.tables.commits import Output
from tools.pipeline.tables.delta import Delta

HERE = Path(delta.__file__).parents[1]
PAGE = (HERE / "ENGINES.md").read_text()
TRIED, _, UNTRIED = PAGE.partition("## Not tried here")
BLOCKS = re.findall(r"^```python\n(.*?)^```", TRIED, re.MULTILINE | re.DOTALL)


@pytest.fixture
def home(local, landing, tmp_path, monkeypatch):
    """A folder with `tables`, in which the programs run."""
    for seq in range(1, 7):
        landing.message("greenhouse-1", 1, seq, value=20 + seq)
        landing.message("greenhouse-2", 1, seq, value=10 + seq)
    landing.raw("flashmqtt/greenhouse-1/readings", b"{")
    taken(local, landing, tmp_path / "tables")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(program, **names):
    exec(compile(program, "block", "exec"), names)
    return names


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_program_on_the_page_reads_the_committed_rows(block, home, spark):
    duckdb.sql("SET TimeZone = 'UTC'")
    names = ran(block, spark=spark)
    if "means" in names:
        means = names["means"]
        means = means.rows() if hasattr(means, "rows") else means.itertuples(index=False)
        assert sorted(tuple(row) for row in means) == [("greenhouse-1", "load1", 23.5), ("greenhouse-2", "load1", 13.5)]
    else:
        readings = names["readings"]
        assert (readings.count() if hasattr(readings, "rdd") else len(readings)) == 12
    if "one_day" in names:
        assert len(names["one_day"]) == 12


def test_page_has_a_program_for_each_tried_engine():
    tried = " ".join(BLOCKS)
    assert all(call in tried for call in ("to_pandas", "scan_delta", "duckdb.sql", "spark.read"))
    assert "```" not in UNTRIED.split("## Object storage")[0]
    for directory in delta.DIRECTORIES.values():
        assert f"`{directory}`" in PAGE


def test_notebook_runs_from_the_first_cell_to_the_last(home, monkeypatch):
    monkeypatch.setenv("OUT", "tables")
    notebook = json.loads((HERE / "readings.ipynb").read_text())
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["language"]) == (4, "python")
    names = {}
    for cell in notebook["cells"]:
        assert not cell.get("outputs")  # kept without outputs, which would show somebody's fleet
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "cell", "exec"), names)
    assert len(names["readings"]) == len(engines.truth(Output("tables"), "readings")) == 12
    assert names["last"].loc[("greenhouse-1", "load1"), "value"] == 26
    assert names["delivery"].loc["greenhouse-2", "delivered"] == 6
    assert len(names["figure"].data) == 2
    assert len(names["quarantine"]) == 1
    assert len(names["history"]) == 2


def test_log_requires_only_basic_protocol_versions(home):
    from deltalake import DeltaTable

    Delta(Output("tables")).follow()
    for directory in delta.DIRECTORIES.values():
        protocol = DeltaTable(f"tables/{directory}").protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
