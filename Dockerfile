# LayerTracer on NVIDIA's PyTorch image, which brings torch, Transformer Engine and apex.
ARG BASE=nvcr.io/nvidia/pytorch:25.10-py3
FROM ${BASE}

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
ENV LAYERTRACER_CUDA=1 \
    TORCH_CUDA_ARCH_LIST="8.0;9.0;10.0" \
    CUDA_DEVICE_MAX_CONNECTIONS=1 \
    PYTHONUNBUFFERED=1

WORKDIR /opt/layertracer

# The image's own torch stays: everything pinned but torch and what belongs to its CUDA.
COPY requirements/lock.txt requirements/lock.txt
RUN grep -vE '^(torch|triton|nvidia-|cuda-|#)' requirements/lock.txt > /tmp/packages.txt \
    && PIP_CONSTRAINT="" python -m pip install --no-cache-dir --no-deps -r /tmp/packages.txt \
    && rm /tmp/packages.txt

COPY setup.py pyproject.toml README.md ./
COPY requirements requirements
COPY csrc csrc
COPY layertracer layertracer
COPY megatron_patches megatron_patches
RUN python -m pip install --no-cache-dir --no-deps --no-build-isolation -e .

COPY examples examples
COPY benchmarks benchmarks

RUN useradd --create-home --uid 10001 trainer \
    && mkdir /data \
    && chown trainer /data
USER trainer
WORKDIR /data

CMD ["layertracer", "--help"]
