"""Build of the package: a wheel holds the hot path compiled by mypyc and Cython, or the same source alone.

    pip install .                                   compiled where a C compiler works, otherwise pure
    STEELYARD_PURE=1 pip install .                  pure
    STEELYARD_COMPILE=1 pip install .               compiled; a failure is an error
    STEELYARD_COMPILE=all pip install '.[lab]'      the same, and the simulator as well

An editable installation is always pure. The reason for a pure build is kept in the package, for `balancer --version`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HOT = [
    "policies/routing/assignment.py",
    "policies/clock.py",
    "policies/endpoint/concurrency_limit.py",
    "policies/facts.py",
    "policies/prompts.py",
    "policies/inference/evidence.py",
    "policies/inference/first_token.py",
    "policies/inference/index.py",
    "policies/inference/news.py",
    "policies/inference/pace.py",
    "policies/inference/tokens.py",
    "policies/inference/units.py",
    "policies/routing/active_policy.py",
    "policies/stats/latency.py",
    "policies/steelyard/pace.py",
    "policies/steelyard/service_time.py",
    "policies/steelyard/costs.py",
    "policies/steelyard/estimate.py",
    "policies/overload/shedding.py",
    "policies/overload/rests.py",
    "policies/overload/token_bucket.py",
    "policies/overload/wait_queue.py",
    "policies/stats/load.py",
    "policies/routing/endpoint_set.py",
    "policies/routing/router.py",
    "policies/routing/units.py",
    "policies/stats/shared_latency.py",
    "policies/endpoint/elsewhere.py",
    "policies/endpoint/overtaken.py",
    "policies/endpoint/state.py",
    "policies/steelyard/least_cost.py",
    "policies/selection/two_choices.py",
    "balancer/exchange/attempt.py",
    "balancer/exchange/routed_attempt.py",
    "balancer/upstream/internal_request.py",
    "balancer/mirroring/copy_attempt.py",
    "balancer/http/h1/body.py",
    "balancer/http/h1/chunks.py",
    "balancer/downstream/pipelined.py",
    "balancer/http/h1/client.py",
    "balancer/exchange/responder.py",
    "balancer/clients/turns.py",
    "balancer/exchange/call_rules.py",
    "balancer/http/grpc/call.py",
    "balancer/http/grpc/status.py",
    "balancer/downstream/http2/connection.py",
    "balancer/downstream/http2/open_streams.py",
    "balancer/downstream/http2/request_heads.py",
    "balancer/downstream/http2/stream.py",
    "balancer/downstream/connection.py",
    "balancer/downstream/http1_responder.py",
    "balancer/downstream/dispatch.py",
    "balancer/syntax/urls.py",
    "balancer/routes/canary_guard.py",
    "balancer/routes/conditions.py",
    "balancer/routes/model_exchange.py",
    "balancer/routes/route.py",
    "balancer/routes/split.py",
    "balancer/routes/table.py",
    "balancer/rate_limits/limiter.py",
    "balancer/rate_limits/request_source.py",
    "balancer/rate_limits/shared_buckets.py",
    "balancer/clients/client_usage.py",
    "balancer/exchange/exchange_state.py",
    "balancer/exchange/exchange.py",
    "balancer/authorization/exchange.py",
    "balancer/exchange/field_edits.py",
    "balancer/exchange/hedging.py",
    "balancer/exchange/buffering.py",
    "balancer/exchange/receiving.py",
    "balancer/exchange/observers.py",
    "balancer/mirroring/observer.py",
    "balancer/exchange/attempt_span.py",
    "balancer/syntax/field_names.py",
    "balancer/http/h1/fields.py",
    "balancer/cluster/admission.py",
    "balancer/http/h1/internal_fields.py",
    "balancer/http/h2/bodies.py",
    "balancer/http/h2/client_engine.py",
    "balancer/http/h2/engine.py",
    "balancer/http/h2/events.py",
    "balancer/http/h2/frame_scanner.py",
    "balancer/http/h2/limits.py",
    "balancer/http/h2/sendable.py",
    "balancer/http/h2/server_engine.py",
    "balancer/http/h1/field_list.py",
    "balancer/upstream/connection_counts.py",
    "balancer/upstream/request.py",
    "balancer/upstream/stream.py",
    "balancer/upstream/http2/connection.py",
    "balancer/upstream/http2/stream.py",
    "balancer/upstream/http1/pool.py",
    "balancer/upstream/connector.py",
    "balancer/upstream/pool.py",
    "balancer/upstream/pool_context.py",
    "balancer/upstream/pools.py",
    "balancer/upstream/http2/pool.py",
    "balancer/upstream/library/pool.py",
    "balancer/log/access_log.py",
    "balancer/log/formats.py",
    "balancer/log/journal.py",
    "balancer/log/json_lines.py",
    "balancer/log/times.py",
    "balancer/recording/recorder.py",
    "balancer/http/h1/request_fields.py",
    "balancer/http/h1/request_head.py",
    "balancer/http/h1/request_reader.py",
    "balancer/http/h1/traced_head.py",
    "balancer/http/h1/response_head.py",
    "balancer/http/h1/request_hints.py",
    "balancer/control/admin/connection.py",
    "balancer/tools/sidecar/downstream.py",
    "balancer/tls/transport.py",
    "balancer/tracing/context.py",
    "balancer/tracing/identifiers.py",
    "balancer/tracing/tracing.py",
    "balancer/exchange/tunnel.py",
    "balancer/cluster/cluster.py",
    "balancer/inference/answer_reader.py",
    "balancer/inference/prompt_reader.py",
    "balancer/inference/token_counts.py",
    "balancer/upstream/http1/connection.py",
    "balancer/cluster/affinity.py",
    "balancer/cluster/wait_queue.py",
    "balancer/process_context.py",
    "balancer/sharing/message.py",
]
"""Modules of the request path. Policies stay interpreted, because the registry reads their options from their
signatures, which mypyc does not keep."""

SIMULATOR = [
    "experiments/inference/exchange.py",
    "experiments/inference/refusals.py",
    "experiments/inference/simulation.py",
    "experiments/simulator/attempt.py",
    "experiments/simulator/client.py",
    "experiments/simulator/clock.py",
    "experiments/simulator/columns.py",
    "experiments/generator/demand.py",
    "experiments/simulator/background.py",
    "experiments/simulator/hedges.py",
    "experiments/simulator/idle.py",
    "experiments/simulator/worker_connections.py",
    "experiments/simulator/simulation.py",
    "experiments/simulator/station.py",
    "experiments/simulator/balancer.py",
    "experiments/simulator/worker.py",
    "workers/slots.py",
    "workers/inference/cache.py",
    "workers/inference/engine.py",
    "workers/inference/sequence.py",
    "workers/inference/settings.py",
]
"""Modules compiled only if asked for: they are a sixth of the compiler's work, and forwarding does not use them."""

SESSION = "balancer.http.h2.compiled_session"
"""Module in Cython: it calls a C library, which mypyc does not."""

OPTIONS = ["--follow-imports=silent", "--ignore-missing-imports"]
"""Of mypy. The types of httptools are needed for the hot path; without those of numpy, pydantic and others the compiler
makes the same code but for lookups that happen once per start or simulation, in a third of the time."""

OPT_LEVEL = "3"

HEADERS = "#include <Python.h>\n"


class CannotCompile(Exception):
    """Reason for a pure build, as shown to the user."""


class Wheel(bdist_wheel):
    """Compiles if possible. All intermediate files are outside the checkout, where old ones would enter the wheel."""

    def run(self) -> None:
        is_strict = os.environ.get("STEELYARD_COMPILE") in ("1", "all")
        with tempfile.TemporaryDirectory(prefix="steelyard-") as place:
            build = self.get_finalized_command("build")
            build.build_lib = os.path.join(place, "lib")
            build.build_temp = os.path.join(place, "objects")
            reason = ""
            try:
                self.distribution.ext_modules = extensions(place)
                self.root_is_pure = False
                self.run_command("build")
            except CannotCompile as error:
                if is_strict:
                    raise SystemExit(f"steelyard: cannot compile: {error}") from error
                reason = str(error)
                print(f"steelyard: the pure build is installed: {reason}", file=sys.stderr)
                self._run_pure_build()
            Path(build.build_lib, "balancer", "pure_because.txt").write_text(reason, encoding="utf-8")
            super().run()

    def _run_pure_build(self) -> None:
        self.distribution.ext_modules = None
        self.root_is_pure = True
        self.distribution.have_run.pop("build", None)
        self.run_command("build")


class Compile(build_ext):
    """Compiles source files beside each other: setuptools does so with whole extensions only."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = CORES

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            for path in self.get_outputs():
                Path(path).unlink(missing_ok=True)
            raise CannotCompile(f"the C compiler failed ({one_line(error)})") from error

    def build_extensions(self) -> None:
        one_after_another = self.compiler.compile

        def compile_beside(sources: list[str], *args: Any, **kwargs: Any) -> list[str]:
            with ThreadPoolExecutor(CORES) as pool:
                made = pool.map(lambda source: one_after_another([source], *args, **kwargs), sources)
                return [path for paths in made for path in paths]

        self.compiler.compile = compile_beside
        super().build_extensions()

    def get_source_files(self) -> list[str]:
        return []  # generated, so none belongs into a source distribution


CORES = os.cpu_count() or 1


def extensions(place: str) -> list[Any]:
    """Translate the hot modules to C below `place`. Raises `CannotCompile`."""
    if os.environ.get("STEELYARD_PURE") == "1":
        raise CannotCompile("STEELYARD_PURE=1 was set")
    if sys.implementation.name != "cpython":
        raise CannotCompile(f"mypyc supports CPython only, not {sys.implementation.name}")
    try_compiler(place)
    try:
        from mypyc.build import mypycify

        modules = HOT + SIMULATOR if os.environ.get("STEELYARD_COMPILE") == "all" else HOT
        made = mypycify(
            [*OPTIONS, *modules], opt_level=OPT_LEVEL, debug_level="0", multi_file=True, target_dir=place
        )
    except (ImportError, SystemExit) as error:
        raise CannotCompile(f"mypyc failed ({one_line(error)})") from error
    made += session(place)
    for extension in made:
        hidden = ["-fvisibility=hidden"] if os.name == "posix" else []
        # Without -Werror: a newer compiler may warn about more. Hidden symbols are called directly.
        extension.extra_compile_args = [
            argument for argument in extension.extra_compile_args if argument != "-Werror"
        ] + hidden
    return list(made)


def session(place: str) -> list[Any]:
    """Translate the HTTP/2 session to C below `place`. Raises `CannotCompile`."""
    folder, name = os.path.split(SESSION.replace(".", "/"))
    # Without -g0, which mypyc sets for its own, debugging information is a third of the time and most of the size.
    arguments = ["-g0"] if os.name == "posix" else []
    made = Extension(SESSION, [f"{folder}/{name}.pyx"], include_dirs=[folder], extra_compile_args=arguments)
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError

        return list(cythonize([made], build_dir=place, quiet=True))
    except ImportError as error:
        raise CannotCompile(f"Cython is missing ({one_line(error)})") from error
    except CompileError as error:
        raise CannotCompile(f"Cython failed ({one_line(error)})") from error


def try_compiler(place: str) -> None:
    """Compile one line. Raises `CannotCompile` without a C compiler or without Python's headers."""
    from distutils.ccompiler import new_compiler
    from distutils.sysconfig import customize_compiler
    from sysconfig import get_path

    compiler = new_compiler()
    customize_compiler(compiler)
    for text, missing in (
        ("int one;\n", "no C compiler works here"),
        (HEADERS, "Python's C headers are missing"),
    ):
        source = Path(place, "tried.c")
        source.write_text(text, encoding="utf-8")
        try:
            compiler.compile([str(source)], output_dir=place, include_dirs=[get_path("include")])
        except Exception as error:
            raise CannotCompile(missing) from error


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


setup(cmdclass={"bdist_wheel": Wheel, "build_ext": Compile})
