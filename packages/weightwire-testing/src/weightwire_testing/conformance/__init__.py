"""The conformance kit: what a data plane, a control plane or a weight source must do, as tests for your own.

Six lines in your test suite::

    from weightwire_testing.conformance import DataPlaneSuite

    class TestMyPlane(DataPlaneSuite):
        receiver = "my_plane.testing:join"
        def make_plane(self):
            return MyPlane()

pytest runs them and reports by suite; :func:`run` does without pytest and returns a :class:`Report`. Say what your
plane can do beyond the core in ``capabilities``; name a test that fails for a known reason in ``xfails``, with the
reason. See :mod:`weightwire_testing.conformance.suite`.
"""

from weightwire_testing.conformance.control_plane import ControlPlaneSuite
from weightwire_testing.conformance.data_plane import DataPlaneSuite
from weightwire_testing.conformance.engines import LiveEngine, OnReferenceEngine
from weightwire_testing.conformance.report import Outcome, Report, Result
from weightwire_testing.conformance.run import run
from weightwire_testing.conformance.suite import Suite, requires
from weightwire_testing.conformance.weight_source import WeightSourceSuite

__all__ = [
    "ControlPlaneSuite",
    "DataPlaneSuite",
    "LiveEngine",
    "OnReferenceEngine",
    "Outcome",
    "Report",
    "Result",
    "Suite",
    "WeightSourceSuite",
    "requires",
    "run",
]
