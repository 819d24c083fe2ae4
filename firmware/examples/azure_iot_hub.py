"""Azure IoT Hub: the password is signed with the device's key and expires; one topic to publish; no QoS 2. See CLOUDS.md."""

import gc

gc.threshold(16384)

import time
from binascii import a2b_base64, b2a_base64
from hashlib import sha256

import board
from flashmqtt import tls
from flashmqtt.client import Client
from flashmqtt.journal.journal import DROP_OLDEST, Journal

HOST = "broker.local"  # the hub: my-hub.azure-devices.net
PORT = 8883
DEVICE = "greenhouse-1"
KEY = "c2l4dGVlbi1ieXRlcy1rZXk="  # the device's primary key
VALID_S = 30 * 86400


def signature(key, text):
    """Return HMAC-SHA256 (RFC 2104) in base64."""
    key = key + bytes(64 - len(key))
    inner = sha256(bytes(x ^ 0x36 for x in key) + text).digest()
    return b2a_base64(sha256(bytes(x ^ 0x5C for x in key) + inner).digest()).strip().decode()


def password():
    """Return a SAS token: the resource and the expiry time (seconds since 1970), signed."""
    resource = HOST + "%2Fdevices%2F" + DEVICE
    expiry = str(int(board.clock()) + VALID_S)
    signed = signature(a2b_base64(KEY), (resource + "\n" + expiry).encode())
    for character, escaped in (("+", "%2B"), ("/", "%2F"), ("=", "%3D")):
        signed = signed.replace(character, escaped)
    return "SharedAccessSignature sr=" + resource + "&sig=" + signed + "&se=" + expiry


while not board.network_up("my Wi-Fi", "its password", "AT", log=print):
    time.sleep(1)
while board.clock() is None:
    try:
        import ntptime

        ntptime.settime()
    except OSError:  # no answer; a request may get lost
        time.sleep(1)
store = Journal(board.journal_region(64), policy=DROP_OLDEST)
user = HOST + "/" + DEVICE + "/?api-version=2021-04-12"
context = tls.context(ca="ca.pem")  # DigiCert Global Root G2
client = Client(HOST, PORT, DEVICE, store, user=user, password=password(), max_qos=1, tls=context, log=print)
client.start()
while True:
    for sensor in board.sensors():
        client.publish("devices/" + DEVICE + "/messages/events/", '{"%s": %s}' % (sensor.name, sensor.read()), qos=1)
    client.poll(10_000)
    board.network_up("my Wi-Fi", "its password", "AT", log=print)
