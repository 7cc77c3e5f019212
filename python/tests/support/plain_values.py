# SPDX-License-Identifier: Apache-2.0
"""Plain values, their bytes, and bytes that were damaged, for tests of what reads them."""

from hypothesis import strategies as st

from onecopy import _core

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(2**63), max_value=2**64)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(max_size=400)
)
HASHABLE = SCALARS | st.tuples(SCALARS, SCALARS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(HASHABLE, inner, max_size=12),
    max_leaves=40,
)


def encode(value):
    encoded = _core._encode_values(value)
    assert encoded is not None, "this value should need no pickle"
    return encoded


VALID = st.builds(lambda value: encode(value)[0], VALUES)


def damaged(data, draw):
    """Returns `data` with up to four bytes replaced, and a part of the result."""
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        changed[draw.draw(st.integers(0, len(changed) - 1))] = draw.draw(st.integers(0, 255))
    return bytes(changed), bytes(changed[: draw.draw(st.integers(0, len(changed)))])
