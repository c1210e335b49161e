# papa and all that its jobs import, installed from the wheel; docs/snakemake.md shows how to run it.
#   docker build --tag papa .
#   docker build --tag papa:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
# BASE may be any Debian or Ubuntu image with Python 3.11 or newer and pip, also one that contains torch.
ARG BASE=python:3.11-slim

FROM ${BASE} AS wheel
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore
COPY . /source
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheel /source

FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Debian's pip otherwise refuses to install for all users.
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore
COPY --from=wheel /wheel /wheel
COPY constraints.txt /
RUN python3 -m pip install --no-cache-dir --constraint /constraints.txt --extra-index-url "${TORCH_INDEX}" \
    "$(ls /wheel/*.whl)[demo]" \
 && ln -sf "$(command -v python3)" /usr/local/bin/python && rm -r /wheel
# Any user may run papa, also one without an entry in /etc/passwd.
ENV HOME=/tmp USER=papa
WORKDIR /study
ENTRYPOINT ["papa"]
