"""Where the tests' data files lie, for both interpreters."""

HOST_TESTS = __file__.rsplit("/", 2)[0] + "/"
