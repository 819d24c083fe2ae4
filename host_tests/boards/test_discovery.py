"""The board's announcements are valid for Home Assistant's MQTT discovery.

`home_assistant.json` was extracted from Home Assistant's own package; with FLASHMQTT_HOMEASSISTANT set to a Python that has this
package installed, its schema and its template engine check the messages.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from app.discovery import UNITS, object_id, sensor_message
from app.senml import pack

SCHEMA = json.loads((Path(__file__).parent / "home_assistant.json").read_text())
SENSORS = [
    ("temperature", "Cel"),
    ("humidity", "%RH"),
    ("pressure", "Pa"),
    ("load", "/"),
    ("memory", "B"),
    ("odd.name:1/2", ""),
]


def _message(name="temperature", unit="Cel", **more):
    return sensor_message(
        "homeassistant",
        "dev:1",
        "Pico W",
        "0.1.0",
        "flashmqtt/dev:1/readings",
        "flashmqtt-live/dev:1/status",
        name,
        unit,
        **more,
    )


def _long(config):
    full = {SCHEMA["abbreviations"].get(key, key): value for key, value in config.items()}
    full["device"] = {SCHEMA["device_abbreviations"].get(key, key): value for key, value in full["device"].items()}
    return full


@pytest.mark.parametrize(("name", "unit"), SENSORS)
@pytest.mark.req("B4")
def test_message_has_only_keys_of_the_schema(name, unit):
    topic, payload = _message(name, unit, diagnostic=True)
    assert re.fullmatch(r"homeassistant/sensor/[a-zA-Z0-9_-]+/[a-zA-Z0-9_-]+/config", topic)
    config = _long(json.loads(payload))
    assert set(config) <= set(SCHEMA["sensor_keys"]) | {"device"}
    assert set(config["device"]) <= set(SCHEMA["device_keys"])
    assert config["state_class"] in SCHEMA["state_classes"]
    assert config["entity_category"] in SCHEMA["entity_categories"]
    assert config["state_topic"] and config["unique_id"]
    assert len(payload) < 700


@pytest.mark.parametrize(("unit", "shown"), list(UNITS.items()))
@pytest.mark.req("B4")
def test_unit_belongs_to_its_device_class(unit, shown):
    unit_of_theirs, device_class = shown
    assert unit_of_theirs in SCHEMA["units"][device_class]


@pytest.mark.req("B4")
def test_sleeping_board_expires_by_time_and_not_by_its_will():
    awake = _long(json.loads(_message()[1]))
    asleep = _long(json.loads(_message(expire_s=3600)[1]))
    assert awake["availability_topic"] == "flashmqtt-live/dev:1/status" and "expire_after" not in awake
    assert asleep["expire_after"] == 3600 and "availability_topic" not in asleep


@pytest.mark.req("B4")
def test_object_id_has_only_allowed_characters():
    assert object_id("a.b:c/d-e_f9é") == "a_b_c_d-e_f9_"


_JUDGE = """
import json, sys
from homeassistant.components.mqtt.abbreviations import ABBREVIATIONS, DEVICE_ABBREVIATIONS
from homeassistant.components.mqtt.sensor import DISCOVERY_SCHEMA
import jinja2
given, packs = json.load(sys.stdin)
values = []
for config in given:
    config = {ABBREVIATIONS.get(k, k): v for k, v in config.items()}
    config["device"] = {DEVICE_ABBREVIATIONS.get(k, k): v for k, v in config["device"].items()}
    DISCOVERY_SCHEMA(dict(config))
    template = jinja2.Environment().from_string(config["value_template"])
    values.append([template.render(value_json=pack) for pack in packs])
print(json.dumps(values))
"""


@pytest.mark.req("B4")
def test_home_assistant_accepts_the_messages():
    python = os.environ.get("FLASHMQTT_HOMEASSISTANT")
    if not python:
        pytest.skip("set FLASHMQTT_HOMEASSISTANT to a Python with the package homeassistant")
    configs = [json.loads(_message(name, unit)[1]) for name, unit in SENSORS]
    records = [{"n": "temperature", "v": 21.5}, {"n": "load", "v": 1}]
    packs = [
        json.loads(pack("dev:1", 1, 2, 3, records)),
        json.loads(pack("dev:1", 1, 3, 4, [{"n": "humidity", "v": 40}])),
    ]
    ran = subprocess.run(
        [python, "-c", _JUDGE], input=json.dumps([configs, packs]), capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    values = dict(zip([name for name, _ in SENSORS], json.loads(ran.stdout.splitlines()[-1]), strict=True))
    assert values["temperature"] == ["21.5", ""] and values["load"] == ["1", ""] and values["humidity"] == ["", "40"]
