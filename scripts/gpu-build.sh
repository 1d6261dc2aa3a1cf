#!/usr/bin/env bash
# Builds scripts/gpu-check.sh and its programs, for each architecture, into a folder
# for a machine without Go and without a network. The programs load the CUDA driver
# when they run, so the build needs no GPU. They need the C library of the machine.
set -euo pipefail
cd "$(dirname "$0")/.."

if (($# < 1)); then
	echo "usage: scripts/gpu-build.sh FOLDER [ARCH...]" >&2
	exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
archs=("$@")
((${#archs[@]})) || archs=("$(go env GOARCH)")
go=${GO:-go}

export CGO_ENABLED=0 GOOS=linux
flags=(-tags cuda '-ldflags=-s -w')
for arch in "${archs[@]}"; do
	export GOARCH=$arch
	into=$folder/linux-$arch
	mkdir -p "$into"
	"$go" build "${flags[@]}" -o "$into/omnibus" ./cmd/omnibus
	"$go" -C bench build "${flags[@]}" -o "$into/omnibus-bench" ./cmd/omnibus-bench
	"$go" build "${flags[@]}" -o "$into/gpu-example" ./examples/gpu
	"$go" test "${flags[@]}" -c -o "$into/cuda.test" ./cudaipc/cuda
	"$go" test "${flags[@]}" -c -o "$into/emul.test" ./cudaipc/emul
	"$go" test "${flags[@]}" -c -o "$into/chaos.test" ./internal/chaos
done
rm -rf "$folder/python"
mkdir -p "$folder/python"
cp -r clients/python/src/omnibus "$folder/python/"
cp scripts/gpu_torch*.py "$folder/python/"
find "$folder/python" -name __pycache__ -prune -exec rm -rf {} +
cp scripts/gpu-check.sh "$folder/"
du -sh "$folder"
