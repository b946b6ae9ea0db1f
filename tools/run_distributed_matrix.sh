#!/usr/bin/env bash
# Runs run_distributed_t2va.sh, with the options given here, at each world size in each mode, and compares the runs:
#     H3_GPU_COUNTS="1 2 4 6 8" H3_DISTRIBUTED_MODES="ulysses tensor" tools/run_distributed_matrix.sh [options]
# World sizes that this machine has no GPUs for are skipped. A run that fails is named at the end, and the exit code is 1.
set -euo pipefail
trap 'exit 130' INT # without it bash goes on: a run that is interrupted ends as one that fails
tools=$(dirname "${BASH_SOURCE[0]}")
export H3_DISTRIBUTED_BENCHMARK=${H3_DISTRIBUTED_BENCHMARK:-${H3_DISTRIBUTED_OUTPUT:-build/distributed}/benchmark.json}
known_modes="ulysses tensor"
nothing_left="nothing was left to run: H3_GPU_COUNTS and H3_DISTRIBUTED_MODES name no run that fits this machine"

refuse() {
    echo "$1" >&2
    exit 2
}

require_world_size() { # VARIABLE VALUE
    [[ $2 =~ ^[1-9][0-9]{0,3}$ ]] || refuse "$1: '$2' is no world size: take 1 or more"
}

for option in "$@"; do
    [[ $option != --help ]] || exec "$tools/run_distributed_t2va.sh" --help
done

counts=${H3_GPU_COUNTS:-1 2 4 6 8}
modes=${H3_DISTRIBUTED_MODES:-$known_modes}
read -ra counts <<<"${counts//[[:space:],]/ }"
read -ra modes <<<"${modes//[[:space:],]/ }"
for count in "${counts[@]}"; do
    require_world_size H3_GPU_COUNTS "$count"
done
for mode in "${modes[@]}"; do
    [[ " $known_modes " == *" $mode "* ]] || refuse "H3_DISTRIBUTED_MODES: '$mode' is no mode: take some of $known_modes"
done
[[ -z ${H3_WORLD_SIZE:-} ]] || require_world_size H3_WORLD_SIZE "$H3_WORLD_SIZE"
((${#counts[@]} && ${#modes[@]})) || refuse "$nothing_left"

# Without the collector torch takes two thirds of the time.
most=$("$tools/python.sh" -c 'import gc; gc.disable(); import torch; gc.freeze(); print(torch.cuda.device_count())')
limit="visible GPUs"
if ((most == 0)); then
    most=${H3_WORLD_SIZE:-2}
    limit="ranks on the CPU (H3_WORLD_SIZE)"
fi

ran=0
failed=()
paths=$(mktemp)
trap 'rm -f "$paths"' EXIT
for count in "${counts[@]}"; do
    if ((count > most)); then
        echo "skipped: $count ranks are more than $most $limit" >&2
        continue
    fi
    for mode in "${modes[@]}"; do
        ran=1
        "$tools/run_distributed_t2va.sh" "$mode" "$count" "$@" | tee -a "$paths" || failed+=("$mode $count")
    done
done
((ran)) || refuse "$nothing_left"

mapfile -t reports <"$paths"
if ((${#reports[@]})); then
    "$tools/python.sh" "$tools/../h3render.py" report "${reports[@]}"
fi
if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
