# SPDX-License-Identifier: Apache-2.0
# Completes the commands and options of onecopy in bash. The command says what may follow.
_onecopy() {
  local line files=
  COMPREPLY=()
  while IFS= read -r line; do
    case $line in
      :files) files=yes ;;
      *) COMPREPLY+=("$(printf %q "${line%%$'\t'*}")") ;;
    esac
  done < <(onecopy complete "${COMP_WORDS[@]:1:COMP_CWORD-1}" "${COMP_WORDS[COMP_CWORD]//\\/}" 2>/dev/null)
  [ -n "$files" ] || compopt +o default 2>/dev/null || true
}
complete -o default -F _onecopy onecopy
