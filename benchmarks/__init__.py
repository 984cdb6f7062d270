"""What fedsim costs beside a bare PyTorch loop: ``python -m benchmarks``, see README.md here."""
