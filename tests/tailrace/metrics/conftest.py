"""What monitoring sees of projections needs the projections' own shop."""

from tests.projections.conftest import define, deploy, settings, shop, store

__all__ = ["define", "deploy", "settings", "shop", "store"]
