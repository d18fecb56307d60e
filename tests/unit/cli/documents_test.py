#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The man pages, the completions, docs/COMMANDS.md and --help name the same commands, options and mount options.

Usage: documents_test.py WEIGHTFS DOCUMENTS, where DOCUMENTS is the directory that weightfs-documents wrote."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

PROGRAM, DOCUMENTS = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
MAN = DOCUMENTS / "man"
ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "cli/help/shells"
PAGE = (ROOT / "docs/COMMANDS.md").read_text(encoding="utf-8")
# The scripts run the program of this build, not an installed one.
ENVIRONMENT = {**os.environ, "PATH": f"{PROGRAM.resolve().parent}:{os.environ['PATH']}"}
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, check=False,
                          **options)


def help_of(command=""):
    return run(PROGRAM, *([command] if command else []), "--help").stdout


def section(text, title):
    """The first words of the entries of a section of --help."""
    found = re.search(rf"^{title}:\n((?:  .*\n)+)", text, re.MULTILINE)
    return re.findall(r"^  (\S+)", found.group(1), re.MULTILINE) if found else []


def commands_in_help(text):
    return section(text, "Subcommands")


def options_in_help(text):
    entries = section(text, "Options") + section(text, "Service")
    return {name for entry in entries for name in entry.split(",")}


def arguments_in_help(text):
    return section(text, "Positionals")


def mount_help():
    """The lines of --help about mount options, one for each."""
    text = help_of("mount").partition("Options of -o:\n")[2].partition("\n\n")[0]
    return re.sub(r"\n {34}", " ", text)


def mount_options_in_help():
    text = mount_help()
    named = {line.split()[0].partition("=")[0] for line in text.splitlines() if re.match(r"  \S", line)}
    of_kernel = re.search(r"of the kernel\s+(.*?)\n(?:  )?\S", text, re.DOTALL).group(1)
    features = re.search(r"features of without=\s+(.*)", text, re.DOTALL).group(1)
    kernel = {word.strip().rstrip("=") for word in of_kernel.split(",")}
    return named - {"of", "features"}, kernel, {word.strip() for word in features.split(",")}


def plain(page):
    """The text of a page without the escapes of roff."""
    return re.sub(r"\\f[BIRP]|\\&", "", page).replace("\\-", "-").replace("\\e", "\\")


def entries(page, title):
    """The titles of the entries (.TP) of a section of a man page."""
    found = re.search(rf"^\.SH {title}\n(.*?)(?=^\.SH |\Z)", page, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\.TP\n(.*)$", plain(found.group(1)), re.MULTILINE) if found else []


def options_in_page(page):
    return {name for title in entries(page, "OPTIONS") for name in OPTION.findall(title)}


def page_of(command):
    return (MAN / f"man1/weightfs-{command}.1").read_text(encoding="utf-8")


def complete(*words):
    """The answer of the program for the words, of which the last one is incomplete: its kind, and the candidates."""
    done = run(PROGRAM, "__complete", *words)
    assert done.returncode == 0 and not done.stderr, done
    kind, *candidates = done.stdout.splitlines()
    assert all(re.fullmatch(r"[^\t]+\t[^\t]+", line) for line in candidates), candidates
    return kind, [line.split("\t")[0] for line in candidates]


def shell(*command, **environment):
    """The lines that a completion in a shell prints."""
    if shutil.which(command[0]) is None:
        raise unittest.SkipTest(f"needs {command[0]}")
    done = run(*command, env={**ENVIRONMENT, **environment})
    assert done.returncode == 0 and not done.stderr, done
    return set(done.stdout.splitlines())


def bash(*words, **environment):
    """The completions of bash for the last of the words, which bash has already split."""
    code = ('source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weightfs; '
            'for word in "${COMPREPLY[@]}"; do printf "%s\\n" "$word"; done')
    return shell("bash", "-c", code, SCRIPTS / "weightfs.bash", "weightfs", *words, **environment)


def zsh(*words, **environment):
    """The candidates, with their meanings, that zsh selects from, or the functions that it completes files with."""
    code = ('_describe() { print -rl -- "${(@P)2}" "${@:3}"; }; _files() { print -r -- _files "$@"; }; '
            'compset() { print -r -- compset "$@"; }; '
            'script=$1; shift; words=(weightfs "$@"); CURRENT=$#words; PREFIX=$words[-1]; source $script')
    return shell("zsh", "-f", "-c", code, "zsh", SCRIPTS / "_weightfs", *words, **environment)


def fish(line, **environment):
    """The completions of fish for a line."""
    with tempfile.TemporaryDirectory() as home:
        found = shell("fish", "--no-config", "-c", f"source {SCRIPTS}/weightfs.fish; complete -C '{line}'", HOME=home,
                      **environment)
    return {one.split("\t")[0] for one in found}


class Agreement(unittest.TestCase):
    def setUp(self):
        self.commands = commands_in_help(help_of())
        self.assertGreater(len(self.commands), 8)

    def test_each_command_has_a_page_and_completions(self):
        pages = {path.name for path in (MAN / "man1").iterdir()}
        self.assertEqual(pages, {"weightfs.1"} | {f"weightfs-{name}.1" for name in self.commands})
        program = (MAN / "man1/weightfs.1").read_text(encoding="utf-8")
        self.assertEqual(entries(program, "COMMANDS"), self.commands)
        self.assertEqual(options_in_page(program), options_in_help(help_of()))
        self.assertEqual(complete(""), ("word", self.commands))
        self.assertEqual(set(complete("-")[1]), options_in_help(help_of()))

    def test_each_command_has_the_same_options_everywhere(self):
        for command in self.commands:
            with self.subTest(command):
                text = help_of(command)
                expected = options_in_help(text)
                self.assertIn("--help", expected)
                self.assertEqual(options_in_page(page_of(command)), expected)
                self.assertEqual([title.split()[0] for title in entries(page_of(command), "ARGUMENTS")],
                                 arguments_in_help(text))
                self.assertEqual(set(complete(command, "-")[1]), expected)

    def test_the_page_of_the_files_names_the_command_that_restores_them(self):
        page = plain((MAN / "man5/weightfs.5").read_text(encoding="utf-8"))
        found = re.search(r"^store\.json\n(.*?)^\.TP", page, re.MULTILINE | re.DOTALL)[1]
        self.assertIn("weightfs recover", found.replace("\n", " "))

    def test_an_option_that_a_page_lacks_is_noticed(self):
        """The comparisons above can fail."""
        without = re.sub(r"\.TP\n\\fB\\-\\-sparse\\fR\n", "", page_of("format"))
        self.assertEqual(options_in_help(help_of("format")) - options_in_page(without), {"--sparse"})

    def test_examples_are_those_of_the_help(self):
        for command in self.commands:
            examples = help_of(command).partition("Examples:\n")[2].rstrip("\n")
            self.assertTrue(examples)
            self.assertIn(examples, plain(page_of(command)))

    def test_mount_options_are_the_same_everywhere(self):
        named, kernel, features = mount_options_in_help()
        self.assertLessEqual({"ro", "commit", "log", "remount"}, named)
        self.assertLessEqual({"noatime", "context"}, kernel)
        for path in ("man1/weightfs-mount.1", "man5/weightfs.5", "man8/mount.weightfs.8"):
            page = (MAN / path).read_text(encoding="utf-8")
            titles = {title.partition("=")[0] for title in entries(page, "MOUNT OPTIONS")}
            self.assertEqual(titles, named, path)
            words = set(re.findall(r"[\w-]+", plain(page)))
            self.assertLessEqual(kernel | features, words, path)
        kind, candidates = complete("mount", "-o", "")
        self.assertEqual((kind, {word.rstrip("=") for word in candidates}), ("list", named | kernel))
        self.assertEqual(set(complete("mount", "-o", "without=")[1]), {f"without={name}" for name in features})


class CommandsPage(unittest.TestCase):
    def test_it_has_every_command_and_option_and_no_other(self):
        shown = {}
        for command, words in re.findall(r"`weightfs (\w+)([^`]*)`", PAGE):
            shown.setdefault(command, set()).update(OPTION.findall(words))
        self.assertEqual(list(shown), commands_in_help(help_of()))
        service = set(OPTION.findall(re.search(r"The commands with a URL also have (.*?)\. ", PAGE, re.DOTALL)[1]))
        for command, named in shown.items():
            with self.subTest(command):
                entries = [set(entry.split(",")) for entry in section(help_of(command), "Options")]
                self.assertLessEqual(named, set.union(*entries))
                missing = [entry for entry in entries if not entry & (named | {"--help"})]
                self.assertEqual(missing, [])
                self.assertIn(set(section(help_of(command), "Service")), (set(), service))

    def test_mount_options_have_the_values_defaults_and_bounds_of_the_help(self):
        rows = re.findall(r"^\| (.*) \| (.*) \| (.*)\|$", PAGE.partition("## Mount options")[2], re.MULTILINE)
        page = {}
        for names, meaning, default in rows:
            for name in re.findall(r"`([a-z][^`]*)`", names.replace("\\|", "!").replace("…", "...")):
                page[name.replace("!", "|")] = (meaning, default.strip(" `"))
        named, kernel, _ = mount_options_in_help()
        described = dict(re.findall(r"^  (\S+) +(.*)$", mount_help(), re.MULTILINE))
        expected = {title: meaning for title, meaning in described.items() if title.partition("=")[0] in named}
        self.assertLessEqual({title.rstrip("=") for title in page.keys() - expected.keys()}, kernel)
        for title, text in expected.items():
            with self.subTest(title):
                meaning, default = page[title]
                for value in re.findall(r"\(([\w.]+)[;)]", text):
                    self.assertEqual(default, value)
                for bound in re.findall(r"at least \w+", text):
                    self.assertIn(bound, meaning)


class Completion(unittest.TestCase):
    def test_an_option_is_offered_until_it_is_given(self):
        self.assertIn("--size", complete("format", "-")[1])
        given = complete("format", "--size", "1G", "--device", "/d", "-")[1]
        self.assertNotIn("--size", given)
        self.assertIn("--device", given, "it may be repeated")

    def test_the_value_of_an_option(self):
        for words, kind in ((("format", "--size", ""), "word"), (("format", "--device", ""), "file"),
                            (("format", "--device=/x"), "file"), (("bench", "--host", ""), "directory"),
                            (("info", "--json", ""), "file"), (("mount", "-ro", ""), "list"),
                            (("mount", "--", "-"), "file"), (("format", ""), "directory")):
            with self.subTest(words):
                self.assertEqual(complete(*words)[0], kind)

    def test_without_the_description_of_bench_nothing_is_completed_and_nothing_fails(self):
        with tempfile.TemporaryDirectory() as folder:
            program = shutil.copy(PROGRAM, folder)
            done = run(program, "__complete", "bench", "-")
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "word\n", ""))

    def test_an_unknown_command_completes_nothing(self):
        self.assertEqual(complete("xyzzy", ""), ("word", []))
        self.assertEqual(complete(), complete(""))

    def test_it_is_in_no_list(self):
        self.assertNotIn("__complete", help_of() + run(PROGRAM, "complete").stderr)


class Bash(unittest.TestCase):
    def test_commands_and_options_by_their_start(self):
        self.assertEqual(bash("fo"), {"format"})
        self.assertEqual(bash("format", "--s"), {"--size", "--sparse"})
        self.assertEqual(bash("umount", "--l"), {"--lazy"})

    def test_the_last_mount_option_of_a_list(self):
        self.assertEqual(bash("mount", "-o", "allow"), {"allow_other"})
        self.assertEqual(bash("mount", "/s", "/d", "-o", "ro,allow"), {"ro,allow_other"})
        self.assertEqual(bash("mount", "-o", "ro,cache="), {"ro,cache=auto", "ro,cache=never"})
        self.assertEqual(bash("mount", "-o", "log=d"), {"log=debug"})
        self.assertEqual(bash("mount", "-o", "scrub="), {"scrub=off"})

    def test_words_that_bash_has_split(self):
        self.assertEqual(bash("mount", "-o", "ro,cache", "="), {"auto", "never"})
        self.assertEqual(bash("mount", "-o", "ro,cache", "=", "ne"), {"never"})
        self.assertEqual(bash("mount", "-o", "cache", "=", "never,direct", "=", "ro"), {"root"})

    def test_files_and_directories(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "store one").mkdir()
            pathlib.Path(folder, "file").touch()
            both, directory = {f"{folder}/store one", f"{folder}/file"}, {f"{folder}/store one"}
            start = f"{folder}/"
            self.assertEqual(bash("format", start), directory)
            self.assertEqual(bash("mount", start), both, "a store is a directory or a device")
            self.assertEqual(bash("mount", "/s", start), directory)
            self.assertEqual(bash("mount", "/s", "/d", start), set(), "there is no third argument")
            self.assertEqual(bash("mount", "-o", "ro", "/s", start), directory)
            self.assertEqual(bash("verify", "a", "b", "c", start), both)
            self.assertEqual(bash("info", start), both)
            self.assertEqual(bash("format", "/s", "--device", start), both)
            self.assertEqual(bash("format", "/s", "--device", "=", start), both)
            self.assertEqual(bash("bench", "/d", "--host", start), directory)
            self.assertEqual(bash("format", "/s", "--size", start), set(), "a size is no file")

    def test_a_missing_program_is_silent(self):
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(shutil.which("bash"), f"{folder}/bash")
            self.assertEqual(bash("fo", PATH=folder), set())


class Build(unittest.TestCase):
    def test_pages_are_not_written_without_the_options_of_bench(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(PROGRAM.resolve().parent / "weightfs-documents", folder, "2026-01-01", f"{folder}/missing.json")
            self.assertEqual((done.returncode, os.listdir(folder)), (1, []))
            self.assertIn("missing.json: not the description of weightfs bench", done.stderr)


class Zsh(unittest.TestCase):
    def test_candidates(self):
        self.assertIn("format:Create a store", {line[:21] for line in zsh("")})
        self.assertIn("-S", zsh("mount", "-o", "ro,"), "no space is added to a list")
        self.assertLessEqual({"ro,cache=auto", "ro,cache=never"},
                             {line.partition(":")[0] for line in zsh("mount", "-o", "ro,cache=")})
        self.assertTrue(any(line.startswith("metrics=h\\:9,ro:") for line in zsh("mount", "-o", "metrics=h:9,")))

    def test_files_and_directories(self):
        self.assertEqual(zsh("format", "/"), {"_files -/"})
        self.assertEqual(zsh("format", "/s", "--device=/"), {"compset -P 1 *=", "_files"})


class Fish(unittest.TestCase):
    def test_candidates(self):
        for line, expected in (("weightfs mount -o ro,cache=", {"ro,cache=auto", "ro,cache=never"}),
                               ("weightfs format --s", {"--size", "--sparse"}), ("weightfs xyzzy ", set())):
            self.assertEqual(fish(line), expected)
        self.assertIn("format", fish("weightfs fo"))

    def test_files_and_directories(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "store").mkdir()
            pathlib.Path(folder, "file").touch()
            for words, found in (("format ", {"store/"}), ("info ", {"store/", "file"}),
                                 ("format /s --device=", {"store/", "file"}), ("bench --host=", {"store/"})):
                given = words.rpartition(" ")[2]
                self.assertEqual(fish(f"weightfs {words}{folder}/"), {f"{given}{folder}/{name}" for name in found})


class Syntax(unittest.TestCase):
    def check(self, *command):
        if shutil.which(command[0]) is None:
            self.skipTest(f"needs {command[0]}")
        done = run(*command)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_of_the_scripts(self):
        for command in (("bash", "-n", "weightfs.bash"), ("zsh", "-n", "_weightfs"),
                        ("fish", "--no-execute", "weightfs.fish")):
            with self.subTest(command[0]):
                self.check(*command[:-1], SCRIPTS / command[-1])

    def test_of_the_pages(self):
        pages = [page for page in MAN.glob("man*/*") if not page.read_text(encoding="utf-8").startswith(".so ")]
        self.assertGreater(len(pages), 10)
        for page in pages:
            with self.subTest(page.name):
                self.check("groff", "-man", "-Tutf8", "-wall", "-z", page)
                self.check("mandoc", "-T", "lint", "-W", "warning", page)

    def test_of_the_other_names(self):
        others = [page for page in MAN.glob("man8/*") if page.name != "mount.weightfs.8"]
        self.assertEqual(len(others), 4)
        for page in others:
            target = page.read_text(encoding="utf-8").removeprefix(".so ").strip()
            self.assertTrue((MAN / target).is_file(), page)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
