#compdef claviger
# claviger's completion for zsh. The first line of an answer says what the word can become: `words`, each with what it
# means after a tab, or `paths` or `folders`, which are left to zsh.
_claviger() {
    local -a answer words_of_it shown
    answer=("${(@f)$(CLAVIGER_COMPLETE=zsh claviger -- "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    case $answer[1] in
        words)
            shift answer
            words_of_it=("${(@)answer%%$'\t'*}")
            shown=("${(@)answer//$'\t'/  -- }")
            compadd -U -V claviger -l -d shown -a words_of_it
            ;;
        paths) compset -P '--*='; _files ;;
        folders) compset -P '--*='; _files -/ ;;
    esac
}
if [ "$funcstack[1]" = _claviger ]; then
    # zsh reads the file at the first tab, which wants an answer as well.
    _claviger "$@"
else
    compdef _claviger claviger
fi
