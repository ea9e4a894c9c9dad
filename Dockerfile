# One image for the balancer and for emulated workers: a virtual environment with what forwarding needs, on a slim Python.
#
# The hot path is compiled (setup.py): a forwarded request costs about 1.7 times as much without, and the compiler
# stays in the first stage. `docker build --build-arg PURE=1 .` uses the pure source.
#
# What is installed is checked by the hashes in requirements-image.txt; the compiler, which stays in the first
# stage, only by the versions of constraints.txt. The tags of the base images move with their fixes: to build the same
# image again, append @sha256:… of `docker buildx imagetools inspect` to both FROM lines.
#
# The laboratory (the extra `lab`) is left out: it is most of the size.

FROM python:3.13-trixie AS build
ARG PURE=0
ENV PIP_CONSTRAINT=/build/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY constraints.txt requirements-image.txt LICENSE README.md pyproject.toml setup.py ./
COPY policies policies
COPY balancer balancer
COPY workers workers
COPY experiments experiments
# Either switch makes a failure an error: without them, a failing compiler would give a pure image.
RUN python -m venv /opt/steelyard \
 && if [ "$PURE" = 1 ]; then export STEELYARD_PURE=1; else export STEELYARD_COMPILE=1; fi \
 && /opt/steelyard/bin/pip install --prefer-binary --require-hashes --requirement requirements-image.txt \
 && /opt/steelyard/bin/pip install --no-deps . \
 && /opt/steelyard/bin/pip uninstall --yes pip \
 && rm /opt/steelyard/bin/experiments

FROM python:3.13-slim-trixie
COPY --from=build /opt/steelyard /opt/steelyard
# PORT means all addresses: a loopback listener cannot be reached from outside the container.
ENV PATH=/opt/steelyard/bin:$PATH PORT=8080 PYTHONDONTWRITEBYTECODE=1
# By number, because Kubernetes cannot verify that a name is not root.
USER 65532:65532
EXPOSE 8080
# Liveness, not readiness: unhealthy containers are replaced, which does not help if all workers are down.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 \
  CMD ["python", "-m", "balancer.healthcheck", "--alive"]
# Exec form: the balancer is the first process and gets SIGTERM itself.
ENTRYPOINT ["balancer"]
CMD ["serve", "--config", "/etc/steelyard/balancer.toml"]
