"""Share the shrunk firmware with the other processes of the run."""

from host_tests.deploy.shrunk import shrunk_once  # noqa: F401 - a fixture
