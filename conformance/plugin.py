"""Run the suite as a pytest plugin with a test for each case, dtype and mode, such as `token_choice/tied[float32-eager]`.

The selected cases of one algorithm, dtype and mode are compiled together, and all run when pytest reaches the first case.
pytest-xdist assigns these cases to one worker process, in which this module creates the plugin again.
"""

import gc
import json
import os
import re
import sys
from collections.abc import Generator, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tqdm import tqdm

from moespec.conformance.check.process import FOLDERS, end
from moespec.conformance.check.results import FAILED, Report, unpacked
from moespec.conformance.check.run import Plan
from moespec.conformance.format import GoldenError, VectorError
from moespec.conformance.report.matrix import failures
from moespec.models.checks import check_output
from moespec.spec.errors import ConfigError

__all__ = ["run", "settle"]

ALONE = ("-c", os.devnull, "--rootdir=.", "--noconftest", "--assert=plain")
"""Options that make pytest ignore the current folder's configuration files, which are meant for other tests."""
QUIET = ("--capture=no", "--no-header", "--tb=no", "-rN", "--junit-prefix=moespec")
"""Options that suppress pytest's output, because failures are printed once, after all tests."""
LEFT_OUT = ("-pno:warnings", "-pno:logging", "-pno:faulthandler", "-pno:unraisableexception", "-pno:threadexception")
"""Options that disable pytest plugins, which take time for each case and have no effect here."""
ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTEST_PLUGINS": "", "PYTHONSAFEPATH": "1"}
Part = tuple[str, str, str]
"""(algorithm, dtype, mode)."""


def run(plan: Plan, options: Sequence[str]) -> Report | int:
    """Runs the plan's tests that pytest's options select. Returns the report or, if no test runs (--collect-only), an exit status.

    Raises ConfigError for an invalid option, KeyboardInterrupt if the user stops the run, and VectorError or GoldenError like `Plan.check`.
    """
    suite, name = _Suite(plan), plan.report.target
    folder = re.sub(r"[^.\w]", "-", name)
    settings = (f"cache_dir=.pytest_cache/moespec/{folder}", f"junit_suite_name=moespec conformance {name}")
    fixed = [*ALONE, *QUIET, *LEFT_OUT, *(f"-o{each}" for each in settings), f"-p{__name__}"]
    gc.freeze()  # otherwise, a tenth of the time would go to scanning the imported frameworks for garbage
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in ENVIRONMENT.items():
            patch.setenv(variable, value)
        status = pytest.main([*fixed, *options], plugins=[suite])
    gc.unfreeze()
    suite.bar.close()
    end()
    if suite.stop is not None:
        raise suite.stop
    if status == pytest.ExitCode.USAGE_ERROR or not suite.runs:
        return 2 if status else 0
    ended = ["pytest ended by an internal error"] if status == pytest.ExitCode.INTERNAL_ERROR else []
    return replace(plan.joined(suite.reports), problems=[*suite.problems, *ended])


def settle(report: Report) -> None:
    """Ends the test of the only case in the report: returns if the case passed; otherwise fails, skips or xfails the test."""
    __tracebackhide__ = True
    for lacking in report.unsupported:
        pytest.skip(f"{lacking.dtype} is not supported: {lacking.reason}")
    if not report.results:
        pytest.skip("arrays of the target have no strides")
    (result,) = report.results
    if result.state == "waived":
        pytest.xfail(result.first.message)
    if result.state in FAILED:
        pytest.fail(failures(report), pytrace=False)
    if result.state != "pass":
        pytest.skip(f"{result.state}: {result.first.message}")


def pytest_configure(config: pytest.Config) -> None:
    """Creates the plugin in a pytest-xdist process, which loads this module by name."""
    if hasattr(config, "workerinput"):
        sys.path[:], FOLDERS[:] = config.workerinput["path"], config.workerinput["folders"]
        config.pluginmanager.register(_Suite(Plan.unpacked(config.workerinput["plan"])))


class CaseItem(pytest.Item):
    """The test of a case in one dtype and mode."""

    def __init__(self, *, case: str, part: Part, suite: "_Suite", **more: Any) -> None:
        super().__init__(**more)
        self.case, self.part, self.suite = case, part, suite
        self.report: Report | None = None

    def runtest(self) -> None:
        """Runs the cases of the part unless they have already run. The test then passes, fails or is skipped like its case."""
        self.report = self.suite.checked(self.part)[self.case]
        settle(self.report)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Returns the text of a failure, or a short traceback for an internal error of the suite."""
        return super().repr_failure(excinfo, style or "short")

    def reportinfo(self) -> tuple[str, None, str]:
        """Returns the test's name as its location, since a case has no line in a file."""
        return self.nodeid, None, self.name


class _Suite:
    """The pytest plugin of one run. The main process and each pytest-xdist worker process create an instance."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.parts = plan, list(plan.parts())  # raises an error before pytest begins if a vector is damaged
        self.reports: list[Report] = []
        self.problems: list[str] = []
        self.stop: BaseException | None = None
        self.runs, self.bar = False, tqdm(disable=True)
        self.checked = cache(self._checked)

    # Options and output.

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_parse(self) -> Generator[None, pytest.Config, pytest.Config]:
        """Reports an invalid option in one line."""
        try:
            config = yield
        except pytest.UsageError as error:
            said = re.search(r" error: (.*)", str(error))
            raise ConfigError(said[1] if said else str(error)) from error
        if config.option.file_or_dir:
            raise ConfigError(f"unrecognized arguments: {' '.join(config.option.file_or_dir)}; use --case to name them")
        if config.option.xmlpath:
            check_output("--junit-xml", Path(config.option.xmlpath))
        return config

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Prints pytest's line for each test only on request, and shows a progress bar on a terminal."""
        said = config.option.verbose > 0
        if not said and not config.option.collectonly:
            config.pluginmanager.unregister(name="terminalreporter")
        hidden = said or hasattr(config, "workerinput")
        self.bar = tqdm(desc=self.plan.report.target, unit="case", disable=hidden or None)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Remembers whether the user interrupted the run. pytest also calls this hook for other reasons to stop."""
        if excinfo.type is KeyboardInterrupt:
            self.stop = excinfo.value

    # Tests.

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool | None:
        """Creates all tests; pytest's options then select some of them."""
        self.session, self.runs = session, not session.config.option.collectonly
        if session.config.pluginmanager.has_plugin("dsession"):
            return None  # the worker processes collect the tests
        for dtype, mode, ids in self.parts:
            for id in ids:
                name, part = f"{id}[{dtype}-{mode}]", (id.partition("/")[0], dtype, mode)
                item = CaseItem.from_parent(session, name=name, nodeid=name, case=id, part=part, suite=self)
                session.items.append(item)
        hook = session.config.hook
        hook.pytest_collectreport(report=pytest.CollectReport("", "passed", None, list(session.items)))
        hook.pytest_collection_modifyitems(session=session, config=session.config, items=session.items)
        hook.pytest_collection_finish(session=session)
        session.testscollected = len(session.items)
        return True

    def _checked(self, part: Part) -> dict[str, Report]:
        """Runs all selected cases of a part and returns their reports, which `checked` caches."""
        items = [item for item in self.session.items if isinstance(item, CaseItem) and item.part == part]
        return self.plan.check(*part[1:], [item.case for item in items])

    # Reports that worker processes send to the main process.

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: CaseItem, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        """Attaches the report of the case to pytest's report, and replaces pytest's duration with the time of the case."""
        report = yield
        if call.when == "call":
            error = call.excinfo.value if call.excinfo else None
            if isinstance(error, VectorError | GoldenError):
                report.damage = [type(error).__name__, str(error)]
            report.verdict = json.dumps(asdict(item.report)) if item.report else ""
            report.duration = sum(each.seconds for each in item.report.results) if item.report else report.duration
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Collects the reports of the cases."""
        if hasattr(report, "damage"):
            kind, text = report.damage
            self.stop = {error.__name__: error for error in (VectorError, GoldenError)}[kind](text)
            self.session.shouldstop = text
        elif getattr(report, "verdict", ""):
            self.reports.append(unpacked(json.loads(report.verdict)))
            self.bar.total = self.session.testscollected
            self.bar.update()
        elif report.failed:  # an internal error of the suite, not of the target
            self.problems.append(f"{report.nodeid}: {report.longreprtext}")

    # pytest-xdist.

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Sends the plan and the import paths to a worker process, which creates the plugin from them."""
        node.workerinput |= {"path": sys.path, "folders": FOLDERS, "plan": self.plan.packed()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Assigns each part to one process. For fresh cases, one process gets all parts of an algorithm, to generate each case once."""
        from xdist.scheduler import LoadScopeScheduling

        class Parts(LoadScopeScheduling):  # type: ignore[misc]
            def _split_scope(self, nodeid: str) -> str:
                algorithm, _, place = nodeid.partition("/")
                return algorithm if fresh else f"{algorithm}[{place.partition('[')[2]}"

        fresh = self.plan.report.seed is not None
        return Parts(config, log)
