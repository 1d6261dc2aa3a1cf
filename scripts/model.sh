#!/usr/bin/env bash
# Checks the models in docs/model with Spin: each protocol must keep all its
# promises in every state, and each planted mistake must break the promise that its
# line names.
#
#   scripts/model.sh [small|full] [model...]
#
# Exit status: 1 if a run has another outcome, 2 for a wrong call, 3 if Spin or gcc is
# missing.
set -euo pipefail
cd "$(dirname "$0")/.."
models=$PWD/docs/model

usage() {
	echo "usage: scripts/model.sh [small|full] [model...]; the models are:" >&2
	basename -s .pml "$models"/*.pml >&2
	exit 2
}

need() { # need COMMAND HOW
	command -v "$1" >/dev/null && return
	echo "model.sh: $1 is missing: $2" >&2
	exit 3
}

row() { # row VERDICT MODEL WHAT STATES DEPTH SECONDS OUTCOME
	printf '%-6s  %-9s  %-38s  %10s  %5s  %7s  %s\n' "$@"
}

# The runs, one line each: MODEL MUT PROMISE FLAGS. MUT is 0 and PROMISE is - for the
# protocol itself.
plan() { # plan MODEL...
	local model flags mut promise
	for model; do
		sed -n "s/^ \* $size: */$model 0 - /p" "$models/$model.pml"
		flags=$(sed -n 's/^ \* small: *//p' "$models/$model.pml" | head -1)
		sed -n 's/^ \* MUT \([0-9]*\) .* -> \([a-z_]*\)$/\1 \2/p' "$models/$model.pml" |
			while read -r mut promise; do
				echo "$model $mut $promise $flags"
			done
	done
}

# The name of the promise that a run broke, or why it did not finish; nothing if it
# kept all promises.
outcome() { # outcome MODEL FLAG...
	local model=$1
	shift
	if grep -q 'assertion violated' out; then
		# Only Spin knows the name, so it replays the trail.
		spin -t "$@" "$model.pml" |
			sed -n 's/.*text of failed assertion.*!(\([a-z_]*\)).*/\1/p' | sed 1q
	elif grep -q 'non-progress cycle (' out; then
		echo no_idle_cycle
	elif ! grep -q 'errors: ' out; then
		echo "nothing: the run did not end: $(grep -v '^Depth=' out | sed 1q)"
	else # a deadlock, or a limit that was too small
		sed -n 's/^pan:1: \(.*\) (at depth.*/\1/p; s/^error: //p; s/^pan: reached/reached/p' out | sed 1q
	fi
}

run() { # run MODEL MUT PROMISE FLAG...
	local model=$1 mut=$2 promise=$3 what broken verdict=ok
	shift 3
	local build=(-DSAFETY "-DMEMLIM=$memory_mib") search=(-m1000000 -w20) flags=("-DMUT=$mut" "$@")
	if [[ " $* " == *' -DNP '* || $promise == no_idle_cycle ]]; then
		build[0]=-DNP
		search+=(-l)
	fi
	what="mistake $mut"
	((mut)) || what="protocol $*"
	if [[ $size == full ]] && ! ((mut)); then
		build+=(-O2 -DCOLLAPSE)
	else
		build+=(-O0) # compiling takes longer than the search
	fi
	cd "$(mktemp -d -p "$scratch")"
	cp "$models/model.h" "$models/$model.pml" .
	if spin -a "${flags[@]}" "$model.pml" >out && [[ ! -s out ]] &&
		gcc -w "${build[@]}" -o pan pan.c >out 2>&1; then
		./pan "${search[@]}" >out 2>&1 || true
	fi
	broken=$(outcome "$model" "${flags[@]}")
	[[ ${broken:--} == "$promise" ]] || verdict=FAILED
	row "$verdict" "$model" "$what" \
		"$(awk '/states, stored/ { print $1; exit }' out)" \
		"$(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' out)" \
		"$(sed -n 's/.*elapsed time \([0-9.]*\).*/\1/p' out)" \
		"${broken:+breaks }${broken:-keeps all promises}$([[ $verdict == ok ]] || echo ", not as it should")"
}

size=${1:-small}
[[ $size == small || $size == full ]] || usage
shift || true
(($#)) || mapfile -t all < <(basename -s .pml "$models"/*.pml)
(($#)) || set -- "${all[@]}"
for model; do [[ -f $models/$model.pml ]] || usage; done
need spin 'install the package spin (Debian and Ubuntu: apt-get install spin), or build it from https://github.com/nimble-code/Spin'
need gcc 'Spin generates a C program (Debian and Ubuntu: apt-get install gcc)'

memory_mib=900 # for each of two runs at a time
[[ $size == small ]] || memory_mib=4000
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export models size scratch memory_mib
export -f row run outcome

row '' model run states depth seconds outcome
plan "$@" | xargs -P 2 -L 1 bash -c 'run "$@"' _ | tee "$scratch/rows"

runs=$(wc -l <"$scratch/rows") failed=$(grep -c '^FAILED' "$scratch/rows" || true)
planned=$(plan "$@" | wc -l)
echo "model.sh: $runs of $planned runs in $SECONDS s, $failed not as they should be"
((runs == planned && failed == 0))
