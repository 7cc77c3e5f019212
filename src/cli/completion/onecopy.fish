# SPDX-License-Identifier: Apache-2.0
# Completes the commands and options of onecopy in fish. The command says what may follow.
function __onecopy_offered
    set -l before (commandline -opc)[2..-1]
    set -l typed (commandline -ct)
    set -l option (string match -r -- '^--[^=]+=' "$typed")
    set -l value (string replace -- "$option" '' "$typed")
    test -z "$option"; or set -a before (string replace -- = '' $option) =
    for line in (onecopy complete $before "$value" 2>/dev/null)
        if test "$line" = :files
            __fish_complete_path "$value" | string replace -r -- '^' "$option"
        else
            printf "%s\n" "$option$line"
        end
    end
end
complete -c onecopy -f -a '(__onecopy_offered)'
