"""What tests cost: `pytest --cpu-budget=600` lists the dearest tests and files.

A run that takes more fails.

CPU-seconds, so that a busy machine changes little. Those of a test count its fixtures and the
processes that it waited for, programs of `warm_python` among them.
"""

import resource
from collections import defaultdict

import pytest

from tests.support import warm_python, workers

_PROPERTY = "cpu_seconds"
_STARTED = pytest.StashKey[float]()
_NUM_LISTED = 30


def spent() -> float:
    """Returns the CPU-seconds of this process and of the ones it has waited for."""
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    usages = [resource.getrusage(kind) for kind in kinds]
    own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return own + warm_python.cpu_seconds() + workers.cpu_seconds()


class CpuSeconds:
    """Measures in each process that runs tests, reports in the one that the others belong to."""

    def __init__(self, budget: float):
        self._budget = budget
        self._by_test: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        item.stash[_STARTED] = spent()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item):
        report: pytest.TestReport = yield
        if report.when == "teardown":
            report.user_properties.append((_PROPERTY, spent() - item.stash[_STARTED]))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == _PROPERTY:
                self._by_test[report.nodeid] += float(str(value))

    @pytest.hookimpl(trylast=True)  # once the processes of xdist have ended
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if spent() > self._budget and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("CPU-seconds")
        by_file: defaultdict[str, float] = defaultdict(float)
        for test, seconds in self._by_test.items():
            by_file[test.partition("::")[0]] += seconds
        for costs in (self._by_test, by_file):
            by_cost = sorted(costs.items(), key=lambda item: -item[1])
            for name, seconds in by_cost[:_NUM_LISTED]:
                terminalreporter.line(f"{seconds:6.1f} {name}")
        used = spent()
        verdict = "within" if used <= self._budget else "MORE THAN"
        terminalreporter.line(f"{used:6.0f} in all, {verdict} the budget of {self._budget:.0f}")
