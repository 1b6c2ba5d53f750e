"""Measurements. Each module writes its section of ``benchmarks/RESULTS.md``; ``python -m benchmarks`` runs them all."""
