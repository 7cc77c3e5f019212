# SPDX-License-Identifier: Apache-2.0
# Completes the commands and options of onecopy in fish.

# Prints the words before the cursor that are neither options nor their values, one a line.
function __onecopy_words
    set -l is_value no
    for word in (commandline -opc)[2..-1]
        if test $is_value = yes
            set is_value no
            continue
        end
        switch $word
            case --log-level --format --device --strategy --out --keep '--max-*'
                set is_value yes
            case '-*'
            case '*'
                echo $word
        end
    end
end

# Whether these words are the command, with $argv[1] words after it; with any number of them for "-".
function __onecopy_is
    set -l words (__onecopy_words)
    set -l wanted $argv[2..-1]
    set -l after (math (count $words) - (count $wanted))
    test $after -ge 0; or return
    if test (count $wanted) -gt 0
        set -l begin $words[1..(count $wanted)]
        test "$begin" = "$wanted"; or return
    end
    test $argv[1] = -; or test $argv[1] = $after
end

# The names of the objects in the store. Starts no keeper.
function __onecopy_objects
    ONECOPY_STORE_AUTOSTART=0 onecopy store ls --format json 2>/dev/null | sed -n 's/^ *"name": "\(.*\)",\{0,1\}$/\1/p' | sort -u
end

complete -c onecopy -f
complete -c onecopy -l help -s h -d 'Print this help message and exit'
complete -c onecopy -l version -d 'Display program version information and exit'
complete -c onecopy -l log-level -x -a 'off error warning info debug' -d 'What the library reports on stderr; the same as ONECOPY_LOG'
for command in '' help
    complete -c onecopy -n "__onecopy_is 0 $command" -a share -d 'Hold a safetensors or npy file in shared memory and print its handle'
    complete -c onecopy -n "__onecopy_is 0 $command" -a load -d 'Load a safetensors file to a device, and report the speed'
    complete -c onecopy -n "__onecopy_is 0 $command" -a open -d 'Open what another process shares and list its tensors'
    complete -c onecopy -n "__onecopy_is 0 $command" -a store -d 'Keep weights under a name, also when every process has ended'
    complete -c onecopy -n "__onecopy_is 0 $command" -a ls -d 'List who shares what on this machine, and who borrows it'
    complete -c onecopy -n "__onecopy_is 0 $command" -a doctor -d 'Check the features of this machine, and name the remedies'
    complete -c onecopy -n "__onecopy_is 0 $command" -a gc -d 'Remove shared-memory files that killed processes left behind'
    complete -c onecopy -n "__onecopy_is 0 $command" -a key -d 'Print a new secret for calls and stores of several hosts'
    complete -c onecopy -n "__onecopy_is 0 $command" -a help -d 'Explain onecopy, or one of its commands'
    complete -c onecopy -n "__onecopy_is 0 $command" -a version -d 'Print the version and the commit it was built from'
end
for command in share load
    complete -c onecopy -n "__onecopy_is 0 $command" -F
end
for command in open doctor gc 'store ls' 'store status'
    complete -c onecopy -n "__onecopy_is - $command" -l format -x -a 'table json' -d 'For people (table) or for programs (json)'
end
for command in open ls doctor gc 'store ls' 'store status'
    complete -c onecopy -n "__onecopy_is - $command" -l json -d 'The same as --format json'
end
complete -c onecopy -n '__onecopy_is - share' -l strategy -x -a 'file_descriptor file_system' -d 'How the memory is made: anonymous (file_descriptor), or files with names in /dev/shm'
complete -c onecopy -n '__onecopy_is - load' -l device -x -a 'cpu cuda:0 npu:0' -d 'Device to load to: cpu, cuda:0 or npu:0'
complete -c onecopy -n '__onecopy_is - open' -l out -r -F -d 'Write the tensors to this safetensors file, instead of a table'
complete -c onecopy -n '__onecopy_is - open' -l force -d 'Let --out overwrite a file'
complete -c onecopy -n '__onecopy_is - open' -l hold -d 'Keep it open until Ctrl-C'
complete -c onecopy -n '__onecopy_is - ls' -l format -x -a 'table json prometheus' -d 'For people (table) or for programs (json, prometheus)'
complete -c onecopy -n '__onecopy_is - ls' -l verbose -s v -d 'Only these processes, with their devices, borrowers and blocks in transit; all without a PID'
complete -c onecopy -n '__onecopy_is - ls' -l rpc -d 'Members of rpc groups, with their peers, calls and routes'
complete -c onecopy -n '__onecopy_is - ls' -l watch -d 'List again and again until Ctrl-C'
complete -c onecopy -n '__onecopy_is 0 store' -a serve -d 'Run the keeper, and end when it ends'
complete -c onecopy -n '__onecopy_is 0 store' -a status -d 'Say whether there is a keeper, and what it holds'
complete -c onecopy -n '__onecopy_is 0 store' -a stop -d 'End the keeper, and leave the group; what no process has open is gone'
complete -c onecopy -n '__onecopy_is 0 store' -a put -d 'Publish the tensors of a safetensors or npy file'
complete -c onecopy -n '__onecopy_is 0 store' -a pull -d 'Bring a version from another host into the store of this one'
complete -c onecopy -n '__onecopy_is 0 store' -a ls -d 'List objects, versions and readers'
complete -c onecopy -n '__onecopy_is 0 store' -a watch -d 'Print each version that becomes the current one'
complete -c onecopy -n '__onecopy_is 0 store' -a rollback -d 'Make an earlier version the current one again'
complete -c onecopy -n '__onecopy_is 0 store' -a rm -d 'Remove an object'
complete -c onecopy -n '__onecopy_is 0 store' -a leave -d 'Make a host leave its group, so that publishers do not wait for it'
complete -c onecopy -n '__onecopy_is 0 store' -a group -d 'Repair the group of this host'
complete -c onecopy -n '__onecopy_is 0 store group' -a restore -d 'Write into etcd, which has lost its data, what the hosts of the group remember'
for command in put watch rollback rm
    complete -c onecopy -n "__onecopy_is 0 store $command" -a '(__onecopy_objects)'
end
complete -c onecopy -n '__onecopy_is 1 store put' -F
complete -c onecopy -n '__onecopy_is - store put' -l keep -x -d 'Number of versions to keep, including the new one'
complete -c onecopy -n '__onecopy_is - store put' -l everywhere -d 'Publish in the group of this host: the version becomes current when all members have it'
complete -c onecopy -n '__onecopy_is - store put' -l hosts -x -d 'As --everywhere, when so many hosts have it; the others catch up'
complete -c onecopy -n '__onecopy_is - store put' -l timeout -x -d 'With --everywhere or --hosts: the time for that'
complete -c onecopy -n '__onecopy_is - store ls' -l hosts -x -d 'What the hosts of the group have of an object'
complete -c onecopy -n '__onecopy_is - store rm' -l keep -x -d 'Number of versions to keep: those that were current most recently'
complete -c onecopy -n '__onecopy_is - store stop' -l force -d 'Kill the processes of a keeper that does not answer, or of another version of onecopy'
complete -c onecopy -n '__onecopy_is - store serve' -l max-bytes -x -d 'Max size of all versions together'
complete -c onecopy -n '__onecopy_is - store serve' -l max-client-bytes -x -d 'Max size of the versions of one process'
complete -c onecopy -n '__onecopy_is - store serve' -l max-device-bytes -x -d 'Max size of the versions on a device; can be repeated'
complete -c onecopy -n '__onecopy_is - store serve' -l max-age -x -d 'Drop versions of this age that are not current and that no process reads'
complete -c onecopy -n '__onecopy_is - store serve' -l max-unused -x -d 'End when no version and no user has been there for this long; without it the keeper stays'
complete -c onecopy -n '__onecopy_is - store serve' -l replace -d 'Replace the running keeper, if there is one; its versions, readers and limits stay'
complete -c onecopy -n '__onecopy_is - store serve' -l background -d 'Return as soon as the keeper answers, and leave it running, with a log in its directory'
complete -c onecopy -n '__onecopy_is - store serve' -l listen -x -d 'Also give versions to other hosts, at this address of this host; a keeper that runs is used, and stays when this command ends'
complete -c onecopy -n '__onecopy_is - store serve' -l rate -x -d 'Max bytes per second to all other hosts together'
complete -c onecopy -n '__onecopy_is - store serve' -l group -x -d 'Join a group of hosts, which all show the same versions in the same order'
complete -c onecopy -n '__onecopy_is - store serve' -l etcd -x -d 'The URLs of etcd, which knows the group'
complete -c onecopy -n '__onecopy_is - store serve' -l name -x -d 'The name of this host in the group; default: its host name'
complete -c onecopy -n '__onecopy_is - store serve' -l address -x -d 'Where other hosts of the group reach this one, if it listens at all addresses'
complete -c onecopy -n '__onecopy_is - store serve' -l rack -x -d 'The rack of this host: versions go from host to host within a rack, then to the next one'
complete -c onecopy -n '__onecopy_is - store serve' -l state -x -d 'A directory on a disk, where this host remembers what it has shown; default: ~/.local/state/onecopy'
complete -c onecopy -n '__onecopy_is - store serve' -l etcd-ca -x -d 'The certificates that sign those of etcd'
complete -c onecopy -n '__onecopy_is - store serve' -l etcd-login -x -d 'A file with USER:PASSWORD for etcd'
complete -c onecopy -n '__onecopy_is - store pull' -l version -x -d 'The number of the version; default: the newest'
complete -c onecopy -n '__onecopy_is - store pull' -l also -x -d 'Another host that has the object, in case that one is slow or away; can be repeated'
complete -c onecopy -n '__onecopy_is - store pull' -l follow -d 'Stay, and bring each version that becomes current there'
complete -c onecopy -n '__onecopy_is - store pull' -l timeout -x -d 'Without --follow: how long the other host may be away'
