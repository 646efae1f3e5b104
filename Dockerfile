# The image of the evaluator. docs/deployment.md describes how to build, pin and run it, and
# `make image-check` executes these steps without a container engine.
#
# Both bases are arguments so that they can be pinned by digest, NAME:TAG@sha256:...
# They must have the same Python at the same path.
ARG BUILD_IMAGE=python:3.11-bookworm
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# --- build: everything that needs a compiler or the network; only /opt/evaluator is kept

FROM ${BUILD_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
WORKDIR /src

# Only wheels with hashes in the lock file: no third-party code runs while building.
COPY requirements/run.txt requirements/page.txt requirements/
RUN python3 -m venv /opt/build \
 && python3 -m venv --without-pip /opt/evaluator \
 && /opt/build/bin/pip download --quiet --require-hashes --only-binary=:all: \
      --requirement requirements/run.txt --dest /wheels \
 && /opt/build/bin/pip install --quiet --require-hashes --only-binary=:all: --no-deps \
      --requirement requirements/page.txt --target /charts \
 && /opt/build/bin/pip install --quiet --no-index --find-links=/wheels hatchling build

COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY evaluator evaluator
RUN cp /charts/uplot/static/uPlot.iife.js /charts/uplot/static/uPlot.min.css \
      evaluator/adapters/page/ \
 && /opt/build/bin/python -m build --wheel --no-isolation --outdir /wheels \
 && /opt/build/bin/pip --python /opt/evaluator/bin/python install --quiet --no-index \
      --find-links=/wheels evaluator \
 && /opt/evaluator/bin/python -c "from evaluator.wire.native import library; assert library.BUILT"

# A tag and a label that name another version than the package are refused.
ARG VERSION=""
RUN /opt/evaluator/bin/python -c \
      "import evaluator, sys; sys.exit(sys.argv[1] not in ('', evaluator.__version__))" "${VERSION}"

# --- the image itself: an interpreter, the environment, and a user without rights

FROM ${PYTHON_IMAGE} AS image
ARG VERSION=""
ARG REVISION=""
ARG SOURCE=""
LABEL org.opencontainers.image.title="evaluator" \
      org.opencontainers.image.description="Joins rankings with judgments and keeps exact running measures of ranking quality." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.source="${SOURCE}"

COPY --from=build /opt/evaluator /opt/evaluator
# The mount point of the volume, the only folder that belongs to the user.
RUN install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/evaluator

ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 EVALUATOR_STATE_DIR=/var/lib/evaluator
WORKDIR /var/lib/evaluator
USER 10001:10001
EXPOSE 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 \
    CMD ["/opt/evaluator/bin/evaluator", "health"]
ENTRYPOINT ["/opt/evaluator/bin/evaluator"]
CMD ["--help"]
