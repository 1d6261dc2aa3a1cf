#!/usr/bin/env bash
# Tests the KV transfer and the encoder cache with vLLM's own classes, on a
# machine without a GPU: see docs/connectors/vllm-caches.md.
#
#   scripts/vllm-caches.sh [folder]
#
# It needs Go, Python 3.10 to 3.13 and a network, and installs some 6 GB into the
# folder, too much for CI. The next run uses them again.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/omnibus-vllm}
vllm=0.30.0
# The imports of those classes of vLLM that the tests use.
packages=(
	torch==2.13.0 numpy packaging regex psutil pyzmq urllib3 'transformers>=5.10.4' cbor2 aiohttp requests openai-harmony openai
	pillow pybase64 cachetools msgspec cloudpickle uvloop py-cpuinfo prometheus-client fastapi partial-json-parser xgrammar
	llguidance einops
)

mkdir -p "$folder"
[[ -x $folder/venv/bin/python ]] || python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --disable-pip-version-check install --quiet --only-binary :all: "${packages[@]}"
if [[ ! -e $folder/vllm-$vllm/vllm/__init__.py ]]; then
	"$folder/venv/bin/python" -m pip download --quiet --no-deps --only-binary :all: --dest "$folder/wheel" "vllm==$vllm"
	"$folder/venv/bin/python" - "$folder"/wheel/vllm-"$vllm"-*.whl "$folder/vllm-$vllm" <<-'END'
		import sys, zipfile
		with zipfile.ZipFile(sys.argv[1]) as wheel:
		    wheel.extractall(sys.argv[2], [n for n in wheel.namelist() if n.startswith("vllm/") and not n.endswith(".so")])
	END
	rm -r "$folder/wheel"
fi
go build -o "$folder/omnibus" ./cmd/omnibus
OMNIBUS_PROGRAM=$folder/omnibus OMNIBUS_VLLM=$folder/vllm-$vllm PYTHONPATH=clients/python/src:clients/python/tests \
	"$folder/venv/bin/python" -W ignore -m unittest -v test_caches_handover test_caches_vllm
