"""The page about the application lists all its topics, commands and sensors, and no others."""

import re
import tomllib

from app import application, commands, configuration
from tools.bootstrap import ROOT
from tools.deploy.configuration import load

PAGE = (ROOT / "firmware/APPLICATION.md").read_text()


def test_page_lists_every_topic_of_the_application():
    named = set(re.findall(r"flashmqtt[\w/<>-]*/\w+\b", application.__doc__ or ""))
    assert len(named) == 7
    assert set(re.findall(r"^\| `(flashmqtt[^`]*)`", PAGE, re.MULTILINE)) == named
    assert "`flashmqtt-commands/<device>`" in PAGE


def test_page_lists_every_command_and_examples_parse():
    shown = [commands.parse(text.encode()) for text in re.findall(r"^\| `(\{\"id.*?\})`", PAGE, re.MULTILINE)]
    assert {name for _, name, _ in shown} == {"identify", "interval", "flush", "reboot"}
    assert commands.parse(re.search(r"-m '(.*?)'", PAGE)[1].encode())


def test_page_lists_every_sensor_with_its_settings():
    rows = re.findall(r"^\| `(\w+)` \| ((?:`\w+ = \d+`(?:, )?)+)", PAGE, re.MULTILINE)
    entries = [{"kind": kind, **tomllib.loads("\n".join(re.findall("`(.*?)`", keys)))} for kind, keys in rows]
    places = (ROOT / "firmware/app/sensors").glob("*.py")
    assert {entry["kind"] for entry in entries} == {path.stem for path in places} - {"__init__"}
    for entry in entries:
        source = (ROOT / f"firmware/app/sensors/{entry['kind']}.py").read_text()
        assert set(re.findall(r'settings\["(\w+)"\]', source)) == set(entry) - {"kind"}
        configuration.check({"broker": "b", "sensors": [entry]})


def test_example_of_a_sensor_can_be_added_to_the_end_of_the_configuration(tmp_path):
    (block,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "config.toml").write_text((ROOT / "boards/config.example.toml").read_text() + block)
    config, _ = load(tmp_path, {"FLASHMQTT_WIFI_PASSWORD": "secret"})
    assert config["sensors"] == [{"kind": "dht22", "pin": 15}]
