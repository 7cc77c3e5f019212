# SPDX-License-Identifier: Apache-2.0
# Completes the commands and options of onecopy in bash; a test compares it with the help of each command.

# The names of the objects in the store, one a line. Starts no keeper.
_onecopy_objects() {
  ONECOPY_STORE_AUTOSTART=0 onecopy store ls --format json 2>/dev/null | sed -n 's/^ *"name": "\(.*\)",\{0,1\}$/\1/p' | sort -u
}

# Offers those of the words that begin with what is typed. They are not expanded: the name of an object is any text.
_onecopy_offer() {
  local word
  for word; do [[ $word == "$typed"* ]] && COMPREPLY+=("$(printf %q "$word")"); done
}

_onecopy() {
  local typed=${COMP_WORDS[COMP_CWORD]//\\/} option= command= place=0 files= w options= objects=
  for w in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case $option:$w in *:=) continue ;; esac
    case $option in --*) option=; continue ;; esac
    case $w in
      --log-level|--format|--device|--strategy|--out|--keep|--max-*) option=$w ;;
      -*) ;;
      *) case $command in '') command=$w ;; store) command="store $w" ;; *) place=$((place + 1)) ;; esac ;;
    esac
  done
  [ "$typed" = = ] && typed=
  COMPREPLY=()
  case $option in
    --log-level) _onecopy_offer off error warning info debug ;;
    --device) _onecopy_offer cpu cuda:0 npu:0 ;;
    --strategy) _onecopy_offer file_descriptor file_system ;;
    --format) case $command in ls) _onecopy_offer table json prometheus ;; *) _onecopy_offer table json ;; esac ;;
    --out) files=yes ;;
  esac
  if [ -z "$option" ]; then
    case $command in
      share) options='--strategy' ;;
      load) options='--device' ;;
      open) options='--out --force --hold --format --json' ;;
      ls) options='--format --json --verbose -v --rpc --watch' ;;
      doctor | gc | 'store status') options='--format --json' ;;
      'store ls') options='--format --json --hosts' ;;
      'store put') options='--keep --everywhere --hosts --timeout' ;;
      'store rm') options='--keep' ;;
      'store stop') options='--force' ;;
      'store serve') options='--max-bytes --max-client-bytes --max-device-bytes --max-age --max-unused --replace --background --listen --rate --group --etcd --name --address --rack --state --etcd-ca --etcd-login' ;;
      'store pull') options='--version --also --follow --timeout' ;;
    esac
    case $command:$place:$typed in
      *:-*) _onecopy_offer $options --help -h --version --log-level ;;
      :* | help:0:*) _onecopy_offer share load open store ls doctor gc key help version ;;
      store:*) _onecopy_offer serve status stop put pull ls watch rollback rm leave group ;;
      'store group:0:'*) _onecopy_offer restore ;;
      'store put:0:'* | 'store watch:0:'* | 'store rollback:0:'* | 'store rm:0:'*)
        mapfile -t objects < <(_onecopy_objects)
        _onecopy_offer "${objects[@]}" ;;
      share:0:* | load:0:* | 'store put:1:'*) files=yes ;;
    esac
  fi
  [ -n "$files" ] || compopt +o default 2>/dev/null || true
}
complete -o default -F _onecopy onecopy
