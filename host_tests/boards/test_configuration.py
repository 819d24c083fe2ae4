"""config.toml: mistakes are named by file, key, value and what is allowed; secrets are refused there and never shown."""

import json
import os

import pytest

from app.configuration import KEYS, ConfigurationError, check
from tools.bootstrap import ROOT
from tools.deploy import configuration

GOOD = '[broker]\nhost = "10.0.0.1"\n'
ENTRY = '[[sensors]]\nkind = "dht22"\npin = 15\n'
DHT22 = GOOD + ENTRY


def load(tmp_path, text, local="", environment=None):
    (tmp_path / "config.toml").write_text(text)
    if local:
        (tmp_path / "config.local.toml").write_text(local)
    return configuration.load(tmp_path, environment or {})[0]


@pytest.mark.req("B3")
def test_example_is_complete_and_valid(tmp_path):
    text = (ROOT / "boards" / "config.example.toml").read_text()
    config = load(tmp_path, text, environment={"FLASHMQTT_WIFI_PASSWORD": "hunter2-hunter2"})
    assert config["interval_ms"] == 10000 and config["sectors"] == 64 and config["ntp"] == "pool.ntp.org"
    board_keys = {
        configuration.board_key(table, key)[0] for table, keys in configuration.TABLES.items() for key in keys
    }
    on_board = {"sensors", "stop_after", "tls_cert", "tls_key"}
    assert board_keys - set(configuration.TLS_FILES) | on_board == set(KEYS)
    for table, keys in configuration.TABLES.items():
        assert f"[{table}]" in text
        for key in keys:
            assert key in text or key in ("password", "status_s")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["broker.host is missing"]),
        ("[broker\n", ["config.toml is not TOML", "line 1"]),
        (GOOD + "[[sensors]]\nkid = 'dht22'\n", ["sensors, entry 1", "the key 'kind' is missing", "dht22"]),
        (GOOD + "[wlan]\n", ["[wlan]", "known"]),
        (GOOD + "[Device]\n", ["[Device]", "do you mean 'device'"]),
        (GOOD + 17 * '[[sensors]]\nkind = "ds18b20"\npin = 3\n', ["sensors: 17 entries", "a length from 0 to 16"]),
        (GOOD + "prot = 1\n", ["[broker]", "'prot'", "do you mean 'port'"]),
        (GOOD + "port = 0\n", ["broker.port", "0", "from 1 to 65535"]),
        (GOOD + 'port = "1883"\n', ["broker.port", "'1883'", "a whole number, without quotation marks"]),
        (GOOD + "[device]\nid = 5\n", ["device.id", "5", "a text in quotation marks"]),
        (GOOD + 'host = "x"\n', ["not TOML", "line 3", "'host'", "twice"]),
        (GOOD + 'host = "x"', ["not TOML", "end of document", "'host'", "twice"]),
        (GOOD + "[broker]\n", ["not TOML", "line 3", "'[broker]'", "twice"]),
        (GOOD + "[wifi]\nssid = home\n", ["not TOML", "line 4", "'ssid'", "a text needs quotation marks"]),
        (GOOD + '[wifi]\nssid = "home\n', ["not TOML", "line 4", "'ssid'", "closing quotation mark is missing"]),
        (GOOD + '[wifi]\nssid = "home', ["not TOML", "end of document", "'ssid'", "closing quotation mark is missing"]),
        (GOOD + "[device]\nlog = True\n", ["not TOML", "line 4", "'log'", "true and false"]),
        (GOOD + "[readings]\ninterval_s = 0,5\n", ["not TOML", "line 4", "'interval_s'", "decimal point"]),
        ("[broker]\nhost = 10.0.0.1\n", ["not TOML", "line 2", "'host'", "quotation marks"]),
        ('{"broker": "x"}', ["not TOML", "line 1", "key = value"]),
        (GOOD + "user: me\n", ["not TOML", "line 3", "key = value"]),
        (GOOD + 'user = "a\\b\\c"\n', ["not TOML", "line 3", "'user'", "single quotation marks"]),
        (GOOD + '[[sensor]]\nkind = "dht22"\n', ["unknown table [sensor]", "do you mean 'sensors'"]),
        ('host = "x"\n' + GOOD, ["'host'", "above the first table", "below [broker]"]),
        (GOOD + 'tls = "ca.pem"\n', ["broker.tls", "'ca.pem'", "true or false", "broker.ca"]),
        (GOOD + "ca = 3\n", ["broker.ca", "3", "file"]),
        (GOOD + 'ca = "ca.pem"\n', ["broker.ca", "broker.tls = true"]),
        (GOOD + 'tls = true\ncert = "board.pem"\n', ["broker.cert", "broker.key"]),
        (GOOD + "tsl = true\n", ["[broker]", "'tsl'", "do you mean 'tls'"]),
        (GOOD + "longest_pause_s = 0\n", ["broker.longest_pause_s", "0", "from 1 to 3600"]),
        (GOOD + "level = 6\n", ["broker.level", "6", "one of 3, 4, 5"]),
        (GOOD + '[readings]\nwhen_full = "panic"\n', ["readings.when_full", "'panic'", "refuse, drop-oldest"]),
        (GOOD + '[readings]\ninterval_s = "soon"\n', ["readings.interval_s", "'soon'", "number"]),
        (GOOD + "[readings]\ninterval_s = 0.001\n", ["readings.interval_s", "0.001", "from 0.01 to 86400"]),
        (GOOD + "[readings]\ninterval_s = nan\n", ["readings.interval_s", "nan", "from 0.01 to 86400"]),
        (GOOD + "[device]\nstatus_s = inf\n", ["device.status_s", "inf", "from 0.05 to 86400"]),
        (GOOD + "[journal]\nkib = 12\n", ["journal.kib", "12", "from 16 to 1600"]),
        (GOOD + '[device]\nlog = "no"\n', ["device.log", "'no'", "true or false"]),
        (GOOD + "[device]\nlog = 0\n", ["device.log", "0", "true or false"]),
        (GOOD + "[journal]\nkib = true\n", ["journal.kib", "True", "from 16 to 1600"]),
        (GOOD + '[device]\nid = "house+1"\n', ["device.id", "house+1", "topics"]),
        (GOOD + '[wifi]\nssid = "home"\n', ["no Wi-Fi password", "FLASHMQTT_WIFI_PASSWORD", "config.local.toml"]),
        *(
            (f"{GOOD}[wifi]\ncountry = {country}\n", ["wifi.country", "two capital letters (ISO 3166), such as AT"])
            for country in ('"Austria"', '"at"', '"A"', '"43"', "43")
        ),
        (GOOD + "[[sensors]]\npin = 3\n", ["sensors", "kind"]),
        (GOOD + '[[sensors]]\nkind = "dht22"\nqos = 3\n', ["qos", "3", "0, 1 or 2"]),
        (DHT22 + "intervall_ms = 60000\n", ["entry 1", "'intervall_ms'", "do you mean 'interval_ms'"]),
        (DHT22 + "interval_s = 60\n", ["entry 1", "'interval_s'", "do you mean 'interval_ms'"]),
        (DHT22 + 'interval_ms = "60000"\n', ["interval_ms", "'60000'", "a whole number"]),
        (DHT22 + "interval_ms = -5\n", ["interval_ms", "-5", "10 to 86400000"]),
        (DHT22 + "interval_ms = 1\n", ["interval_ms", "1", "10 to 86400000"]),
        (DHT22 + "interval_ms = nan\n", ["interval_ms", "nan", "a whole number"]),
        (DHT22 + "qos = true\n", ["qos", "True", "0, 1 or 2"]),
        (DHT22 + "qos = 1.0\n", ["qos", "1.0", "0, 1 or 2"]),
        (DHT22 + "name = 5\n", ["name", "5", "letters"]),
        (DHT22 + 'name = "cold store"\n', ["name", "'cold store'", "letters"]),
        (DHT22 + 'name = "Küche"\n', ["name", "'Küche'", "letters"]),
        (DHT22 + 'name = ""\n', ["name", "''", "letters"]),
        (DHT22 + 'name = "_a"\n', ["name", "'_a'", "letters"]),
        (DHT22 + f'name = "{"a" * 65}"\n', ["name", "at most 64"]),
        (DHT22 + '[[sensors]]\nkind = "bme280"\nsda = 4\nscl = 5\n', ["entry 2", "'temperature'", "name"]),
        (DHT22 + 'name = "a"\n' + ENTRY + 'name = "a"\n', ["entry 2", "'a_temperature'", "name"]),
        (
            GOOD + 2 * '[[sensors]]\nkind = "ds18b20"\npin = 3\nname = "tank"\n',
            ["entry 2", "'tank'", "name"],
        ),
        (GOOD + '[[sensors]]\nkind = "dht22"\n', ["entry 1", "dht22", "pin", "missing"]),
        (GOOD + '[[sensors]]\nkind = "bme280"\nsda = 4\n', ["entry 1", "bme280", "scl", "missing"]),
        (GOOD + '[[sensors]]\nkind = "dht22"\npin = "15"\n', ["pin", "'15'", "number from 0", "GP15"]),
        (GOOD + '[[sensors]]\nkind = "dht22"\npin = [1]\n', ["pin", "[1]", "number"]),
        (GOOD + '[[sensors]]\nkind = "dht22"\npin = -1\n', ["pin", "-1", "number"]),
        (GOOD + '[[sensors]]\nkind = "dht22"\npin = true\n', ["pin", "True", "number"]),
        (GOOD + '[[sensors]]\nkind = "dht22"\npin = 2020-01-01\n', ["pin", "2020", "number"]),
        (GOOD + '[[sensors]]\nkind = ""\n', ["entry 1", "kind", "''", "bme280, dht22, ds18b20"]),
        (GOOD + '[[sensors]]\nkind = "__init__"\n', ["entry 1", "kind", "'__init__'", "bme280, dht22, ds18b20"]),
        (GOOD + '[[sensors]]\nkind = "../x"\n', ["entry 1", "kind", "'../x'", "bme280, dht22, ds18b20"]),
        (GOOD + '[[sensors]]\nkind = "dht2"\n', ["entry 1", "kind", "'dht2'", "do you mean 'dht22'"]),
        ("sensors = [3]\n" + GOOD, ["entry 1", "kind"]),
        (GOOD + '[time]\nntp = "pool.ntp.org:abc"\n', ["time.ntp", "'pool.ntp.org:abc'", "name:port"]),
        (GOOD + '[time]\nntp = "pool.ntp.org:99999"\n', ["time.ntp", "99999", "name:port"]),
        (GOOD + '[time]\nntp = "2001:db8::1"\n', ["time.ntp", "2001:db8::1", "name:port"]),
        (GOOD + '[time]\nntp = "ntp://pool.ntp.org"\n', ["time.ntp", "ntp://", "name:port"]),
        (GOOD + '[time]\nntp = " "\n', ["time.ntp", "' '", "name:port"]),
        (GOOD + '[home_assistant]\ndiscovery = "home/#"\n', ["home_assistant.discovery", "'home/#'", "topics"]),
        (GOOD + '[home_assistant]\ndiscovery = "a\\u0000"\n', ["home_assistant.discovery", "topics"]),
        (GOOD + '[device]\nid = "pump\\n"\n', ["device.id", "'pump\\n'", "control characters"]),
        (GOOD + '[device]\nid = "pump\uffff"\n', ["device.id", "'pump\\uffff'", "noncharacters"]),
        (GOOD + 'user = "pump\U0010fffe"\n', ["broker.user", "noncharacters"]),
        (GOOD + 'user = "pump\\u0000"\n', ["broker.user", "control characters"]),
        (GOOD + 'user = "pump\\t1"\n', ["broker.user", "'pump\\t1'", "control characters"]),
        (GOOD + '[home_assistant]\ndiscovery = "home\\u0085"\n', ["home_assistant.discovery", "control characters"]),
        (GOOD + 'tls = true\nca = "a\\u0000b"\n', ["broker.ca", "'a\\x00b'", "name of a file"]),
        ("a = " + 9999 * "[", ["config.toml is not TOML", "nested"]),
        ('[broker]\nhost = "10.0.0.1:1883"\n', ["broker.host", "'10.0.0.1:1883'", "broker.port"]),
        ('[broker]\nhost = "mqtt://x"\n', ["broker.host", "'mqtt://x'", "broker.port"]),
        ('[broker]\nhost = " x "\n', ["broker.host", "' x '", "broker.port"]),
        ('[broker]\nhost = "x\\n"\n', ["broker.host", "broker.port"]),
        ('[broker]\nhost = "a..b"\n', ["broker.host", "'a..b'", "a name or an address"]),
        (f'[broker]\nhost = "{"x" * 64}.de"\n', ["broker.host", "a name or an address"]),
        (GOOD + f'user = "{"ü" * 255}"\n[device]\nid = "{"x" * 26}"\n', ["broker.user", "device.id", "562 bytes; 560"]),
        (GOOD + f'[wifi]\nssid = "{"ü" * 17}"\n', ["wifi.ssid", "ü", "32 bytes"]),
        (GOOD + "port = 2020-01-01\n", ["broker.port", "2020", "a whole number"]),
        (GOOD + f'user = "{"x" * 300}"\n', ["broker.user", "xxx... (302 characters) is not allowed"]),
        (GOOD + f"{'x' * 300} = 1\n", ["has no key", "xxx... (302 characters); known: "]),
        (GOOD + f'[[sensors]]\nkind = "{"x" * 300}"\n', ["entry 1", "xxx... (302 characters) is not allowed"]),
        (GOOD + 'level = 3\n[device]\nid = "a-name-of-more-than-23-characters"\n', ["device.id", "23"]),
    ],
)
@pytest.mark.req("B3")
def test_configuration_mistake_is_named(tmp_path, text, words):
    with pytest.raises(ConfigurationError) as raised:
        load(tmp_path, text)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.req("B3")
def test_unreadable_file_is_named(tmp_path):
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"config\.toml is not TOML"):
        configuration.load(tmp_path, {})
    (tmp_path / "config.toml").unlink()
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(ConfigurationError, match=r"config\.toml can't be read"):
        configuration.load(tmp_path, {})


@pytest.mark.req("B3")
def test_journal_size_is_rounded_up_to_sectors(tmp_path):
    assert [load(tmp_path, f"{GOOD}[journal]\nkib = {kib}\n")["sectors"] for kib in (16, 17, 20, 20.5)] == [4, 5, 5, 6]


@pytest.mark.parametrize("table", ["wifi", "broker"])
@pytest.mark.req("B3")
def test_secret_in_the_shared_file_is_refused_and_not_shown(tmp_path, table):
    text = GOOD + 'password = "hunter2"\n' if table == "broker" else GOOD + '[wifi]\npassword = "hunter2"\n'
    with pytest.raises(ConfigurationError) as raised:
        load(tmp_path, text)
    assert "config.local.toml" in str(raised.value) and "hunter2" not in str(raised.value)


@pytest.mark.req("B3")
def test_secret_too_long_is_named_without_its_value(tmp_path):
    with pytest.raises(ConfigurationError) as raised:
        load(tmp_path, GOOD, f'[wifi]\npassword = "{"s3cret" * 20}"\n')
    assert "wifi.password" in str(raised.value) and "s3cret" not in str(raised.value)


@pytest.mark.parametrize(
    ("local", "words"),
    [
        ("[wifi]\npassword = s3cret\n", ["line 2", "'password'", "quotation marks"]),
        ("[wifi]\ns3cret\n", ["line 2"]),
        ('[wifi]\npassword = "s3cret\n', ["line 2", "'password'", "closing quotation mark"]),
        ('password = "s3cret"\n', ["'password'", "above the first table", "below [broker] or [wifi]"]),
        ("[wifi]\npassword = 53\n", ["wifi.password", "its value", "a text in quotation marks"]),
    ],
)
@pytest.mark.req("B3")
def test_mistake_in_the_file_of_secrets_is_named_without_the_secret(tmp_path, local, words):
    with pytest.raises(ConfigurationError) as raised:
        load(tmp_path, GOOD, local)
    for word in ["config.local.toml", *words]:
        assert word in str(raised.value)
    assert "s3cret" not in str(raised.value) and "53" not in str(raised.value)


@pytest.mark.req("B3")
def test_broker_password_without_a_user_is_refused_below_level_5(tmp_path):
    environment = {"FLASHMQTT_BROKER_PASSWORD": "s3cret"}
    with pytest.raises(ConfigurationError, match=r"broker\.user.*level 4"):
        load(tmp_path, GOOD, environment=environment)
    assert load(tmp_path, GOOD + "level = 5\n", environment=environment)["broker_password"] == "s3cret"
    assert load(tmp_path, GOOD + 'user = "me"\n', environment=environment)["user"] == "me"


@pytest.mark.req("B3")
def test_secret_in_the_environment_that_is_not_utf_8_is_named_without_its_value(tmp_path):
    secret = os.fsdecode(b"hunter2-\xff")
    with pytest.raises(ConfigurationError, match="FLASHMQTT_WIFI_PASSWORD in the environment is not UTF-8") as raised:
        load(tmp_path, GOOD + '[wifi]\nssid = "home"\n', environment={"FLASHMQTT_WIFI_PASSWORD": secret})
    assert "hunter2" not in str(raised.value)


@pytest.mark.req("B3")
def test_environment_overrides_the_local_file_and_that_the_shared_one(tmp_path):
    local = '[wifi]\npassword = "from-the-file"\nssid = "lab"\n[broker]\nport = 1884\n'
    config = load(tmp_path, GOOD + '[wifi]\nssid = "home"\n', local, {"FLASHMQTT_WIFI_PASSWORD": "from-outside"})
    assert (config["ssid"], config["password"], config["port"]) == ("lab", "from-outside", 1884)
    shown = str(configuration.shown(config))
    assert "from-outside" not in shown and "(hidden)" in shown


@pytest.mark.req("B3")
def test_board_gets_only_values_that_differ_from_defaults(tmp_path):
    config = load(tmp_path, GOOD + '[sleep]\nsleep_s = 600\n[[sensors]]\nkind = "dht22"\npin = 15\n')
    written = configuration.compact(config)
    assert json.loads(written) == {"broker": "10.0.0.1", "sleep_s": 600, "sensors": [{"kind": "dht22", "pin": 15}]}
    assert check(json.loads(written)) == config


@pytest.mark.parametrize(
    "text",
    [
        '[broker]\nhost = "2001:db8::1"\n',
        '[broker]\nhost = "broker-1.local"\n',
        GOOD + '[time]\nntp = "10.0.0.1:1123"\n',
        GOOD + f'[wifi]\nssid = "{"ü" * 16}"\n',
        DHT22 + 'name = "cellar/1"\nqos = 0\ninterval_ms = 60000\n',
        DHT22 + 'name = "a"\n' + ENTRY + 'name = "b"\n',
        DHT22 + ENTRY + "qos = 2\n",  # in another message
        GOOD + 2 * '[[sensors]]\nkind = "ds18b20"\npin = "GP3"\n',
        GOOD + '[[sensors]]\nkind = "bme280"\nsda = 4\nscl = 5\nbus = 1\naddress = 0x77\n',
        "\ufeff" + GOOD,
    ],
)
@pytest.mark.req("B3")
def test_what_is_allowed_is_accepted(tmp_path, text):
    assert load(tmp_path, text, environment={"FLASHMQTT_WIFI_PASSWORD": "hunter2-hunter2"})["broker"]


@pytest.mark.req("B3")
def test_kinds_of_sensors_are_the_modules_of_their_folder_and_a_module_of_ones_own_has_any_keys(tmp_path, monkeypatch):
    assert {path.stem for path in configuration.SENSORS.glob("[a-z]*.py")} >= set(configuration.KINDS)
    monkeypatch.setattr(configuration, "SENSORS", tmp_path)
    (tmp_path / "sonar.py").write_text("")
    text = GOOD + '[[sensors]]\nkind = "sonar"\necho = [1, 2.5, true, {a = "b"}]\n'
    assert load(tmp_path, text)["sensors"] == [{"kind": "sonar", "echo": [1, 2.5, True, {"a": "b"}]}]
    for value in ("2020-01-01", "nan"):
        with pytest.raises(ConfigurationError, match=f"entry 1: echo: .*{value[:3]}.* is not allowed"):
            load(tmp_path, GOOD + f'[[sensors]]\nkind = "sonar"\necho = {value}\n')


@pytest.mark.req("B3")
def test_file_of_secrets_is_ignored_by_git():
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "config.local.toml" in ignored
