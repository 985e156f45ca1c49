# SPDX-License-Identifier: Apache-2.0
# Sourced by tests of tools: a scratch folder $dir, and check, which notes what is wrong in $failed and goes on.
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
failed=0

# check NAME EXIT PATTERN COMMAND...: runs, compares the exit code, looks for the pattern
check() {
    local name=$1 want=$2 pattern=$3
    shift 3
    local text code
    text=$("$@" 2>&1)
    code=$?
    if [ "$code" -ne "$want" ] || ! grep -qE -- "$pattern" <<<"$text"; then
        echo "FAILED $name: exit $code (expected $want), expected /$pattern/, text:"
        echo "$text"
        failed=1
    fi
}
