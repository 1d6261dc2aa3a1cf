#!/usr/bin/env bash
# Runs every fuzz target for a short while: scripts/fuzz-smoke.sh [TIME], where
# TIME is as for -fuzztime, 5s by default. The script searches for the targets.
set -euo pipefail
cd "$(dirname "$0")/.."
fuzztime=${1:-5s}
corpus=$(go env GOCACHE)/fuzz # where go test keeps it too
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# Each package is built once, one after the other: concurrent builds would each
# compile their common dependencies, with the fuzzer's counters, which is nearly all
# of the work. Packages without a target in their files for this system are skipped.
packages=$(go list -f '{{.ImportPath}} {{.Dir}}{{range .TestGoFiles}} {{.}}{{end}}{{range .XTestGoFiles}} {{.}}{{end}}' ./...)
targets=()
while read -r package dir files; do
	# The names of files have no spaces.
	# shellcheck disable=SC2086
	[[ -n $files ]] && (cd "$dir" && grep -q '^func Fuzz' $files) || continue
	binary=$logs/${package//\//-}.test
	go test -c -fuzz=. -o "$binary" "$package"
	listing=$("$binary" -test.list='^Fuzz')
	for target in $listing; do
		targets+=("$dir $binary $package $target")
	done
done <<<"$packages"

if ((${#targets[@]} == 0)); then
	echo "no fuzz target found"
	exit 1
fi

# fuzz writes a log of its own, which is printed in one piece: targets run
# concurrently, one processor each.
fuzz() { # fuzz LOG DIRECTORY BINARY PACKAGE TARGET
	echo "== $4 $5" >"$1"
	(cd "$2" && "$3" -test.run='^$' -test.fuzz="^$5\$" -test.fuzztime="$fuzztime" -test.parallel=1 -test.fuzzcachedir="$corpus/$4") >>"$1" 2>&1
}

# Before Go 1.27 a target may fail at the end of its time without a failing input
# (golang/go#75804). It then reports that its context is over, and writes no failing
# input. Such a target is run again, at most chances times in all. Any other failure
# counts.
chances=5
ran_out() { # ran_out LOG
	grep -q '^    context deadline exceeded$' "$1" && ! grep -q -i 'failing input' "$1"
}

smoke() { # smoke DIRECTORY BINARY PACKAGE TARGET
	local log=$2-$4 status try
	for ((try = 0; try < chances; try++)); do
		status=0
		fuzz "$log" "$@" || status=$?
		if ((!status)) || ! ran_out "$log"; then
			break
		fi
	done
	cat "$log"
	return "$status"
}
export -f fuzz ran_out smoke
export fuzztime corpus chances

echo "${#targets[@]} fuzz targets, $fuzztime each"
# The words for bash -c are its own to expand.
# shellcheck disable=SC2016
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -L 1 bash -c 'smoke "$@" || exit 255' smoke
