#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Stores a tensor in a file, again and again, and prints GB/sec."""

import os

import file_access as access


def main():
    parser = access.parser(__doc__)
    parser.add_argument("--nvme_folder", type=access.folder, required=True,
                        help="where the file is written; it is removed at the end")
    parser.add_argument("--mb_size", type=access.at_least_one, default=1024,
                        help="size of the tensor in MiB (default 1024)")
    args = parser.parse_args()
    way = access.the_way(args)
    size = args.mb_size << 20
    tensor = access.tensor_of(args, way, size).random_(0, 256)
    path = os.path.join(args.nvme_folder, f"_weightfs_example_{os.getpid()}")
    try:
        seconds = access.timed(args.loop, lambda: way.store(tensor, path))
        access.check(args, tensor, path)
    finally:
        if os.path.exists(path):
            os.unlink(path)
    access.say("store", args, way, size, seconds)
    way.close()


if __name__ == "__main__":
    main()
