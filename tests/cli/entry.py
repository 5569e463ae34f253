"""How tests call joulelab in a process of its own: this one is traced for coverage, those that it starts are not.

Tracing makes a process need twice the time to start, and `joulelab cap` starts three more: keepers, recorders and slots
are traced by the tests of their own.
"""

from __future__ import annotations

import sys

CODE = "import os; os.environ.pop('COVERAGE_PROCESS_CONFIG', None); from joulelab.cli import main; main()"
JOULELAB = [sys.executable, "-c", CODE]
