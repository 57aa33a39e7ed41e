# claviger's completion for fish. The first line of an answer says what the word can become: `words`, each with what it
# means after a tab, or `paths` or `folders`, which are left to fish.
function __claviger_answer
    set -l before (commandline --current-process --tokenize --cut-at-cursor)
    set -l current "$(commandline --current-token --cut-at-cursor)"
    CLAVIGER_COMPLETE=fish claviger -- $before "$current" 2>/dev/null
end
function __claviger_words
    set -l answer (__claviger_answer)
    test "$answer[1]" = words
    and printf '%s\n' $answer[2..]
end
function __claviger_paths
    contains -- "$(__claviger_answer)[1]" paths folders
end
complete --command claviger --erase
complete --command claviger --no-files --keep-order --arguments '(__claviger_words)'
complete --command claviger --condition __claviger_paths --force-files
