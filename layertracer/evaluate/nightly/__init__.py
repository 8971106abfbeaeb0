"""The nightly job: new checkpoints evaluated, compared with a pinned baseline, and reported."""
