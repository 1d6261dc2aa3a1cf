#!/usr/bin/env bash
# Checks and measures the GPU lane on a machine with an NVIDIA GPU, which needs
# neither Go nor a network: `make gpu-build` builds the programs. Each step has a time
# limit of its own, and all of them have one deadline. Without a GPU all steps run on
# an emulated one, whose figures say nothing about a real one.
#
#   usage: gpu-check.sh [-d cuda|emul] [-q] [-t SECONDS] [-o FOLDER] [PROGRAMS]
#
#   -d  the driver; default cuda if there is a GPU that it can use
#   -q  a short form: fewer rounds, sizes and kills, in less than a minute on emul
#   -t  the deadline; default 540 s, more than the limits of all steps together. A step
#       gets the remaining time, if that is less than its limit; if none remains, the
#       step is not run, and the results say so
#   -o  the folder of results; default a new one, whose name is printed
#   PROGRAMS  the folder of make gpu-build; default the folder of this script, or bin/gpu
#
# The steps:
#
#   capabilities  omnibus doctor
#   conformance   the suite of package cudaipc/drivertest, over the machine's own library
#   ordering      tensors that are made, or read, after 200 ms of other work; then both done
#                 wrong on purpose, which the step must notice
#   throughput    4 KiB to 1 GiB (64 MiB on an emulated GPU): into the pool, seen there,
#                 copied out, through host memory; beside raw copies
#   latency       100,000 round trips of 4 KiB (5,000 on an emulated GPU), spinning and blocking
#   leases        a million messages of 4 KiB through the pool, or as many as go in 30 s; then
#                 the resources of which there are more than before
#   reclaim       100 processes killed while they hold all chunks of a pool, or as many as
#                 start in 30 s
#   example-*     examples/gpu, by each transport
#   torch         gpu_torch.py, if python3 has torch: float32 and bfloat16 by each transport,
#                 and from a stage, added up on the GPU, in place, and given back by the last
#                 view; beside torch.multiprocessing with as many of the same sizes
#   kills         100 processes killed with tensors in hand, or as many as go in 45 s
#
# In the folder of the results: results.jsonl has a line for each step, and for each
# figure; table.txt is both for people; and each step has a log. The exit status is 1
# if a step has failed, or was not run. A gate that is not met is no failure.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
driver='' quick='' out='' deadline=540
while getopts 'd:qt:o:' option; do
	case $option in
	d) driver=$OPTARG ;;
	q) quick=yes ;;
	t) deadline=$OPTARG ;;
	o) out=$OPTARG ;;
	*) exit 2 ;;
	esac
done
shift $((OPTIND - 1))
if [[ ! $deadline =~ ^[1-9][0-9]{0,5}$ ]]; then
	echo "gpu-check: -t wants whole seconds, from 1 on, and not \"$deadline\"" >&2
	exit 2
fi

programs=${1:-$here}
if [[ ! -d $programs/linux-amd64 && ! -d $programs/linux-arm64 ]]; then
	programs=$here/../bin/gpu
fi
case $(uname -m) in
x86_64) arch=amd64 ;;
aarch64) arch=arm64 ;;
*) arch=$(uname -m) ;;
esac
if [[ ! -x $programs/linux-$arch/omnibus ]]; then
	echo "gpu-check: no programs for $arch in $programs: build them with make gpu-build" >&2
	exit 2
fi
programs=$(cd "$programs" && pwd)
bin=$programs/linux-$arch
if [[ -z $out ]]; then
	out=$(mktemp -d --suffix=-omnibus-gpu-check)
fi
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
: >"$out/results.jsonl"
: >"$out/steps.txt"

# A command that is interrupted at its limit has the grace, in seconds, to write its
# results. The kept seconds before the deadline are for the table, and for the second
# by which SECONDS may be behind.
kept=5 grace=2
left() { echo $((deadline - kept - grace - SECONDS)); }

# within runs a command for so many seconds, or for the remaining ones. It does not
# wait for processes that a hanging driver keeps from dying.
within() { # within SECONDS COMMAND...
	local limit=$1 left
	shift
	left=$(left)
	((left >= limit)) || limit=$left
	((limit >= 1)) || return 124
	timeout --signal=INT --kill-after=$grace "$limit" "$@"
}

if [[ -z $driver ]]; then
	driver=emul
	if within 15 "$bin/gpu-example" -driver cuda -n 1 -rows 1 >"$out/driver.log" 2>&1; then
		driver=cuda
	fi
fi

# step runs a command under a time limit, and records its result. A command that says
# "not available yet" has nothing to run.
unavailable=3
failed=0
step() { # step NAME SECONDS COMMAND...
	local name=$1 limit=$2 log=$out/$1.log start status word detail left
	shift 2
	start=$(date +%s.%N)
	left=$(left)
	if ((left < 1)); then
		printf 'not run: nothing is left of the %s s that all steps have\n' "$deadline" >"$log"
		status=not-run limit=0
	else
		((left >= limit)) || limit=$left
		step_limit=$limit "$@" >"$log" 2>&1
		status=$?
	fi
	case $status in
	0) word=ok ;;
	not-run) word=not-run failed=1 ;;
	"$unavailable") word=unavailable ;;
	124 | 137) word=timeout failed=1 ;;
	*) word=failed failed=1 ;;
	esac
	detail=$(grep -v '^$' "$log" | tail -n 1 | tr -d '\\"\000-\037' | cut -c 1-120)
	[[ $word != ok || $name == example-* || $name == torch || $name == kills ]] || detail=
	case $name in
	conformance) [[ $word == not-run ]] || detail="$(grep -c '^ *--- PASS' "$log") passed, $(grep -c '^ *--- FAIL' "$log") failed, $(grep -c '^ *--- SKIP' "$log") skipped (conformance.log says why)" ;;
	kills) [[ $word != ok ]] || detail=$(sed -n 's/^.*: \([0-9]* kills\) counted .*/\1, of processes with tensors in hand/p' "$log") ;;
	esac
	local took
	took=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')
	printf '{"step":"%s","driver":"%s","status":"%s","seconds":%s,"limit":%s,"detail":"%s"}\n' \
		"$name" "$driver" "$word" "$took" "$limit" "$detail" >>"$out/results.jsonl"
	printf '%-22s %-12s %7s s of %4s s  %s\n' "$name" "$word" "$took" "$limit" "$detail" | tee -a "$out/steps.txt"
}

limited() { within "$step_limit" "$@"; }

capabilities() { limited "$bin/omnibus" doctor; }

# The suite of all drivers. The fake of the CUDA library needs a compiler; this does not.
conformance() {
	if [[ $driver == cuda ]]; then
		OMNIBUS_CUDA_REAL=1 limited "$bin/cuda.test" -test.v -test.run '^TestRealDriver$'
	else
		limited "$bin/emul.test" -test.v -test.run '^TestDriver$'
	fi
}

measure() { # measure FIGURES: a regular expression
	limited "$bin/omnibus-bench" gpu --driver "$driver" ${quick:+--quick} --lines "$out/results.jsonl" --store-bytes "$store" --run "$1"
}

# Figures may miss their gates; a wrong order is a failure.
ordering() {
	measure '^gpu/ordering' || return
	! grep -q '"name":"gpu/ordering/.*"met":false' "$out/results.jsonl"
}

example() { limited "$bin/gpu-example" -driver "$driver" -transport "$1"; }

# A PyTorch consumer, beside torch.multiprocessing.
torch() {
	if ! command -v python3 >/dev/null; then
		echo "not available here: there is no python3"
		return $unavailable
	fi
	PYTHONPATH=$programs/python limited python3 "$programs/python/gpu_torch.py" --driver "$driver" --programs "$bin" ${quick:+--quick} --lines "$out/results.jsonl"
}

# Kills processes that hold tensors, or as many as start in 45 s.
kills() { # kills NUMBER
	limited "$bin/chaos.test" -test.v -test.run '^TestChaosGPU$' "-chaos.gpu=$1" -chaos.within=45s "-chaos.driver=$driver"
}

{
	printf 'driver %s, programs for %s, results in %s\n' "$driver" "$arch" "$out"
	if [[ $driver == emul ]]; then
		if [[ -f $out/driver.log ]]; then
			printf 'No GPU can be used: %s\n' "$(tail -n 1 "$out/driver.log" | cut -d ' ' -f 3-)"
		fi
		printf 'Everything runs on an emulated GPU, and no figure says anything about a real one.\n'
	fi
	printf '\n%-22s %-12s %7s   of %7s\n' STEP STATUS TOOK LIMIT
} | tee "$out/table.txt"
if command -v nvidia-smi >/dev/null; then
	within 10 nvidia-smi >"$out/nvidia-smi.log" 2>&1
fi

# The store, in bytes, has to hold the largest tensors, in memory that can be locked.
store=$((257 << 20)) sizes='' killed=100
if [[ $driver == cuda ]]; then
	# A process that opens a GPU may take a second to start.
	store=$((4 << 30))
fi
if [[ -n $quick ]]; then
	sizes='size=(4KiB|1MiB|16MiB)$' killed=20
fi
step capabilities 15 capabilities
step conformance 70 conformance
step ordering 30 ordering
step throughput 150 measure "^gpu/(in|view|in.out|spill)/.*$sizes"
step latency 30 measure '^gpu/latency'
step leases 40 measure '^gpu/leases'
step reclaim 40 measure '^gpu/reclaim'
for transport in default cuda_ipc cuda_ipc_pool; do
	step "example-$transport" 10 example "$transport"
done
step torch 45 torch
step kills 75 kills "$killed"

# legend describes the figures of a step.
legend() {
	case $1 in
	ordering) echo 'ordering: tensors that were read too early, or overwritten before they were read; and mistakes made on purpose that no check noticed' ;;
	throughput) echo 'throughput: one tensor, by how it travels; the baseline is raw copies of as many bytes on the same GPU, the ratio our speed by theirs' ;;
	latency) echo 'latency: 4 KiB, from the call that sends it to when the other process'"'"'s GPU begins (start), and to its answer (trip)' ;;
	leases) echo 'leases: resources of which both processes have more after so many small tensors' ;;
	reclaim) echo 'reclaim: processes killed while they hold all chunks; the time until they are dead (teardown, the kernel'"'"'s), and from there until all chunks are given out again (free)' ;;
	torch) echo 'torch: tensors that PyTorch reads, beside torch.multiprocessing' ;;
	esac
}

{
	# Each log names the machine, which is the same in all.
	cat "$out"/{ordering,throughput,latency,leases,reclaim}.log | grep -m 1 '^go1'
	for name in ordering throughput latency leases reclaim torch; do
		printf '\n%s\n' "$(legend "$name")"
		grep -v -e '^[0-9]*/[0-9]* ' -e '^go1' -e '^$' "$out/$name.log"
	done
} >"$out/figures.txt"
{
	cat "$out/steps.txt"
	printf '\n'
	cat "$out/figures.txt"
} >>"$out/table.txt"
printf '\n'
cat "$out/figures.txt"
printf '\nresults: %s\n' "$out/results.jsonl"
exit $failed
