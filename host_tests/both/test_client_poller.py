"""The blocking client's poller has only the open connection's socket registered, never a closed one."""

from socket import socket

import pytest

from flashmqtt.client import Client
from flashmqtt.session.ram import RamStore


def waiting_client():
    client = Client("127.0.0.1", store=RamStore(16), client_id="a")
    client.link.wait_ms = 1
    client.link.events = 1  # POLLIN
    return client


def wait_with(client, sock):
    """Let the client wait with this socket (None: no connection); return the poller that it used."""
    client.link.sock = client.link.polled = sock
    client._wait(1)
    return client._poller


@pytest.mark.req("B2", "B4")
def test_open_socket_keeps_its_poller():
    client = waiting_client()
    sock = socket()
    first = wait_with(client, sock)
    client.link.events = 4  # POLLOUT
    assert wait_with(client, sock) is first
    sock.close()


@pytest.mark.req("B2", "B4")
@pytest.mark.parametrize("between", [True, False], ids=["after a pause", "at once"])
def test_new_connection_gets_a_new_poller(between):
    client = waiting_client()
    sock = socket()
    first = wait_with(client, sock)
    sock.close()
    if between:
        wait_with(client, None)
    other = socket()
    assert wait_with(client, other) is not first
    other.close()


@pytest.mark.req("B2")
def test_repeated_waits_in_an_outage_use_one_poller():
    client = waiting_client()
    sock = socket()
    wait_with(client, sock)
    sock.close()
    first = wait_with(client, None)
    for _ in range(3):
        assert wait_with(client, None) is first
