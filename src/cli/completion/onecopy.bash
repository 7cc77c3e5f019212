# SPDX-License-Identifier: Apache-2.0
# Completes the commands and options of onecopy in bash; a test compares it with `onecopy --help`.

# The names of the objects in the store, one a line. Starts no keeper.
_onecopy_objects() {
  ONECOPY_STORE_AUTOSTART=0 onecopy store ls --format json 2>/dev/null | sed -n 's/.*"name": "\([^"]*\)".*/\1/p' | sort -u
}

_onecopy() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= words= w before=
  for w in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    if [ -n "$command" ]; then case $w in -*) ;; *) before="$before $w" ;; esac; continue; fi
    case $w in demo|share|load|open|store|ls|report|doctor|gc|key|bench|help|version) command=$w ;; esac
  done
  case $command:$previous in
    *:--log-level) words='off error warning info debug' ;;
    load:--device) words='cpu cuda:0 npu:0' ;;
    share:--strategy) words='file_descriptor file_system' ;;
    open:--format) words='table json' ;;
    ls:--format) words='table json prometheus' ;;
    doctor:--format) words='table json' ;;
    gc:--format) words='table json' ;;
    bench:--format) words='table json' ;;
  esac
  if [ -z "$words" ]; then case $command:$word in
    :-*) words='--help -h --version --log-level' ;;
    :*) words='demo share load open store ls report doctor gc key bench help version' ;;
    demo:-*) words='--help -h --version --log-level' ;;
    share:-*) words='--strategy --help -h --version --log-level' ;;
    load:-*) words='--device --help -h --version --log-level' ;;
    open:-*) words='--out --force --hold --format --help -h --version --log-level' ;;
    store:-*) words='--help -h --version --log-level' ;;
    ls:-*) words='--format --verbose -v --rpc --watch --help -h --version --log-level' ;;
    report:-*) words='--for --every --help -h --version --log-level' ;;
    doctor:-*) words='--format --help -h --version --log-level' ;;
    gc:-*) words='--format --help -h --version --log-level' ;;
    key:-*) words='--help -h --version --log-level' ;;
    bench:-*) words='--format --help -h --version --log-level' ;;
    help:-*) words='--help -h --version --log-level' ;;
    version:-*) words='--help -h --version --log-level' ;;
  esac; fi
  if [ -z "$words" ]; then case $command$before in
    store) words='serve status stop put ls watch rollback rm' ;;
    'store put' | 'store watch' | 'store rollback' | 'store rm') words=$(_onecopy_objects) ;;
    help) words='demo share load open store ls report doctor gc key bench help version' ;;
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _onecopy onecopy
