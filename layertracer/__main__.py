"""``python -m layertracer`` is the same as the ``layertracer`` command."""

from layertracer.cli import main

main()
