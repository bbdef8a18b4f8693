"""The table of contents of the tests' fixtures. A fixture module may bring hooks too, such as `pytest_report_header`.

fix_time        a clock that moves when the test says so
"""

from __future__ import annotations

pytest_plugins = ["tests.fix_time"]
