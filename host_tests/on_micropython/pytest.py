"""What the tests in `host_tests/both` use of pytest, for MicroPython, which has no pytest.

A decorator can't mark a function here (functions take no attributes), so it returns a `Case` that keeps the
function, its parameters and its name. `runner.py` finds the cases in a module by this class. It knows nothing
of the library under test.
"""


class Skipped(Exception):
    """Raised by `skip`."""


class Case:
    """A test function with its parameter sets."""

    def __init__(self, function):
        self.function = function
        self.parameters = None

    def __call__(self, *arguments):
        return self.function(*arguments)


def _case(function):
    return function if isinstance(function, Case) else Case(function)


class _Mark:
    def req(self, *ids):
        """Return a decorator that makes a case of the function; the ids matter to the host only."""
        return _case

    clause = req
    timeout = req

    def parametrize(self, names, values, ids=None):
        """Return a decorator that keeps the parameter sets, in order, as tuples."""
        single = "," not in names if isinstance(names, str) else len(names) == 1

        def decorate(function):
            case = _case(function)
            if case.parameters is not None:
                raise TypeError("one parametrize a function, please")
            case.parameters = [(value,) if single else tuple(value) for value in values]
            return case

        return decorate


mark = _Mark()


class raises:
    """Context manager that demands one of the given exceptions and keeps it as `value`."""

    def __init__(self, expected, match=None):
        self.expected = expected
        self.match = match
        self.value = None

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            raise AssertionError("did not raise " + str(self.expected))
        if not issubclass(kind, self.expected):
            return False
        if self.match is not None:
            import re

            if not re.search(self.match, str(value)):
                raise AssertionError("%r does not match %r" % (str(value), self.match))
        self.value = value
        return True


def skip(reason=""):
    """End this case as skipped, with its reason."""
    raise Skipped(reason)


def fail(reason=""):
    """End this case as failed, with its reason."""
    raise AssertionError(reason)
