#!/bin/sh
# Imports a bundle, and proves that a command compiles nothing: use.sh BUNDLE COMMAND [ARGUMENT...]
# PUBLIC_KEY is what `buildd cache key` prints where the bundle was exported; your own key needs none.
set -eu
bundle=$1
shift
if [ -n "${PUBLIC_KEY:-}" ]; then buildd cache trust "$PUBLIC_KEY" ci > /dev/null; fi
buildd cache import "$bundle"
buildd warm --prove -- "$@"
