"""LayerTracer: find the layers worth training, train only those, prove what it did."""

__version__ = "0.1.0"
