"""What is shrunk is shared with the run's other processes."""

from host_tests.deploy.shrunk import shrunk_once  # noqa: F401 - a fixture
