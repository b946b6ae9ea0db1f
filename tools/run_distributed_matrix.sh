#!/usr/bin/env bash
# Runs run_distributed_t2va.sh, with the options given here, at each world size in each mode, and compares the runs:
#     H3_GPU_COUNTS="1 2 4 6 8" H3_DISTRIBUTED_MODES="ulysses tensor" tools/run_distributed_matrix.sh [options]
# World sizes that this machine has no GPUs for are skipped. A run that fails is named at the end, and the exit code is 1.
set -euo pipefail
tools=$(dirname "${BASH_SOURCE[0]}")
export H3_DISTRIBUTED_BENCHMARK=${H3_DISTRIBUTED_BENCHMARK:-${H3_DISTRIBUTED_OUTPUT:-build/distributed}/benchmark.json}

for option in "$@"; do
    case $option in
    --help) exec "$tools/run_distributed_t2va.sh" --help ;;
    --benchmark*)
        echo "name the file by H3_DISTRIBUTED_BENCHMARK, not by $option: the runs are compared from it" >&2
        exit 2
        ;;
    esac
done

counts=${H3_GPU_COUNTS:-1 2 4 6 8}
modes=${H3_DISTRIBUTED_MODES:-ulysses tensor}
read -ra counts <<<"${counts//,/ }"
read -ra modes <<<"${modes//,/ }"
for count in "${counts[@]}"; do
    if ! [[ $count =~ ^[1-9][0-9]*$ ]]; then
        echo "H3_GPU_COUNTS: '$count' is no world size, as in H3_GPU_COUNTS=\"1 2 4 6 8\"" >&2
        exit 2
    fi
done

most=$("$tools/python.sh" -c 'import torch; print(torch.cuda.device_count())')
limit="visible GPUs"
if ((most == 0)); then
    most=${H3_WORLD_SIZE:-2}
    limit="ranks on the CPU (H3_WORLD_SIZE)"
fi

failed=()
for count in "${counts[@]}"; do
    if ((count > most)); then
        echo "skipped: $count ranks are more than $most $limit" >&2
        continue
    fi
    for mode in "${modes[@]}"; do
        "$tools/run_distributed_t2va.sh" "$mode" "$count" "$@" || failed+=("$mode $count")
    done
done

if [[ -e $H3_DISTRIBUTED_BENCHMARK ]]; then
    "$tools/python.sh" "$tools/../h3render.py" report "$H3_DISTRIBUTED_BENCHMARK"
fi
if ((${#failed[@]})); then
    printf 'failed: %s\n' "${failed[@]}" >&2
    exit 1
fi
