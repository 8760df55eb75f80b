"""Runs rdma-core's test suite as its run_tests.py does, and reports each result to `cargo xtask pyverbs`.

Arguments: the directory with the package `tests`, the file for the results, then those of run_tests.py.
The results are lines of three fields separated by tabs: the outcome, the test, and the reason. A test with
only a line `started` has ended the process.
"""

import faulthandler
import os
import sys
import unittest
from importlib.machinery import SourceFileLoader

# The time after which a test counts as blocked without limit.
LIMIT_SECONDS = 120


def escape(text):
    """Returns the text as one line without tabs, which can be decoded."""
    return text.replace('\\', '\\\\').replace('\n', '\\n').replace('\t', ' ')


class Result(unittest.TextTestResult):
    """Writes each outcome at once, since a test may end the process."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.outcomes = open(sys.argv[2], 'w')

    def report(self, outcome, test, why=''):
        self.outcomes.write(f'{outcome}\t{escape(test.id())}\t{escape(why)}\n')
        self.outcomes.flush()

    def startTest(self, test):
        super().startTest(test)
        self.report('started', test)
        faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.report('passed', test)

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.report('passed', test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.report('skipped', test, reason)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.report('failed', test, self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        self.report('failed', test, self.errors[-1][1])

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.report('failed', test, 'succeeds, which the suite does not expect')

    def addSubTest(self, test, part, error):
        super().addSubTest(test, part, error)
        if error is not None:
            self.report('failed', part, self._exc_info_to_string(error, part))


def main():
    # Prints a traceback if a signal kills the process.
    faulthandler.enable()
    directory = os.path.join(sys.argv[1], 'tests')
    # Modules of the package are also imported by their own names, as by run_tests.py.
    sys.path.insert(0, directory)
    tests = SourceFileLoader('tests', os.path.join(directory, '__init__.py')).load_module()
    from args_parser import parser
    own, sys.argv[1:] = sys.argv[:3], sys.argv[3:]
    parser.parse_args()
    arguments, sys.argv = sys.argv, own
    runner = unittest.TextTestRunner(resultclass=Result, verbosity=2)
    unittest.main(module=tests, argv=arguments, testRunner=runner)


main()
