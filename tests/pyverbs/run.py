"""Runs rdma-core's own suite as its run_tests.py does, and tells `cargo xtask pyverbs` what came of each test.

Arguments: the directory with the package `tests`, the file for the results, then those of run_tests.py.
The results are lines of three fields separated by tabs: what came of it, the test, and why. A test that has
only a line `started` ended the process.
"""

import faulthandler
import os
import sys
import unittest
from importlib.machinery import SourceFileLoader

# A test that waits for longer than this for what does not come would wait forever.
LIMIT_SECONDS = 120


def escape(text):
    """One line without tabs, from which the text can be had back."""
    return text.replace('\\', '\\\\').replace('\n', '\\n').replace('\t', ' ')


class Result(unittest.TextTestResult):
    """Writes each outcome when it is known: the process may not live to tell them all."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.outcomes = open(sys.argv[2], 'w')

    def tell(self, outcome, test, why=''):
        self.outcomes.write(f'{outcome}\t{escape(test.id())}\t{escape(why)}\n')
        self.outcomes.flush()

    def startTest(self, test):
        super().startTest(test)
        self.tell('started', test)
        faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        super().stopTest(test)

    def addSuccess(self, test):
        super().addSuccess(test)
        self.tell('passed', test)

    def addExpectedFailure(self, test, error):
        super().addExpectedFailure(test, error)
        self.tell('passed', test)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.tell('skipped', test, reason)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.tell('failed', test, self.failures[-1][1])

    def addError(self, test, error):
        super().addError(test, error)
        self.tell('failed', test, self.errors[-1][1])

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.tell('failed', test, 'succeeds, which the suite does not expect')

    def addSubTest(self, test, part, error):
        super().addSubTest(test, part, error)
        if error is not None:
            self.tell('failed', part, self._exc_info_to_string(error, part))


def main():
    # Whatever kills the process, it tells where.
    faulthandler.enable()
    directory = os.path.join(sys.argv[1], 'tests')
    # What is imported by a module's own name is in the package's directory, as for run_tests.py.
    sys.path.insert(0, directory)
    tests = SourceFileLoader('tests', os.path.join(directory, '__init__.py')).load_module()
    from args_parser import parser
    own, sys.argv[1:] = sys.argv[:3], sys.argv[3:]
    parser.parse_args()
    arguments, sys.argv = sys.argv, own
    runner = unittest.TextTestRunner(resultclass=Result, verbosity=2)
    unittest.main(module=tests, argv=arguments, testRunner=runner)


main()
