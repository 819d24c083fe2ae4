"""Home Assistant's MQTT discovery: one retained message per sensor announces it there.

The topics and keys are those of Home Assistant's documentation ("MQTT discovery", "MQTT sensor"), in their short forms, so that a
message fits in a small buffer. A template extracts the state from the SenML pack. For a pack without this sensor the template
gives an empty text, which Home Assistant ignores for a sensor with a unit or a state class.
"""

from json import dumps

# SenML unit -> (unit for Home Assistant, device class)
UNITS = {
    "Cel": ("°C", "temperature"),
    "%RH": ("%", "humidity"),
    "Pa": ("Pa", "pressure"),
    "V": ("V", "voltage"),
    "dBm": ("dBm", "signal_strength"),
    "B": ("B", "data_size"),
    "s": ("s", "duration"),
    "lx": ("lx", "illuminance"),
}


def object_id(name):
    """Return a name in the form that Home Assistant allows in a topic: letters, digits, "_" and "-"."""
    kept = ""
    for character in name:
        plain = "a" <= character <= "z" or "A" <= character <= "Z" or "0" <= character <= "9" or character in "_-"
        kept += character if plain else "_"
    return kept


def sensor_message(prefix, device, model, version, topic, status, name, unit, diagnostic=False, expire_s=0):
    """Return (topic, payload) that announces one sensor.

    Args:
        prefix: Home Assistant's, usually "homeassistant".
        device: the device's id; model, version: shown by Home Assistant.
        topic: of its readings.
        status: the topic of "online" and, by the will, "offline".
        name, unit: the sensor's, as in its SenML records.
        diagnostic: whether the value is about the device itself.
        expire_s: the sensor is unavailable after this time without a reading; 0: the status decides.
    """
    ident = object_id(device)
    config: "dict" = {
        "name": name.replace("_", " "),
        "uniq_id": ident + "_" + object_id(name),
        "stat_t": topic,
        "val_tpl": "{% for r in value_json if r.n == '" + name + "' %}{{ r.v }}{% endfor %}",
        "stat_cla": "measurement",
        "qos": 1,
        "dev": {"ids": [ident], "name": device, "mf": "flashmqtt", "mdl": model, "sw": version},
    }
    shown, kind_of = UNITS.get(unit, (unit, ""))
    if shown and shown != "/":
        config["unit_of_meas"] = shown
    if kind_of:
        config["dev_cla"] = kind_of
    if diagnostic:
        config["ent_cat"] = "diagnostic"
    if expire_s:
        config["exp_aft"] = expire_s
    else:
        config["avty_t"] = status
    return prefix + "/sensor/" + ident + "/" + object_id(name) + "/config", dumps(config).encode()
