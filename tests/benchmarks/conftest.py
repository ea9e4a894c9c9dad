"""Fixtures of the experiments' tests that the benchmarks' tests use."""

from tests.experiments.conftest import make_results

__all__ = ["make_results"]
