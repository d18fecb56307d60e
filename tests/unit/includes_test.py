#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A file includes the standard headers whose names it uses, directly or through our own headers. Headers that one
version of a compiler's library includes by itself may be missing in the next version."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("common", "io", "engine", "meta", "lease", "client", "hdf5", "python", "store", "fs", "s3", "remote", "cli", "bench", "tests")
ALGORITHMS = """sort stable_sort find find_if find_if_not any_of all_of none_of copy copy_n fill fill_n count
    count_if max_element min_element reverse equal transform for_each lower_bound upper_bound equal_range unique
    remove_if shuffle generate is_sorted adjacent_find rotate clamp min max minmax mismatch partition binary_search
    nth_element is_permutation includes""".split()
CONTAINERS = {"initializer_list", "string", "string_view", "vector", "array", "span", "map", "set", "deque", "list",
              "unordered_map", "unordered_set", "utility", "memory", "algorithm", "optional", "variant", "functional"}
# Patterns of names, and the headers that provide each of them.
RULES = [
    (r"std::(ranges::)?(" + "|".join(ALGORITHMS) + r")\s*[(<]", {"algorithm"}),
    (r"for \([^;{}]* : \{", CONTAINERS),
    (r"std::(iota|accumulate|reduce|gcd|lcm)\b", {"numeric"}),
    (r"std::numeric_limits\b", {"limits"}),
    (r"std::(optional|nullopt)\b", {"optional"}),
    (r"std::function\b", {"functional"}),
    (r"std::(unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared)\b", {"memory"}),
    (r"std::array\b", {"array"}),
    (r"std::atomic\b", {"atomic"}),
    (r"std::(vector)\b", {"vector"}),
    (r"std::(multi)?map\b", {"map"}),
    (r"std::(multi)?set\b", {"set"}),
    (r"std::(thread|jthread|this_thread)\b", {"thread"}),
    (r"std::(mutex|lock_guard|unique_lock|scoped_lock|once_flag)\b", {"mutex"}),
    (r"std::condition_variable\b", {"condition_variable"}),
    (r"std::chrono\b", {"chrono"}),
    (r"std::(mem(cpy|set|cmp|chr)|str(len|cmp|error|chr|ncmp))\b", {"cstring"}),
    (r"std::(getenv|exit|abort|strto\w+|malloc|free)\b", {"cstdlib"}),
    (r"std::(back_inserter|istreambuf_iterator|make_move_iterator|inserter)\b", {"iterator"}),
    (r"std::(mt19937|mt19937_64|uniform_int_distribution|random_device)\b", {"random"}),
    (r"std::[io]?stringstream\b", {"sstream"}),
    (r"std::[io]?fstream\b", {"fstream"}),
    (r"std::(bit_cast|countr_zero|countl_zero|has_single_bit|bit_width|popcount|endian|bit_ceil)\b", {"bit"}),
    (r"std::(from_chars|to_chars)\b", {"charconv"}),
    (r"std::(runtime_error|logic_error|invalid_argument|out_of_range)\b", {"stdexcept"}),
]


def read_all():
    paths = [path for folder in FOLDERS for path in (ROOT / folder).glob("**/*") if path.suffix in (".cc", ".h")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def headers_of(name, files, seen):
    """The foreign headers that a file includes, directly or through our own headers."""
    if name in seen or name not in files:
        return set()
    seen.add(name)
    found = set()
    for ours, foreign in re.findall(r'^#include (?:"([^"]+)"|<([^>]+)>)', files[name], re.MULTILINE):
        found |= {foreign} if foreign else headers_of(ours, files, seen)
    return found


def wrongs(files):
    if len(files) < 300:
        yield f"only {len(files)} files below {ROOT}: the test looks at the wrong place"
    for name in sorted(files):
        code = re.sub(r"//.*", "", files[name])
        headers = headers_of(name, files, set())
        for pattern, givers in RULES:
            used = re.search(pattern, code)
            if used and not headers & givers:
                yield f"{name} uses {used[0]!r} and includes none of: {', '.join(f'<{one}>' for one in sorted(givers))}"


def main():
    found = list(wrongs(read_all()))
    print("\n".join(found) or "every file includes what it uses")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
