#!/usr/bin/env bash
# Prints the share of statements that the tests of each package reach, and leaves
# the profile in coverage/profile.out for `go tool cover -html`.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p coverage

go test -coverprofile=coverage/profile.out ./... >coverage/log.txt || {
	cat coverage/log.txt
	exit 1
}
module=$(go list -m)
printf '%-32s %s\n' package coverage
# A line is "ok <package> <time> coverage: <share> of statements". Packages without
# tests are generated, and count neither here nor in the total.
awk -v module="$module/" '$1 == "ok" && /coverage: [0-9]/ {
	package = $2
	sub(module, "", package)
	match($0, /[0-9.]+%/)
	printf "%-32s %6s\n", package, substr($0, RSTART, RLENGTH)
}' coverage/log.txt
grep -v '\.pb\.go:' coverage/profile.out >coverage/written.out
go tool cover -func=coverage/written.out | awk '/^total:/ { printf "%-32s %6s\n", "total", $NF }'
