"""How a feature's width splits into relation heads."""

from __future__ import annotations

import math
from numbers import Integral

from limbeck.errors import UserError


def common_divisors(*widths: int) -> list[int]:
    """The numbers of heads that divide every one of the widths, ascending."""
    greatest = math.gcd(*widths)
    small = [count for count in range(1, math.isqrt(greatest) + 1) if greatest % count == 0]
    return sorted({*small, *(greatest // count for count in small)})


def check_relation_heads(heads: object, *widths: int) -> None:
    """Refuse a number of relation heads that does not divide the width of every feature read.

    Raises:
        UserError: no whole number, or naming the numbers that do.
    """
    if not isinstance(heads, Integral):
        raise UserError(f"The number of relation heads must be a whole number, not {heads!r}.")
    legal = common_divisors(*widths)
    if heads not in legal:
        raise UserError(
            f"{heads} relation heads do not divide the feature widths {' and '.join(map(str, widths))}; "
            f"choose one of {', '.join(map(str, legal))}."
        )
