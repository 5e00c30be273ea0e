"""The source of stories in parts of a few MB, for a machine that gets files through a narrow way; and back again.

    python experiments/carried_source.py split llama2.data carry/a carry/b    # a part in each folder
    python experiments/carried_source.py join /tmp/stories/llama2.data carry/a carry/b

`split` rounds the weights to bfloat16, which is what `unmask train text` samples with on a GPU: its stories are the
same, bit for bit. The judge `stories15M` reads float32 and should get the file as it was published. 61 MB become 14.
`join` writes a file of the published layout, and checks that it is the one that was split.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import struct
from pathlib import Path

import numpy as np

HEADER = 28  # bytes of model.bin before the weights
PART = "source-{}.xz"
SUM = "source.sha256"  # of the file that `join` writes; beside the first part
MODEL = 60_816_028  # bytes of model.bin in llama2.data


def split(source: Path, folders: list[Path]) -> None:
    import torch  # only here: joining is quick

    whole = source.read_bytes()
    weights = torch.frombuffer(bytearray(whole[HEADER:MODEL]), dtype=torch.float32).bfloat16()
    planes = weights.view(torch.uint8).numpy().reshape(-1, 2)  # little-endian: low bytes, high bytes
    low, high = planes[:, 0].tobytes(), planes[:, 1].tobytes()
    packed = b"".join(
        struct.pack("<q", len(one)) + one
        for one in (lzma.compress(part) for part in (whole[:HEADER], high, low, whole[MODEL:]))
    )
    each = -(-len(packed) // len(folders))
    for number, folder in enumerate(folders):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PART.format(number)).write_bytes(packed[number * each : (number + 1) * each])
    (folders[0] / SUM).write_text(hashlib.sha256(_rounded(whole)).hexdigest() + "\n", encoding="utf-8")
    print(f"{len(packed):,} bytes in {len(folders)} parts of {each:,}")


def _rounded(whole: bytes) -> bytes:
    """The published file with its weights rounded to bfloat16."""
    import torch

    weights = torch.frombuffer(bytearray(whole[HEADER:MODEL]), dtype=torch.float32).bfloat16().float()
    return whole[:HEADER] + weights.numpy().tobytes() + whole[MODEL:]


def join(target: Path, folders: list[Path]) -> None:
    packed = b"".join((folder / PART.format(number)).read_bytes() for number, folder in enumerate(folders))
    parts, place = [], 0
    while place < len(packed):
        (size,) = struct.unpack_from("<q", packed, place)
        parts.append(lzma.decompress(packed[place + 8 : place + 8 + size]))
        place += 8 + size
    header, high, low, rest = parts
    planes = np.zeros((len(low), 4), dtype=np.uint8)  # float32 whose lower half is zero
    planes[:, 2], planes[:, 3] = np.frombuffer(low, np.uint8), np.frombuffer(high, np.uint8)
    whole = header + planes.tobytes() + rest
    wanted, found = (folders[0] / SUM).read_text(encoding="utf-8").strip(), hashlib.sha256(whole).hexdigest()
    if found != wanted:
        raise SystemExit(f"{target}: its sha256 is {found}, not {wanted}")
    target.parent.mkdir(parents=True, exist_ok=True)
    new = target.with_name(f"new.{target.name}")
    new.write_bytes(whole)
    new.replace(target)
    print(f"{target}: {len(whole):,} bytes, sha256 {found[:12]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("split", "join"))
    parser.add_argument("file", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    args = parser.parse_args()
    (split if args.what == "split" else join)(args.file, args.folders)


if __name__ == "__main__":
    main()
