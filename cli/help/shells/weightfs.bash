# SPDX-License-Identifier: Apache-2.0
# Completion of weightfs for bash. The program itself has the candidates (cli/help/completion.cc).
_weightfs() {
  local words=() word line kind given='' lines=()
  # Bash splits words at '=' and ':'.
  for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
    [[ ${#words[@]} -gt 0 && ( $word == [=:] || ${words[-1]} == *[=:] ) ]] || words+=('')
    words[-1]+=$word
  done
  word=${words[-1]} COMPREPLY=()
  mapfile -t lines < <(weightfs __complete "${words[@]}" 2>/dev/null)
  kind=${lines[0]}
  if [[ $kind == file || $kind == directory ]]; then
    [[ $word == --*=* ]] && given=${word%%=*}=
    mapfile -t COMPREPLY < <(compgen -A "$kind" -P "$given" -- "${word#"$given"}")
    compopt -o filenames 2>/dev/null
  else
    for line in "${lines[@]:1}"; do [[ $line == "$word"* ]] && COMPREPLY+=("${line%%$'\t'*}"); done
    [[ $kind == list ]] && compopt -o nospace 2>/dev/null
  fi
  # Readline replaces only the part after the last '=' or ':'.
  [[ ${COMP_WORDS[COMP_CWORD]} != [=:] ]] && word=${word%"${COMP_WORDS[COMP_CWORD]}"}
  COMPREPLY=("${COMPREPLY[@]#"$word"}")
}
complete -F _weightfs weightfs
