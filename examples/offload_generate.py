#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates tokens by a transformer that is several times larger than the memory for its weights, and compares tokens
and speed with the same model in memory and mapped from a file (mmap)."""

import os
import statistics
import sys

import torch

import weightfs
import weightfs.offload
from weightfs.bench import compare
from offload_model import Bar, Folder, Transformer, made, parser, seconds, size_of


def generate(model, prompt, count):
    tokens = prompt
    with torch.no_grad():
        for _ in range(count):
            tokens = torch.cat([tokens, model(tokens)[:, -1:].argmax(-1)], 1)
    return tokens


def mapped(args, path, state):
    """The model with weights that the kernel reads from the file."""
    torch.save(state, path)
    with torch.device("meta"):
        model = Transformer(args.layers, args.width)
    model.load_state_dict(torch.load(path, mmap=True), assign=True)
    model.head.weight = model.words.weight
    return model.eval()


def forget(path):
    """Takes the file out of the page cache, where a model larger than memory would not be."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def device_seconds(folder, nbytes):
    """Reads a file of a handle, in pieces of 32 MiB, and returns the seconds for `nbytes`."""
    if nbytes == 0:   # the model fits in the memory
        return 0.0
    size, path = min(nbytes, 256 << 20), os.path.join(folder, "device")
    with weightfs.Handle(overlap_events=True) as handle:
        memory = handle.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
        handle.write_from(memory, path)
        pieces = [(memory[at:at + (32 << 20)], at) for at in range(0, size, 32 << 20)]

        def read():
            for future in [handle.read_async(piece, path, at) for piece, at in pieces]:
                future.result()

        _, duration = seconds(read)
        handle.free_cpu_locked_tensor(memory)
    return duration * nbytes / size


def main():
    options = parser(__doc__, 12, 384)
    options.add_argument("--mmap_folder", help="where the mapped file is (default: the system's temporary directory)")
    options.add_argument("--memory", default="28M", help="memory for the weights")
    options.add_argument("--tokens", type=int, default=4, help="tokens of a round")
    options.add_argument("--batch", type=int, default=4, help="sequences")
    options.add_argument("--rounds", type=int, default=3, help="rounds of all three, alternating")
    args = options.parse_args()
    prompt = torch.randint(0, 4096, (args.batch, 32), generator=torch.Generator().manual_seed(1))
    with Folder(args.folder) as folder, Folder(args.mmap_folder or os.environ.get("TMPDIR", "/var/tmp")) as other:
        plain, bar = made(args).eval(), Bar(3 * args.rounds + 1)
        path = os.path.join(other, "model.pt")
        maps = mapped(args, path, plain.state_dict())
        model = weightfs.offload.offload(made(args).eval(), os.path.join(folder, "model"), args.memory)
        expected = generate(plain, prompt, args.tokens)
        generate(model, prompt, 2)   # learns the order
        bar.advance("warm-up")
        rows, device, shares, same = {"in memory": [], "offloaded": [], "mapped": []}, [], [], True
        for _ in range(args.rounds):
            model.offload_stats.reset()
            for name, one in (("in memory", plain), ("offloaded", model), ("mapped", maps)):
                forget(path)
                tokens, duration = seconds(lambda: generate(one, prompt, args.tokens))
                rows[name].append(duration)
                if name == "offloaded":
                    shares.append(model.offload_stats.waited_s / duration)
                    read = model.offload_stats.bytes_read
                same = same and torch.equal(tokens, expected)
                bar.advance(name)
            device.append(device_seconds(folder, read))
        found = {"weights_bytes": size_of(plain), "memory": args.memory, "tokens": args.batch * args.tokens,
                 "read_bytes_per_token": read / args.tokens, "seconds": rows, "device_seconds": device,
                 "share_waited": shares, "over_slower": [
                     max(compute, read_s) / offloaded
                     for compute, read_s, offloaded in zip(rows["in memory"], device, rows["offloaded"])],
                 "same_tokens": same}
        compare.output(result_of(found, args.folder), True) if args.json else report(found)
        weightfs.offload.close(model)
    if not same:
        print("THE TOKENS DIFFER", file=sys.stderr)
    return 0 if same else 1


def result_of(found, folder):
    rates = {name: [found["tokens"] / each for each in seconds] for name, seconds in found["seconds"].items()}
    note = (f"{found['weights_bytes'] / 1e6:.0f} MB of weights in {found['memory']} of memory; "
            f"{found['read_bytes_per_token'] / 1e6:.0f} MB are read per token. The offloaded run waited "
            f"{statistics.median(found['share_waited']):.0%} of its time for I/O, and had "
            f"{statistics.median(found['over_slower']):.2f} of the speed of the slower of compute and device alone.")
    return compare.result("offload_generate.py", folder, found["weights_bytes"], len(rates["mapped"]), [
        compare.row("generate", "tokens/s", rates, "in memory", title="tokens/s")], ["generate"], notes=[
            note, *["Equal to the run in memory: all tokens."] * found["same_tokens"]],
        alarms=["WRONG RESULT: these differ from the run in memory: all tokens"] * (not found["same_tokens"]))


def report(found):
    print(f"{found['weights_bytes'] / 1e6:.0f} MB of weights, {found['memory']} of memory; "
          f"{found['read_bytes_per_token'] / 1e6:.0f} MB read per token")
    for name, durations in found["seconds"].items():
        print(f"{name:10} {found['tokens'] / statistics.median(durations):8.2f} tokens/s")
    print(f"waited for the device: {statistics.median(found['share_waited']):.0%} of the time; speed over the slower "
          f"of compute alone and device alone: {statistics.median(found['over_slower']):.2f}")
    if found["same_tokens"]:
        print("all generated the same tokens")


if __name__ == "__main__":
    sys.exit(main())
