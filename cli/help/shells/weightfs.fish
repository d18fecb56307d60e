# SPDX-License-Identifier: Apache-2.0
# Completion of weightfs for fish. The program itself has the candidates (cli/help/completion.cc).
function __weightfs_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l given (string match -r -- '^--[^=]*=' $word)
    set -l lines (weightfs __complete $words[2..] "$word" 2>/dev/null)
    switch "$lines[1]"
        case file
            string replace -r -- '^' "$given" (__fish_complete_path (string replace -- "$given" '' "$word"))
        case directory
            string replace -r -- '^' "$given" (__fish_complete_directories (string replace -- "$given" '' "$word"))
        case '*'
            string join \n -- $lines[2..]
    end
end
complete -c weightfs -f -a '(__weightfs_complete)'
