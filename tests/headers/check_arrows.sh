#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails when a layer includes a layer above it, when a vendor's backend is named outside its folder and
# registry.cpp, when a fork is handled without a rank, or when a public header includes what its users should not need.
set -u
cd "${1:-$(dirname "$0")/../..}" || exit 2
layers=(core os peer device memory share channel transport store cli)  # and rpc beside store
failed=0

report() {  # report <sentence> <grep output>
  [ -z "$2" ] && return
  failed=1
  echo "$1"
  sed 's/^/  /' <<<"$2"
}

includes() {  # includes <pattern> <path>...: matching #include lines, file:line: text
  local pattern=$1
  shift
  grep -rnE "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"]($pattern)" "$@" 2>/dev/null
}

for index in "${!layers[@]}"; do
  layer=${layers[index]}
  above=$(IFS='|'; echo "${layers[*]:index+1}")
  [ -z "$above" ] && continue
  report "$layer must not include a layer above it:" \
    "$(includes "(onecopy/)?($above)/" "include/onecopy/$layer" "src/$layer")"
done

report "rpc is beside store, above transport:" \
  "$(includes '(onecopy/)?(store|cli)/' include/onecopy/rpc src/rpc; includes '(onecopy/)?rpc/' include/onecopy/store src/store;
     includes '(onecopy/)?rpc/' {include/onecopy,src}/{core,os,peer,device,memory,share,channel,transport})"
floors=(format keeper client ferry)  # of store
for index in "${!floors[@]}"; do
  room=${floors[index]}
  above=$(IFS='|'; echo "${floors[*]:index+1}")
  [ -z "$above" ] && continue
  report "store/$room must not include a room of store above it:" "$(includes "store/($above)/" "src/store/$room")"
done
report "only src/transport/fabric.cpp and a fabric's own folder may name a fabric:" \
  "$(includes 'transport/ucx/' src/rpc src/store src/transport src/cli python/src bench tests/unit/rpc | grep -vE '^src/transport/(fabric\.cpp|ucx/)')"
report "graph is beside share, above memory:" \
  "$(includes '(onecopy/)?(share|channel|transport|rpc|store|cli)/' include/onecopy/graph src/graph;
     includes '(onecopy/)?graph/' include/onecopy/{core,os,peer,device,memory,share,channel,rpc,store} src/{core,os,peer,device,memory,share,channel,transport,rpc,store})"
report "value is beside share, above core:" \
  "$(includes '(onecopy/)?(os|peer|device|memory|share|graph|channel|transport|rpc|store|cli)/' src/value)"
rooms=(format owner borrower broker runtime api)  # of share, from the ground up
for index in "${!rooms[@]}"; do
  room=${rooms[index]}
  above=$(IFS='|'; echo "${rooms[*]:index+1}")
  [ -z "$above" ] && continue
  report "share/$room must not include a room of share above it:" \
    "$(includes "share/($above)/" "src/share/$room")"
done
rings=(ring codec queue connect)  # of channel
for index in "${!rings[@]}"; do
  room=${rings[index]}
  above=$(IFS='|'; echo "${rings[*]:index+1}")
  [ -z "$above" ] && continue
  report "channel/$room must not include a room of channel above it:" \
    "$(includes "channel/($above)/" "src/channel/$room")"
done
report "share and channel have no files outside their rooms, but share/session.h:" \
  "$(find src/share src/channel -maxdepth 1 -type f ! -path src/share/session.h)"
report "share/{format,owner,borrower,broker} must not include the door that is made of them, share/session.h:" \
  "$(includes 'share/session\.h' src/share/{format,owner,borrower,broker})"
report "only the implementation of the API includes share/runtime/runtime.h:" \
  "$(includes 'share/runtime/runtime\.h' src bench python/src | grep -vE '^src/share/(runtime|api)/')"
report "layers above share see share/session.h of it, and the text in which an owner describes itself:" \
  "$(includes 'share/' src/channel src/transport src/rpc src/store bench python/src | grep -vE '"share/(session|format/info_text)\.h"')"
report "Python and bench see what include/onecopy/channel has of channel:" \
  "$(includes 'channel/' bench python/src)"

report "only src/device/registry.cpp and a backend's own folder may name a backend:" \
  "$(includes 'device/(cpu|cuda|ascend)/' include src |
     grep -vE '^src/device/(registry\.cpp|cpu/|cuda/|ascend/)')"
report "public headers include neither vendors nor the system's C headers nor fmt, json:" \
  "$(includes 'sys/|linux/|unistd\.h|fcntl\.h|pthread\.h|poll\.h|dlfcn\.h|signal\.h|fmt/|CLI/|nlohmann/|cuda|acl/' include)"
report "files with fmt::join() include fmt/ranges.h, since fmt/format.h of fmt 11 does not have it:" \
  "$(grep -rl 'fmt::join(' include src python/src tests bench examples --include='*.h' --include='*.cpp' | xargs grep -L '#include <fmt/ranges.h>')"
# include/ is installed whole, and so has nothing but what these three need: sharing, calls, and the store.
reached=$(printf '%s\n' onecopy/onecopy.h onecopy/rpc/agent.h onecopy/store/store.h)
for ((;;)); do
  more=$(cd include && { echo "$reached"; grep -hoE '^#include "onecopy/[^"]+' $reached | cut -d'"' -f2; } | sort -u)
  [ "$more" = "$reached" ] && break
  reached=$more
done
report "public headers that none of onecopy/onecopy.h, onecopy/rpc/agent.h and onecopy/store/store.h needs are private, and belong into src:" \
  "$(comm -13 <(echo "$reached") <(cd include && find . -name '*.h' -printf '%P\n' | sort -u))"
report "only src/os/fork_hook.cpp calls pthread_atfork(); modules have a ForkHook, with a rank:" \
  "$(grep -rn 'pthread_atfork(' src python/src | grep -vE '^src/os/fork_hook\.(cpp|h):')"
report "every header starts with its licence and #pragma once:" \
  "$(find include src -name '*.h' | while read -r header; do
       head -n 1 "$header" | grep -q 'SPDX-License-Identifier: Apache-2.0' || echo "$header: no licence line"
       grep -q '^#pragma once' "$header" || echo "$header: no #pragma once"
     done)"

[ "$failed" = 0 ] && echo "all includes point down"
exit "$failed"
