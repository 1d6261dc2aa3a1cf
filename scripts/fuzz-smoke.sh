#!/usr/bin/env bash
# Runs every fuzz target for a short while: scripts/fuzz-smoke.sh [TIME], where
# TIME is as for -fuzztime, 5s by default. The targets are found, not listed, so
# that none is forgotten.
set -euo pipefail
cd "$(dirname "$0")/.."
fuzztime=${1:-5s}

# go test -list prints the targets of a package and then "ok <package> <time>".
listing=$(go test -list '^Fuzz' ./...)
targets=()
found=()
while read -r first second _; do
	case $first in
	Fuzz*) found+=("$first") ;;
	ok)
		for target in "${found[@]+"${found[@]}"}"; do
			targets+=("$second $target")
		done
		found=()
		;;
	esac
done <<<"$listing"

if ((${#targets[@]} == 0)); then
	echo "no fuzz target found"
	exit 1
fi
echo "${#targets[@]} fuzz targets, $fuzztime each"
for entry in "${targets[@]}"; do
	read -r package target <<<"$entry"
	echo "== $package $target"
	go test "$package" -run='^$' -fuzz="^$target\$" -fuzztime="$fuzztime"
done
