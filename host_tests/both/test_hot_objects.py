"""Objects that every message uses stay fast on MicroPython; CPython does not show this slowdown."""

from flashmqtt.client import Client
from flashmqtt.flash.ram import RamRegion
from flashmqtt.journal.journal import Journal
from flashmqtt.session.ram import RamStore

# MicroPython's hash tables have these sizes. Every method call first looks for the method's name among the object's attributes.
# In a full table the search for a missing name compares it with all attributes: 20 us a call on an RP2040.
TABLE_SIZES = (1, 2, 4, 6, 8, 10, 12, 17, 23, 29, 37, 47, 59, 73, 97, 127)


def test_no_object_on_the_path_of_a_message_has_a_full_attribute_table():
    full = []
    for store in (RamStore(), Journal(RamRegion(8))):
        client = Client("127.0.0.1", 1883, b"x", store)
        session = client.session
        for one in (client, client.link, client.connection, client.connection.decoder, session, session.output, store):
            count = len(one.__dict__)
            if count in TABLE_SIZES:
                full.append("%s: %d attributes: one more or less" % (type(one).__name__, count))
    assert full == []
