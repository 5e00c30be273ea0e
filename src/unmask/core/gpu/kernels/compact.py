"""Flags -> the places of those that are set, in order, and how many they are."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["places"])
def compact(where, index, count, slot, places, BLOCK: tl.constexpr):
    """One program looks through all flags `where` [places]; `index` is filled as far as `count` says.

    `slot` [places]: where in `index` each place is, if it is.
    """
    lane = tl.arange(0, BLOCK)
    done = 0
    for begin in range(0, places, BLOCK):
        place = begin + lane
        asked = tl.load(where + place, mask=place < places, other=0).to(tl.int32)
        at = done + tl.cumsum(asked, 0) - 1
        tl.store(index + at, place.to(tl.int64), mask=asked != 0)
        if slot is not None:
            tl.store(slot + place, at, mask=asked != 0)
        done += tl.sum(asked, 0)
    tl.store(count, done)
