"""The folder of the tests' data files, for both interpreters."""

HOST_TESTS = __file__.rsplit("/", 2)[0] + "/"
