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
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# fuzz writes a log of its own, which is printed in one piece: targets run side by
# side, one processor each, since building and linking them keeps but one busy.
fuzz() { # fuzz LOG PACKAGE TARGET
	echo "== $2 $3" >"$1"
	go test "$2" -run='^$' -fuzz="^$3\$" -fuzztime="$fuzztime" -parallel=1 >>"$1" 2>&1
}

# Before Go 1.27 a target may fail at the end of its time although it found
# nothing (golang/go#75804). It then says that its context is over, and no failing
# input is written. Such a target is run again until it ends otherwise, or its
# chances are used up; whatever else fails, fails.
chances=5
ran_out() { # ran_out LOG
	grep -q '^    context deadline exceeded$' "$1" && ! grep -q -i 'failing input' "$1"
}

smoke() { # smoke PACKAGE TARGET
	local log=$logs/${1//\//-}-$2 status try
	for ((try = 0; try < chances; try++)); do
		status=0
		fuzz "$log" "$1" "$2" || status=$?
		if ((!status)) || ! ran_out "$log"; then
			break
		fi
	done
	cat "$log"
	return "$status"
}
export -f fuzz ran_out smoke
export fuzztime logs chances

echo "${#targets[@]} fuzz targets, $fuzztime each"
# The words for bash -c are its own to expand.
# shellcheck disable=SC2016
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -L 1 bash -c 'smoke "$1" "$2" || exit 255' smoke
