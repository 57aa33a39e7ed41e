# claviger's completion for bash, 4.4 or later. The first line of an answer says what the word can become:
# `words`, which are quoted as the line wants them, or `paths` or `folders`, which are left to bash. Bash itself quotes names that are no
# files so that `$` and what follows still means something.
_claviger() {
    local kind
    { read -r kind; mapfile -t COMPREPLY; } < <(
        CLAVIGER_COMPLETE=bash claviger -- "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null
    )
    case $kind in
        paths) compopt -o bashdefault -o default ;;
        folders) compopt -o dirnames ;;
    esac
}
complete -F _claviger claviger
