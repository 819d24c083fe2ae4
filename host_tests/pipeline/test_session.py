"""How a process that used Spark ends."""

import subprocess
import sys

USES_SPARK = """
import socket

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

from tools.pipeline import session

spark = session.make("local[1]")
gateway = SparkContext._gateway
ensure_callback_server_started(gateway)
# Stands for a connection that the JVM opens while it is shutting down, and so does not close.
held = socket.create_connection(("127.0.0.1", gateway.get_callback_server().get_listening_port()))
while not gateway.get_callback_server().connections:
    pass
spark.stop()
print("stopped", flush=True)
"""


def test_process_ends_although_a_connection_of_the_jvm_stays_open():
    ended = subprocess.run([sys.executable, "-c", USES_SPARK], capture_output=True, text=True, timeout=150, check=False)
    assert (ended.returncode, ended.stdout) == (0, "stopped\n")
    assert "Traceback" not in ended.stderr
