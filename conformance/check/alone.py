"""The known variants that fall to one case of the suite, and why they fall to no other."""

from collections.abc import Mapping

__all__ = ["ALONE"]

ALONE: Mapping[str, str] = {}
