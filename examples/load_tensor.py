#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads a tensor from a file, again and again, and prints GB/sec."""

import file_access as access


def main():
    parser = access.parser(__doc__)
    parser.add_argument("--input_file", required=True, help="the file; all of it becomes one tensor of bytes")
    args = parser.parse_args()
    way = access.the_way(args)
    size = access.size_of(args.input_file)
    tensor = access.tensor_of(args, way, size)
    seconds = access.timed(args.loop, lambda: way.load(tensor, args.input_file))
    access.check(args, tensor, args.input_file)
    access.say("load", args, way, size, seconds)
    way.close()


if __name__ == "__main__":
    main()
