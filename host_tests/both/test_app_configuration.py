"""Errors in a configuration name the key, its value, and the allowed values."""

import pytest

from app.configuration import ConfigurationError, check, load


def test_missing_options_get_their_defaults():
    config = check({"broker": "10.0.0.1"})
    assert config["broker"] == "10.0.0.1"
    assert config["port"] == 1883
    assert config["window"] == 8


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["'broker'", "missing"]),
        ({"broker": "b", "colour": 1}, ["'colour'", "unknown", "broker"]),
        ({"broker": "b", "port": 0}, ["port", "0", "1 to 65535"]),
        ({"broker": "b", "port": "1883"}, ["port", "'1883'", "int"]),
        ({"broker": "b", "port": True}, ["port", "True", "int"]),
        ({"broker": ""}, ["broker", "''", "1 to 255"]),
        ({"broker": "b", "interval_ms": 5}, ["interval_ms", "5", "10 to 86400000"]),
        ({"broker": "b", "ntp": "pool:abc"}, ["ntp", "'pool:abc'", "name:port"]),
        ({"broker": "b", "ntp": "pool:0"}, ["ntp", "'pool:0'", "name:port"]),
        ({"broker": "b", "ntp": "pool:65536"}, ["ntp", "'pool:65536'", "name:port"]),
        ({"broker": "b", "ntp": "pool:99999999999999999999"}, ["ntp", "name:port"]),
        ({"broker": "b", "ntp": "::1"}, ["ntp", "'::1'", "name:port"]),
        ({"broker": "b", "ntp": ":123"}, ["ntp", "':123'", "name:port"]),
        ({"broker": "b", "ntp": "pool:12²"}, ["ntp", "name:port"]),
    ],
)
def test_invalid_option_error_names_the_option(given, words):
    with pytest.raises(ConfigurationError) as raised:
        check(given)
    for word in words:
        assert word in str(raised.value)


def test_password_never_appears_in_errors():
    with pytest.raises(ConfigurationError) as raised:
        check({"broker": "b", "password": "s3cret" * 20})
    assert "s3cret" not in str(raised.value)
    assert "password" in str(raised.value)


def test_missing_file_error_names_the_path():
    with pytest.raises(ConfigurationError) as raised:
        load("/nowhere/config.json")
    assert "/nowhere/config.json" in str(raised.value)
