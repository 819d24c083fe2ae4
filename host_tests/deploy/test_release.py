"""`make release` builds the same bytes each time; the real mip and pip install them."""

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import flashmqtt
from tools.bootstrap import ROOT
from tools.command import Failure
from tools.deploy import release

MICROPYTHON = str(Path(sys.executable).parent / "micropython")
SOURCES = ("boards", "firmware", "tools", ".gitignore", "LICENSE", "README.md", "pyproject.toml")
PROGRAM = """
from flashmqtt.client import Client
client = Client('127.0.0.1', client_id='first')
print('handle', client.publish('a/b', 'stored', qos=1) > 0, client.pending)
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    target = tmp_path_factory.mktemp("release") / "dist"
    somebodys = target.with_name("dist.new")
    somebodys.mkdir()
    release.release(target)
    assert sorted(target.parent.iterdir()) == [target, somebodys]
    return target


@pytest.fixture
def file_server(dist):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(dist)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def run(*words, **options):
    ran = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False, **options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.parametrize("other", ["thesis.txt", "mip/mine.py"])
def test_folder_with_other_files_is_not_replaced_by_a_release(dist, tmp_path, other):
    target = tmp_path / "home"
    shutil.copytree(dist, target)
    release.check_replaceable(target)  # an earlier release
    (target / other).write_text("mine")
    with pytest.raises(Failure, match=f"home is not replaced: {re.escape(other)} is no file of a release"):
        release.release(target)
    assert (target / other).read_text() == "mine"


@pytest.mark.req("B1")
def test_release_of_the_same_sources_is_reproducible(dist, tmp_path):
    copy = tmp_path / "copy"
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    environment = {**os.environ, "PYTHONPATH": f"{copy}:{copy / 'firmware'}", "PYTHONDONTWRITEBYTECODE": "1"}
    run(sys.executable, "-m", "tools.deploy.release", "--into", str(tmp_path / "dist"), cwd=copy, env=environment)
    assert (tmp_path / "dist/SHA256SUMS").read_text() == (dist / "SHA256SUMS").read_text()
    assert "OK" in run("sha256sum", "--check", "SHA256SUMS", cwd=tmp_path / "dist")


@pytest.mark.req("B1")
@pytest.mark.parametrize("processor", ["mpy6-x64", "mpy6-any"])
def test_real_mip_installs_from_a_file_server(file_server, tmp_path, processor):
    library = str(tmp_path / "lib")
    install = f"import mip; mip.install('{file_server}/mip/{processor}', target={library!r})"
    assert "Done" in run(MICROPYTHON, "-c", install)
    environment = {**os.environ, "MICROPYPATH": f"{library}:.frozen"}
    assert run(MICROPYTHON, "-c", PROGRAM, env=environment).split() == ["handle", "True", "1"]


@pytest.mark.req("B1")
def test_mip_package_for_a_pc_has_the_journal_in_a_file(file_server, tmp_path):
    library = str(tmp_path / "lib")
    run(MICROPYTHON, "-c", f"import mip; mip.install('{file_server}/mip/mpy6-x64', target={library!r})")
    program = (
        "from flashmqtt.flash.file import FileRegion\n"
        "from flashmqtt.journal.journal import Journal\n"
        "for _ in range(2):\n"
        f"    region = FileRegion({str(tmp_path / 'journal')!r}, 8)\n"
        "    journal = Journal(region)\n"
        "    print(journal.append(b'x', 1))\n"
        "    journal.flush()\n"
        "    region.close()\n"
    )
    environment = {**os.environ, "MICROPYPATH": f"{library}:.frozen"}
    assert run(MICROPYTHON, "-c", program, env=environment).split() == ["1", "2"]


@pytest.mark.req("B1")
def test_real_mip_installs_from_a_github_url(file_server, tmp_path):
    """The file server replaces GitHub: it answers the addresses that mip makes of `github:`."""
    library = str(tmp_path / "lib")
    install = (
        "import mip, requests\n"
        "get = requests.get\n"
        "def from_here(url, **options):\n"
        "    base = 'https://raw.githubusercontent.com/somebody/flashmqtt/mip/'\n"
        "    assert url.startswith(base), url\n"
        f"    return get('{file_server}/mip/' + url[len(base):], **options)\n"
        "requests.get = from_here\n"
        f"mip.install('github:somebody/flashmqtt/mpy6-x64', version='mip', target={library!r})\n"
    )
    assert "Done" in run(MICROPYTHON, "-c", install)
    environment = {**os.environ, "MICROPYPATH": f"{library}:.frozen"}
    assert run(MICROPYTHON, "-c", PROGRAM, env=environment).split() == ["handle", "True", "1"]


@pytest.mark.req("B1")
@pytest.mark.parametrize("pattern", ["*.whl", "flashmqtt-?.?.?.tar.gz"])
def test_pip_installs_the_client_for_cpython(dist, tmp_path, pattern):
    (package,) = dist.glob(pattern)
    target = tmp_path / "site"
    words = ["--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
    run(sys.executable, "-m", "pip", "install", "--quiet", *words, str(package))
    assert (target / "flashmqtt/py.typed").exists()
    assert not (target / "tools").exists()
    program = PROGRAM + f"import flashmqtt\nassert flashmqtt.__file__.startswith({str(target)!r})\n"
    environment = {**os.environ, "PYTHONPATH": str(target)}
    assert run(sys.executable, "-c", program, cwd=tmp_path, env=environment).split() == ["handle", "True", "1"]
    (metadata,) = target.glob("flashmqtt-*.dist-info/METADATA")
    assert f"\nVersion: {flashmqtt.__version__}\n" in metadata.read_text()


@pytest.mark.req("B1")
def test_newest_changelog_entry_is_this_version():
    newest = re.search(r"^## (\S+)", (ROOT / "firmware/CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == flashmqtt.__version__


@pytest.mark.req("B1")
def test_installation_page_names_every_processor_and_the_wheel(dist):
    page = (ROOT / "firmware/INSTALLING.md").read_text()
    assert set(re.findall(r"^\| `(mpy6-\w+)` ", page, re.MULTILINE)) == {path.name for path in (dist / "mip").iterdir()}
    (wheel,) = dist.glob("*.whl")
    assert f"dist/{wheel.name}`" in page
