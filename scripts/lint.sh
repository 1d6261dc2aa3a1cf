#!/usr/bin/env bash
# Static checks of the code. All checks run, also after a failure; the exit status is
# 1 if one fails.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=()
check() { # check NAME COMMAND...
	local name=$1
	shift
	printf '== lint: %s\n' "$name"
	"$@" || failed+=("$name")
}

formatted() {
	local files
	files=$(go tool -modfile=tools/go.mod gofumpt -l .) || return
	[[ -z $files ]] || {
		printf 'not formatted; run `go tool -modfile=tools/go.mod gofumpt -w .`:\n%s\n' "$files"
		return 1
	}
}

vet() { # vet GOOS GOARCH ARGUMENTS...
	GOOS=$1 GOARCH=$2 CGO_ENABLED=0 go vet "${@:3}" ./... &&
		GOOS=$1 GOARCH=$2 CGO_ENABLED=0 go -C bench vet "${@:3}" ./...
}

check "golangci-lint" go tool -modfile=tools/go.mod golangci-lint run ./...
check "golangci-lint cuda" go tool -modfile=tools/go.mod golangci-lint run --build-tags cuda ./cudaipc/cuda/...
check "golangci-lint lockcheck" go tool -modfile=tools/go.mod golangci-lint run --build-tags lockcheck ./internal/lockorder/...
check "golangci-lint bench" go -C bench tool -modfile=../tools/go.mod golangci-lint run ./...
check "gofumpt" formatted
check "vet linux/arm64" vet linux arm64
check "vet darwin/arm64" vet darwin arm64
check "vet windows/amd64" vet windows amd64
check "vet linux/arm64 cuda" vet linux arm64 -tags cuda
check "vet linux/arm64 lockcheck" vet linux arm64 -tags lockcheck
check "go.mod is tidy" go mod tidy -diff
check "bench/go.mod is tidy" go -C bench mod tidy -diff
check "tools/go.mod is tidy" go -C tools mod tidy -diff

if ((${#failed[@]})); then
	printf '== lint: FAILED: %s\n' "${failed[@]}"
	exit 1
fi
