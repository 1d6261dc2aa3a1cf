#!/usr/bin/env bash
# Runs the tests of the packages whose locks have classes, in a build that checks the order of the
# locks (go doc ./internal/lockorder). Arguments are for go test. TestCountsOfARequest is left out:
# it counts packets and allocations, of which a slower build has more.
set -euo pipefail
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
go test -v -tags lockcheck -short -vet=off -timeout 10m -skip '^TestCountsOfARequest$' "$@" ./internal/lockorder \
	./actors ./bus ./bus/host ./bus/node ./bus/tensorqueue ./connector/ring ./shmstore ./internal/directory \
	./internal/exchange ./internal/accounts ./internal/peer ./internal/pool ./internal/process >"$log" 2>&1 || status=$?
# A fault ends its process. That may be a process that a test expects to die, so the test passes.
if grep -q '^panic: lockorder: ' "$log"; then
	status=1
fi
if ((status)); then
	grep -v -E '^(=== (RUN|PAUSE|CONT|NAME)| *--- (PASS|SKIP)|PASS$)|\[rapid\] OK' "$log"
else
	grep -E '^(ok|\?)' "$log"
fi
exit "$status"
