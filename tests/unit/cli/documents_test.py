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
PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs/COMMANDS.md").read_text(encoding="utf-8")
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
    """The lines of --help about mount options."""
    return help_of("mount").partition("Options of -o:\n")[2].partition("\n\n")[0]


def mount_options_in_help():
    text = mount_help()
    named = {line.split()[0].partition("=")[0] for line in text.splitlines() if re.match(r"  \S", line)}
    of_kernel = re.search(r"of the kernel\s+(.*?)\n  \S", text, re.DOTALL).group(1)
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


def bash(*words, script=None):
    """The completions of bash for the last of the words, which bash has already split."""
    code = ('source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _weightfs; '
            'for word in "${COMPREPLY[@]}"; do printf "%s\\n" "$word"; done')
    done = run("bash", "-c", code, script or DOCUMENTS / "weightfs.bash", "weightfs", *words)
    assert done.returncode == 0 and not done.stderr, done
    return set(done.stdout.splitlines())


def options_in_zsh(command):
    text = (DOCUMENTS / "_weightfs").read_text(encoding="utf-8")
    found = re.search(rf"^    {command}\)\n(.*?)^      ;;$", text, re.MULTILINE | re.DOTALL).group(1)
    return set(re.findall(r"(?:\)|\*)(--?[\w-]+)=?-?\[", found))


def options_in_fish(command):
    found = set()
    for line in (DOCUMENTS / "weightfs.fish").read_text(encoding="utf-8").splitlines():
        head = line.partition(" -d ")[0]
        if f"'__weightfs_command {command}'" in head:
            found |= {f"--{name}" for name in re.findall(r" -l (\S+)", head)}
            found |= {f"-{name}" for name in re.findall(r" -s (\S+)", head)}
    return found


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
        self.assertEqual(bash(""), set(self.commands) | options_in_help(help_of()))
        fish = (DOCUMENTS / "weightfs.fish").read_text(encoding="utf-8")
        self.assertEqual(re.findall(r"-n __weightfs_no_command -a (\S+)", fish), self.commands)
        zsh = (DOCUMENTS / "_weightfs").read_text(encoding="utf-8")
        self.assertEqual(re.findall(r"^    '(\w+):", zsh, re.MULTILINE), self.commands)

    def test_each_command_has_the_same_options_everywhere(self):
        for command in self.commands:
            with self.subTest(command):
                text = help_of(command)
                expected = options_in_help(text)
                self.assertIn("--help", expected)
                self.assertEqual(options_in_page(page_of(command)), expected)
                self.assertEqual([title.split()[0] for title in entries(page_of(command), "ARGUMENTS")],
                                 arguments_in_help(text))
                self.assertEqual(bash(command, "-"), expected)
                self.assertEqual(options_in_zsh(command), expected)
                self.assertEqual(options_in_fish(command), expected)

    def test_the_page_of_the_files_names_the_command_that_restores_them(self):
        page = plain((MAN / "man5/weightfs.5").read_text(encoding="utf-8"))
        found = re.search(r"^store\.json\n(.*?)^\.TP", page, re.MULTILINE | re.DOTALL)[1]
        self.assertIn("weightfs recover", found.replace("\n", " "))

    def test_an_option_that_a_page_lacks_is_noticed(self):
        """The comparisons above can fail."""
        without = re.sub(r"\.TP\n\\fB\\-\\-sparse\\fR\n", "", page_of("format"))
        self.assertEqual(options_in_help(help_of("format")) - options_in_page(without), {"--sparse"})
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "weightfs.bash")
            script.write_text((DOCUMENTS / "weightfs.bash").read_text(encoding="utf-8").replace("--sparse ", ""),
                              encoding="utf-8")
            self.assertEqual(bash("format", "-") - bash("format", "-", script=script), {"--sparse"})

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
        self.assertEqual({word.rstrip("=") for word in bash("mount", "-o", "")}, named | kernel)
        self.assertEqual(bash("mount", "-o", "without="), {f"without={name}" for name in features})
        zsh = (DOCUMENTS / "_weightfs").read_text(encoding="utf-8").partition("_values")[2].partition("\n}")[0]
        self.assertEqual(set(re.findall(r"^    '(\w+)\[", zsh, re.MULTILINE)), named | kernel)
        fish = (DOCUMENTS / "weightfs.fish").read_text(encoding="utf-8").partition("__weightfs_mount_options\n")[2]
        found = set(re.findall(r"^        (\w+)", fish.partition("\nend")[0], re.MULTILINE))
        self.assertEqual(found, named | kernel)


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
            self.assertEqual(bash("mount", "/s", start), directory)
            self.assertEqual(bash("mount", "/s", "/d", start), set(), "there is no third argument")
            self.assertEqual(bash("mount", "-o", "ro", "/s", start), directory)
            self.assertEqual(bash("verify", "a", "b", "c", start), both)
            self.assertEqual(bash("info", start), both)
            self.assertEqual(bash("format", "/s", "--device", start), both)
            self.assertEqual(bash("format", "/s", "--device", "=", start), both)
            self.assertEqual(bash("bench", "/d", "--host", start), directory)
            self.assertEqual(bash("format", "/s", "--size", start), set(), "a size is no file")

    def test_an_unknown_command_completes_nothing(self):
        self.assertEqual(bash("xyzzy", ""), set())


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
                self.check(*command[:-1], DOCUMENTS / command[-1])

    def test_fish_completes(self):
        if shutil.which("fish") is None:
            self.skipTest("needs fish")
        with tempfile.TemporaryDirectory() as home:
            for line, expected in (("weightfs fo", {"format"}), ("weightfs mount -o ro,cache=", {"ro,cache=auto",
                                   "ro,cache=never"}), ("weightfs format --s", {"--size", "--sparse"})):
                done = run("fish", "--no-config", "-c", f"source {DOCUMENTS}/weightfs.fish; complete -C '{line}'",
                           env={**os.environ, "HOME": home})
                self.assertEqual({found.split("\t")[0] for found in done.stdout.splitlines()}, expected, done)

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
