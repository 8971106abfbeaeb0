# LayerTracer on NVIDIA's PyTorch image, which brings torch, NCCL, Transformer Engine and apex.
#
#   docker build -t layertracer .
#   docker run --rm --gpus all --ipc=host layertracer            (what the machine has)
#   docker run --rm --gpus all --ipc=host --ulimit memlock=-1 -v "$PWD":/data layertracer \
#       bash /opt/layertracer/examples/cpt_llama.sh
#
# Every RUN step is exercised by scripts/check_container.sh, as far as a machine without the base
# image can.
ARG BASE=nvcr.io/nvidia/pytorch:25.10-py3
FROM ${BASE}

LABEL org.opencontainers.image.title="layertracer" \
      org.opencontainers.image.description="Find the layers worth training, train only those in Megatron"

SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# Ampere, Hopper, Blackwell. The build machine needs no GPU, hence the switch.
ENV LAYERTRACER_CUDA=1 \
    TORCH_CUDA_ARCH_LIST="8.0;9.0;10.0" \
    CUDA_DEVICE_MAX_CONNECTIONS=1 \
    PYTHONUNBUFFERED=1

WORKDIR /opt/layertracer

# The packages change seldom: a layer of their own. The image's constraints pin other versions.
COPY requirements/container.txt requirements/container.txt
RUN PIP_CONSTRAINT="" python -m pip install --no-cache-dir --no-deps \
        --disable-pip-version-check --root-user-action=ignore -r requirements/container.txt

COPY setup.py pyproject.toml README.md ./
COPY requirements/runtime.in requirements/runtime.in
COPY csrc csrc
COPY layertracer layertracer
COPY megatron_patches megatron_patches
RUN PIP_CONSTRAINT="" python -m pip install --no-cache-dir --no-deps --no-build-isolation \
        --disable-pip-version-check --root-user-action=ignore -e . \
    && rm -rf build

COPY examples examples
COPY benchmarks benchmarks

# numpy is the image's and everything else is pinned: see that they go together, as the user will.
RUN useradd --create-home --uid 10001 trainer \
    && install --directory --owner=trainer /data \
    && python -c "import torch, numpy, transformers, megatron.core; torch.zeros(1).numpy()" \
    && layertracer doctor

USER 10001
WORKDIR /data
HEALTHCHECK --interval=5m --timeout=2m --start-period=2m CMD ["layertracer", "doctor"]
CMD ["layertracer", "doctor"]
